"""What a reader of a run costs: how much is read for it, and how much is held for it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from support.doubles import EPOCH, CountingClock
from support.face import Face, Speaker, replicas
from support.replicas import replica, told
from support.shared_store import SharedStore
from support.stack import until
from support.stories import SLOWLY, begin, log, virtually
from support.world import found

from diptych.core.codec import Record, is_terminal, record_chars
from diptych.core.errors import RunLost, StoreError
from diptych.ports import Item, Notice
from diptych.ports.entries import Lease
from diptych.ports.stores import Stores
from diptych.runs.run_log import MAX_BUFFERED_CHARS
from diptych.runs.subscription import (
    MAX_BATCH,
    STORE_WAIT_SECONDS,
    Subscriptions,
)
from diptych.stores.memory.store import MemoryStore

RUN = f"run-{EPOCH}-{'a' * 32}"
LONG = {"content": "word " * 300, "chunk_ms": 50}


class CountingStore(MemoryStore):
    """Notes what is read of it: of each time, from where, and how many records."""

    def __init__(self) -> None:
        super().__init__(EPOCH)
        self.reads: list[tuple[int, int]] = []

    async def read(self, run_id: str, after: int = 0, limit: int | None = None) -> Any:
        found = await super().read(run_id, after, limit)
        self.reads.append((after, len(found)))
        return found


class WithoutEnds(CountingStore):
    """A store in which somebody has deleted the last row of each run by hand."""

    async def read(self, run_id: str, after: int = 0, limit: int | None = None) -> Any:
        found = await super().read(run_id, after, limit)
        return [record for record in found if not is_terminal(record)]


class CapturingFeed:
    """Gives the test the way to the one who subscribes."""

    put: Any = None

    async def subscribe(self, run_id: str, put: Any) -> Any:
        self.put = put
        return lambda: None


@dataclass
class Room:
    """A run that has ended, and who follows it where it is not owned."""

    store: CountingStore = field(default_factory=CountingStore)

    def __post_init__(self) -> None:
        store = self.store
        stores = Stores(store, store, store, store, CountingClock())
        self.following = Subscriptions(stores, lambda _: None)

    async def fill(self, *texts: str) -> list[Record]:
        """Put a run with these texts on record."""
        rows = [("user_message", "hi"), *(("text", text) for text in texts), ("completed", None)]
        records = [Record(RUN, "talk", n, *row) for n, row in enumerate(_timed(rows), 1)]
        opened = await self.store.open(records[0], "t1")
        await self.store.append(records[1:], opened.lease)
        return records

    async def begin(self, *texts: str) -> Lease:
        """Put the beginning of a run with these texts on record."""
        rows = _timed([("user_message", "hi"), *(("text", text) for text in texts)])
        records = [Record(RUN, "talk", n, *row) for n, row in enumerate(rows, 1)]
        opened = await self.store.open(records[0], "t1")
        assert opened.lease
        await self.store.append(records[1:], opened.lease)
        return opened.lease

    async def batches(self, after: int = 0) -> list[list[Item]]:
        return [[*batch] async for batch in self.following.subscribe(RUN, after)]


def _timed(rows: Any) -> Any:
    return [(event_type, 1.5 + n, content) for n, (event_type, content) in enumerate(rows)]


# What is read


async def test_a_long_record_is_read_in_few_portions() -> None:
    room = Room()
    records = await room.fill(*(f"piece {n}" for n in range(2_000)))
    batches = await room.batches()
    assert [item for batch in batches for item in batch] == records
    assert max(map(len, batches)) <= MAX_BATCH
    assert len(room.store.reads) <= 8


async def test_large_records_are_read_a_few_at_a_time_and_hardly_twice() -> None:
    room = Room()
    texts = ["x" * (MAX_BUFFERED_CHARS // 10)] * 100
    records = await room.fill("a", *texts, "x" * (3 * MAX_BUFFERED_CHARS), *["b"] * 100)
    batches = await room.batches()
    assert [item for batch in batches for item in batch] == records
    assert all(len(b) == 1 or sum(map(_size, b)) <= MAX_BUFFERED_CHARS for b in batches)
    assert sum(count for _, count in room.store.reads) < 2 * len(records)


@pytest.mark.parametrize("behind", [pytest.param(0, id="the end"), pytest.param(7, id="near it")])
async def test_who_has_seen_the_most_of_a_record_has_the_rest_read_and_no_more(behind: int) -> None:
    room = Room()
    records = await room.fill(*["word"] * 500)
    batches = await room.batches(len(records) - behind)
    assert [item for batch in batches for item in batch] == records[len(records) - behind :]
    assert room.store.reads == [(len(records) - behind - 1, behind + 1)]


@virtually
async def test_a_loss_after_what_a_reader_has_seen_is_not_told_it() -> None:
    store = SharedStore()
    a, b = (replica(store, n, "{}", SLOWLY) for n in "ab")
    run_id = await begin(a)
    await asyncio.sleep(4)
    a.kill()
    store.lose_tail(run_id, 2)
    left = len(log(store, run_id))
    await told(b, run_id)
    records = log(store, run_id)
    assert await told(b, run_id, left) == records[left:]
    reset, *rest = await told(b, run_id, left + 1)
    assert reset.fields["last_seq"] == left
    assert rest == records[left:]


@virtually
async def test_who_reads_a_long_record_waits_for_a_store_that_is_away() -> None:
    store = SharedStore()
    a, b = replica(store, "a", "{}", LONG), replica(store, "b")
    run_id = await begin(a)
    await told(a, run_id)
    subscription = b.runs.subscribe(run_id)
    first = await anext(subscription)
    store.go_away(STORE_WAIT_SECONDS / 2)
    rest = [item async for batch in subscription for item in batch]
    assert [*first, *rest] == log(store, run_id)


@virtually
async def test_a_process_that_leaves_waits_for_no_store() -> None:
    store = SharedStore()
    a, b = replica(store, "a", "{}", LONG), replica(store, "b")
    run_id = await begin(a)
    await told(a, run_id)
    subscription = b.runs.subscribe(run_id)
    await anext(subscription)
    store.go_away(60)
    reading = asyncio.create_task(anext(subscription))  # type: ignore[arg-type, var-annotated]
    await asyncio.sleep(STORE_WAIT_SECONDS / 3)
    assert not reading.done()
    await b.run(b.runs.close())
    with pytest.raises(StoreError):
        async with asyncio.timeout(STORE_WAIT_SECONDS / 3):
            await reading


@virtually
async def test_a_loss_that_shows_live_is_told_before_what_came_in_its_place() -> None:
    room, feed = Room(), CapturingFeed()
    room.following.stores = replace(room.following.stores, feed=feed)
    await room.begin("a", "b", "c", "d")
    subscription = room.following.subscribe(RUN)
    await anext(subscription)
    live = asyncio.create_task(anext(subscription))  # type: ignore[arg-type, var-annotated]
    await asyncio.sleep(1)
    restart = Record(RUN, "talk", 3, "owner_changed", 9.0, None, {"lost_tail": True})
    after = Record(RUN, "talk", 4, "text", 9.5, "y")
    for item in (restart, restart, after):
        feed.put(item)
    reset, *rest = await live
    assert reset == Notice("reset", {"epoch": EPOCH, "last_seq": 2})
    assert rest == [restart, after]
    await subscription.aclose()


@virtually
async def test_a_record_that_the_feed_has_lost_is_read() -> None:
    room, feed = Room(), CapturingFeed()
    room.following.stores = replace(room.following.stores, feed=feed)
    lease = await room.begin("a")
    subscription = room.following.subscribe(RUN)
    await anext(subscription)
    live = asyncio.create_task(anext(subscription))  # type: ignore[arg-type, var-annotated]
    await asyncio.sleep(1)
    lost, told_of = (Record(RUN, "talk", n, "text", 9.0, "b") for n in (3, 4))
    await room.store.append([lost, told_of], lease)
    feed.put(told_of)
    async with asyncio.timeout(1):
        assert await live == [lost, told_of]
    await subscription.aclose()


async def test_who_cannot_be_told_the_end_of_a_run_does_not_wait_for_it() -> None:
    room = Room(WithoutEnds())
    records = await room.fill("a", "b")
    subscription = room.following.subscribe(RUN)
    assert await anext(subscription) == records[:-1]
    with pytest.raises(RunLost, match="changed by hand"):
        async with asyncio.timeout(1):
            await anext(subscription)


async def test_no_batch_is_empty_and_who_has_read_to_the_end_is_no_subscriber_any_more() -> None:
    room = Room()
    await room.fill("a", "b")
    subscription = room.following.subscribe(RUN)
    async for batch in subscription:
        assert batch
        assert room.following.has_subscribers(RUN)
    assert not room.following.has_subscribers(RUN)
    with pytest.raises(StopAsyncIteration):
        await anext(subscription)


@virtually
async def test_who_follows_before_the_store_has_answered_once_is_told_at_once_that_it_is_away() -> (
    None
):
    store = SharedStore()
    a, b = replica(store, "a", "{}", SLOWLY), replica(store, "b")
    run_id = await begin(a)
    store.go_away(60)
    with pytest.raises(StoreError):
        async with asyncio.timeout(STORE_WAIT_SECONDS / 2):
            await anext(b.runs.subscribe(run_id))
    assert not b.runs.has_subscribers(run_id)


# What is held


def _size(item: Item) -> int:
    return record_chars(item) if isinstance(item, Record) else 0


@asynccontextmanager
async def elsewhere(count: int = 0) -> AsyncIterator[list[Face]]:
    """Have two replicas, and a run at the first which has said a word, and has more to say."""
    model = Speaker("one ", ..., *(f"{n} " for n in range(count)))
    async with replicas(model, Speaker()) as helpers:
        await helpers[0].http.post("/v1/runs", json={"input": "hi"})
        await model.has_stopped.wait()
        yield helpers


@pytest.mark.parametrize("at", [pytest.param(0, id="the owner"), pytest.param(1, id="another")])
async def test_a_reader_that_falls_behind_gets_all_records_once_and_in_order(
    at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diptych.runs.run_log.MAX_BUFFERED_ITEMS", 5)
    async with elsewhere(40) as helpers:
        owner, runs = helpers[0].house, helpers[at].house.runs
        entry = (await runs.entries())[0]
        heard: list[Item] = []
        async with aclosing(runs.subscribe(entry.run_id)) as batches:
            while not any(getattr(item, "content", "") == "one " for item in heard):
                heard += await anext(batches)
            owner.model.go.set()
            heard += await anext(batches)  # it is listening now, and takes nothing for a while
            await until(lambda: owner.runs.active_count == 0, 10)
            assert runs.has_subscribers(entry.run_id)
            async for batch in batches:
                heard += batch
        assert not runs.has_subscribers(entry.run_id)
        assert heard == list(await owner.store.read(entry.run_id))


@pytest.mark.parametrize("losing", [False, True])
def test_readers_who_fall_behind_at_every_step_are_told_what_others_are(
    losing: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Many processes, with faults at every call of their store: see `test_simulation_owners`."""
    caplog.set_level("CRITICAL")
    for module in ("run_log", "subscription"):
        monkeypatch.setattr(f"diptych.runs.{module}.MAX_BUFFERED_CHARS", 5)
    monkeypatch.setattr("diptych.runs.run_log.MAX_BUFFERED_ITEMS", 2)
    monkeypatch.setattr("diptych.runs.subscription.FIRST_BATCH", 1)
    monkeypatch.setattr("diptych.runs.subscription.MAX_BATCH", 3)
    wrong = {seed: found(seed, losing=losing) for seed in range(20)}
    assert {seed: what for seed, what in wrong.items() if what} == {}
