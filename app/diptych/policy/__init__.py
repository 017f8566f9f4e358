"""Policies on calls: allow, deny or ask (agent.md `policy`, loop.md §5)."""
