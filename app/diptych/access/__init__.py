"""Authentication of callers, and their rights (access.md). Requests never wait for the network."""
