"""The agent as an A2A server."""
