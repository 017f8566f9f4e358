"""The agents that a run may delegate to, while a test needs them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from diptych.a2a.agents import A2aAgents


@asynccontextmanager
async def running(agents: A2aAgents) -> AsyncIterator[A2aAgents]:
    """Start agents, and end them with the block; each has been tried once before it."""
    await agents.start()
    await agents.wait_for_first_attempt(3)
    try:
        yield agents
    finally:
        await agents.aclose()
