"""What recorded incidents would have come to under other values of one threshold or switch, and which value is best."""
