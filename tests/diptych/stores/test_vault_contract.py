"""What every vault promises, in memory, in SQLite and in Redis; and the book of tokens over one."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pydantic import BaseModel
from support.redis_server import RedisServer
from support.redis_stores import stores

from diptych.mcp.tokens import TokenBook
from diptych.ports.stores import Vault
from diptych.stores.memory.vault import MemoryVault
from diptych.stores.sqlite import SqliteStore


@pytest.fixture(params=["memory", "sqlite", "redis"])
async def vaults(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[tuple[Vault, Vault]]:
    """Give a vault, and a second one over the same store."""
    if request.param == "memory":
        memory = MemoryVault()
        yield memory, memory
    elif request.param == "sqlite":
        local = SqliteStore(tmp_path / "helper.sqlite")
        yield local.vault, local.vault
        await local.aclose()
    else:
        server: RedisServer = request.getfixturevalue("server")
        async with stores(server.url, 2) as (one, other):
            yield one.vault, other.vault


async def test_a_value_is_kept_for_its_time_and_taken_once(vaults: tuple[Vault, Vault]) -> None:
    one, other = vaults
    assert await one.get("a") is None
    await one.put("a", b"old", 60)
    await one.put("a", b"\x00new", 60)
    await one.put("b", b"short", 0.01)
    assert await other.get("a") == b"\x00new"
    await asyncio.sleep(0.02)
    assert await other.get("b") is None
    assert await one.take("b") is None
    taken = await asyncio.gather(*(vault.take("a") for vault in (one, other, one)))
    assert sorted(taken, key=bool) == [None, None, b"\x00new"]
    assert await one.get("a") is None


class Note(BaseModel):
    text: str


OLD, NEW = "o" * 32, "n" * 32


async def test_entries_are_encrypted_for_their_key_and_outlive_a_rotation(
    caplog: pytest.LogCaptureFixture,
) -> None:
    vault = MemoryVault()
    await TokenBook(vault, [OLD]).save("a", Note(text="sesame"))
    stored = await vault.get("a")
    assert stored is not None
    assert b"sesame" not in stored
    assert await TokenBook(vault, [NEW, OLD]).load("a", Note) == Note(text="sesame")
    await vault.put("b", stored, 60)  # moved to the key of another person
    assert await TokenBook(vault, [OLD]).load("b", Note) is None
    with caplog.at_level(logging.WARNING):
        assert await TokenBook(vault, [NEW]).load("a", Note) is None
    assert "DIPTYCH_TOKEN_KEY" in caplog.text
    await TokenBook(vault, [NEW, OLD]).save("a", Note(text="mellon"))
    assert await TokenBook(vault, [NEW]).take("a", Note) == Note(text="mellon")
