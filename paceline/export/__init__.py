"""Records as tables: one row for each GPU, port or rank, for tools that read columns."""
