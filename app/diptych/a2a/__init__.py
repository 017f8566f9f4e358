"""A2A: the agents that an agent delegates to, and the agent as others delegate to it."""
