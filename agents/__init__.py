"""On the nodes: collectors, frame assembly, the publisher, the trainer socket, and the simulated fleet."""
