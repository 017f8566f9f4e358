"""Who asks, and what that subject may do (access.md). Nothing here waits for the network."""
