"""The agent as an A2A 1.0 server."""
