"""Replicas that stall and write on as if nothing were, and a Redis that is killed meanwhile."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from support.redis_server import redis_server
from support.redis_stores import first, record, stores

from diptych.core.errors import LeaseLost, StoreError
from diptych.core.events import MessageQueued
from diptych.core.messages import Message
from diptych.ports.entries import Lease, RunEntry
from diptych.stores.redis import RedisStore

LEASE_SECONDS = 0.15
LAST_SEQ = 9


class Replica:
    """Takes runs over and to their ends; stalls at times for longer than its lease holds."""

    def __init__(self, store: RedisStore, chance: random.Random) -> None:
        self.refused = 0
        self._store = store
        self._chance = chance

    async def work(self, done: asyncio.Event) -> None:
        while not done.is_set():
            for session_id in await patiently(self._store.unowned_sessions):
                token = f"{self._chance.getrandbits(128):032x}"
                if lease := await patiently(self._store.claim, session_id, token):
                    try:
                        await self._take_all(lease)
                    except LeaseLost:
                        self.refused += 1
            await asyncio.sleep(0.02)

    async def _take_all(self, lease: Lease) -> None:
        run_id = await patiently(self._store.next_run, lease)
        while run_id is not None:
            records = await patiently(self._store.read, run_id)
            entry = RunEntry(run_id, lease.session_id, 1.5, "running")
            for seq in range(records[-1].seq + 1, LAST_SEQ + 1):
                if self._chance.random() < 0.05:
                    await asyncio.sleep(2.5 * LEASE_SECONDS)
                event_type = "text" if seq < LAST_SEQ else "completed"
                await self._store.append([record(entry, seq, event_type, lease.token)], lease)
            run_id = await self._store.finish_run(run_id, [Message("assistant", run_id)], lease)


async def patiently(ask: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
    """Ask again for as long as the store is away."""
    while True:
        try:
            return await ask(*arguments)
        except LeaseLost:
            raise
        except StoreError:
            await asyncio.sleep(0.05)


async def all_ended(store: RedisStore, sessions: set[str]) -> None:
    while not sessions.isdisjoint(await patiently(busy, store)):  # noqa: ASYNC110
        await asyncio.sleep(0.05)


async def busy(store: RedisStore) -> set[str]:
    """Name the sessions with a run that is not ended or whose words are not said."""
    found = set()
    for session in await store.sessions():
        if len(await store.conversation(session.session_id)) < session.runs:
            found.add(session.session_id)
    return found


async def test_no_run_is_lost_or_doubled():
    chance = random.Random(0)
    with redis_server("--appendonly", "yes", "--appendfsync", "always") as server:
        async with stores(server.url, 3, lease_seconds=LEASE_SECONDS) as replicas:
            entries = [
                (await store.open(first(store, f"talk {number % 6}"), f"opener {number}")).entry
                for number, store in enumerate(replicas * 8)
            ]  # their openers do not come back for them
            done = asyncio.Event()
            working = [Replica(store, chance) for store in replicas]
            tasks = [asyncio.create_task(each.work(done)) for each in working]
            for _ in range(3):
                await asyncio.sleep(chance.uniform(0.1, 0.3))
                server.kill()
                server.start()
            async with asyncio.timeout(30):
                await all_ended(replicas[0], {entry.session_id for entry in entries})
            done.set()
            await asyncio.gather(*tasks)
            for entry in entries:
                records = await replicas[0].read(entry.run_id)
                assert [r.seq for r in records] == list(range(1, LAST_SEQ + 1))
                assert sum(r.event_type == "completed" for r in records) == 1
            for name in {entry.session_id for entry in entries}:
                said = [m.content for m in await replicas[0].conversation(name)]
                assert said == [e.run_id for e in entries if e.session_id == name]
            assert sum(each.refused for each in working) > 0  # or nothing was tried


async def test_an_owner_that_vanishes_is_counted_with_its_run_and_one_that_releases_is_not() -> (
    None
):
    with redis_server() as server:
        async with stores(server.url, 2, lease_seconds=LEASE_SECONDS) as (a, b):
            assert await b.queue_head("talk") is None
            opened = await a.open(first(a), "t1")
            head = await b.queue_head("talk")
            assert head
            assert (head.run_id, head.deaths) == (opened.entry.run_id, 0)
            assert head.size > 0
            await asyncio.sleep(2 * LEASE_SECONDS)
            assert (await b.queue_head("talk")).deaths == 1  # type: ignore[union-attr]
            for n in (2, 3):
                lease = await b.claim("talk", f"t{n}")
                assert lease
                assert (await a.queue_head("talk")).deaths == 1  # type: ignore[union-attr]
                await b.release(lease)
            assert await b.claim("talk", "t4")
            await asyncio.sleep(2 * LEASE_SECONDS)
            later = await a.open(first(a), "t5")  # a request claims the session, too
            assert later.lease
            assert (await a.queue_head("talk")).deaths == 2  # type: ignore[union-attr]


async def test_the_size_of_a_queue_head_is_that_of_its_record_its_signals_and_its_session() -> None:
    with redis_server() as server:
        async with stores(server.url) as (store,):
            opened = await store.open(first(store), "t1")
            lease, run_id, size = opened.lease, opened.entry.run_id, 100_000
            sizes = [(await store.queue_head("talk")).size]  # type: ignore[union-attr]
            await store.append([record(opened.entry, 2, content="x" * size)], lease)
            sizes.append((await store.queue_head("talk")).size)  # type: ignore[union-attr]
            await store.send_signal(run_id, MessageQueued("y" * size, "m-1"))
            sizes.append((await store.queue_head("talk")).size)  # type: ignore[union-attr]
            await store.append([record(opened.entry, 3, "completed")], lease)
            await store.finish_run(run_id, (Message("user", "z" * size),), lease)
            await store.open(first(store), "t2")
            sizes.append((await store.queue_head("talk")).size)  # type: ignore[union-attr]
    assert sizes[0] < 0.1 * size
    assert [n + 1 for n, bytes_ in enumerate(sizes) if bytes_ > (1, 1, 2, 1)[n] * size] == [2, 3, 4]
