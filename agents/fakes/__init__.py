"""Stand-ins for what is outside of the agent's process; `agents.testing` is the place to import them from."""
