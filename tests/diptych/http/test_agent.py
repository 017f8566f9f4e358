"""`GET /v1/agent`, as callers of an agent that asks who they are."""

from typing import Any

from support.stack import agent, beyond_loopback, box, until

from diptych.access.grants import Grant, Grantee, Right
from diptych.manifest.settings import AccessConfig, PeerConfig


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def test_only_readers_are_told_why_something_is_unavailable() -> None:
    keys: dict[str, Any] = {name: (lambda name=name: f"key-of-{name}-Yx3") for name in "ar"}
    grants = tuple(
        Grant((Grantee("key", name),), frozenset({right}))
        for name, right in (("a", Right.ASK), ("r", Right.READ))
    )
    config = agent(
        "{}",
        "2.",
        description="Adds.",
        examples=("1 + 1?",),
        tools=(box(add),),
        agents=(PeerConfig("away", url="http://127.0.0.1:9"),),
        access=AccessConfig(keys=keys, grants=grants),
    )
    async with beyond_loopback(config) as http:

        async def is_ready() -> bool:  # each agent has been tried once
            return (await http.get("/ready")).status_code == 200

        await until(is_ready, 10)
        assert (await http.get("/v1/agent")).status_code == 401
        told = {
            name: (
                await http.get("/v1/agent", headers={"Authorization": f"Bearer key-of-{name}-Yx3"})
            ).json()
            for name in keys
        }
    (away,) = told["r"]["unavailable"]
    assert away.pop("reason")
    assert told["a"] == told["r"]
    assert told["a"].pop("version")
    assert told["a"] == {
        "object": "agent",
        "name": "helper",
        "description": "Adds.",
        "examples": ["1 + 1?"],
        "models": ["DEBUG_MOCK_RESPONSES"],
        "tools": [{"name": "add", "server": "box", "description": "Add two numbers."}],
        "agents": [],
        "unavailable": [{"kind": "agent", "name": "away"}],
    }
