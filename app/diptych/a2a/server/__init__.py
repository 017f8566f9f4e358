"""The agent as a server of A2A, 1.0 and 0.3."""
