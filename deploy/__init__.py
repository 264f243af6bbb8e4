"""How it runs: topics and local brokers."""
