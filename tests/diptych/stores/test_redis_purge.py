"""Purging: all that one Agent has stored goes, and nothing of anybody else's."""

import asyncio

import pytest
from support.redis_server import free_port, redis_server
from support.redis_stores import first, soon, stores
from typer.testing import CliRunner

from diptych.cli import app
from diptych.core.errors import StoreError
from diptych.manifest.settings import sessions_prefix
from diptych.stores.redis import RedisSettings, RedisStore
from diptych.stores.redis.purge import purge

KEY = "0b0e2c1e-6d3c-4a8e-9d3f-0d2f6f1a7c11"
BEFORE_KEYS = sessions_prefix("team", "helper")
OWN = sessions_prefix("team", "helper", KEY)


async def stored(url: str, *prefixes: str) -> None:
    """Leave a run of a session under each prefix, as a process that was killed leaves it."""
    for prefix in prefixes:
        store = RedisStore(RedisSettings(lambda: url, prefix, lease_seconds=60))
        await store.start()
        try:
            await store.open(first(store), "t1")
        finally:
            await store.aclose()


@pytest.mark.parametrize(
    ("purged", "kept"),
    [
        pytest.param(OWN, BEFORE_KEYS, id="of an Agent with a key of its own"),
        pytest.param(BEFORE_KEYS, OWN, id="of one from before keys, beside its successor's"),
    ],
)
async def test_all_keys_of_one_agent_go_and_none_of_another_one(purged, kept):
    other_name = sessions_prefix("team", "helper-2", KEY)
    with redis_server() as server:
        await stored(server.url, purged, kept, other_name)
        before = set(server.ask("KEYS", "*"))
        deleted = await purge(lambda: server.url, purged, patience=0)
        left = set(server.ask("KEYS", "*"))
        assert deleted == len(before - left) > 3
        assert len([k for k in left if k.startswith(f"{other_name}:".encode())]) > 3
        assert len([k for k in left if k.startswith(f"{kept}:".encode())]) > 3
        own = [k for k in left if k.startswith(f"{purged}:".encode())]
        assert [k for k in own if not k.startswith(f"{kept}:".encode())] == []


async def test_processes_of_the_agent_end_first():
    with redis_server() as server:
        async with stores(server.url, prefix=OWN) as [store]:
            await store.open(first(store), "t1")
            await soon(lambda: server.ask("PUBSUB", "NUMSUB", f"{OWN}:control")[1])
            purging = asyncio.create_task(purge(lambda: server.url, OWN, patience=30))
            await asyncio.sleep(1.5)
            assert not purging.done()
            assert server.ask("KEYS", f"{OWN}:log:*")
        assert await purging > 3
        assert server.ask("KEYS", f"{OWN}:*") == []


async def test_a_store_that_is_away_is_an_error_at_once():
    async with asyncio.timeout(5):
        with pytest.raises(StoreError, match="cannot be purged: the store cannot be reached"):
            await purge(lambda: f"redis://127.0.0.1:{free_port()}", OWN, patience=60)


def test_the_command_purges_what_its_arguments_name(monkeypatch):
    with redis_server() as server:
        asyncio.run(stored(server.url, OWN, BEFORE_KEYS))
        monkeypatch.setenv("REDIS_URL", server.url)
        command = ["purge-sessions", "team/helper", "--sessions", KEY, "--patience", "0"]
        found = CliRunner().invoke(app, command)
        assert found.exit_code == 0, found.output
        assert "keys of team/helper" in found.output
        assert not [k for k in server.ask("KEYS", "*") if k.startswith(OWN.encode())]
        assert server.ask("KEYS", "*")


def test_the_command_says_what_it_needs(monkeypatch):
    monkeypatch.delenv("REDIS_URL", raising=False)
    found = CliRunner().invoke(app, ["purge-sessions", "helper"])
    assert found.exit_code == 2
    assert "REDIS_URL" in found.output
