"""How often everything is listed."""

import asyncio

import pytest

from diptych_operator.watch import resync


class Cache:
    def __init__(self, agents):
        self.agents = agents

    def agent_names(self):
        return (("team", f"agent-{n}") for n in range(self.agents))


@pytest.mark.parametrize(("agents", "seconds"), [(0, 60), (400, 60), (1_000, 150)])
async def test_many_agents_are_listed_more_rarely(agents, seconds, monkeypatch):
    waited = []

    async def sleep(for_seconds):
        waited.append(for_seconds)
        raise asyncio.CancelledError

    monkeypatch.setattr(resync.asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await resync.Resync(None, Cache(agents), None).run()
    assert waited == [seconds]
