"""Stores in Redis as tests need them, and short forms of what they do with them."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from diptych.core.codec import Record
from diptych.core.messages import Message
from diptych.ports.entries import Lease, RunEntry
from diptych.ports.stores import EventLog
from diptych.stores.redis import RedisSettings, RedisStore
from diptych.stores.sqlite import SqliteStore


@asynccontextmanager
async def stores(url: str, count: int = 1, **rest: Any) -> AsyncIterator[list[RedisStore]]:
    """Open stores that share a prefix, as the replicas of an agent do."""
    prefix = rest.pop("prefix", f"test:{secrets.token_hex(4)}")
    settings = RedisSettings(lambda: url, prefix, **rest)
    async with AsyncExitStack() as stack:
        opened = [RedisStore(settings) for _ in range(count)]
        for store in opened:
            await store.start()
            stack.push_async_callback(store.aclose)
        yield opened


def first(store: EventLog, session_id: str = "talk") -> Record:
    """Make the first record of a new run."""
    run_id = f"run-{store.epoch}-{secrets.token_hex(16)}"
    return Record(run_id, session_id, 1, "user_message", 1.5, "hi")


def record(entry: RunEntry, seq: int, event_type: str = "text", content: Any = "…") -> Record:
    """Make another record of a run."""
    return Record(entry.run_id, entry.session_id, seq, event_type, 1.5 + seq, content)


async def end(
    store: RedisStore | SqliteStore, entry: RunEntry, lease: Lease, *said: str
) -> str | None:
    """Put a run's end on record, and take it out of the queue."""
    await store.append([record(entry, entry.seq + 1, "completed")], lease)
    messages = [Message("assistant", text) for text in said]
    return await store.finish_run(entry.run_id, messages, lease)


async def soon(claim: Callable[[], bool], seconds: float = 5.0) -> None:
    """Wait until something is true, for that is told to nobody."""
    async with asyncio.timeout(seconds):
        while not claim():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
