"""Clients of an agent: one served in this process, one at a URL, or one in a cluster."""
