"""What an agent's policy says of a call: allow, deny or ask (agent.md `policy`, loop.md §5)."""
