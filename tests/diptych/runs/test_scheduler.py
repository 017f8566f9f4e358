"""Who takes a run to its end, and who follows it: what is seen from inside one process."""

import asyncio
from dataclasses import replace

import pytest
from support.doubles import CountingClock, FunctionTools, tool, types
from support.replicas import replica, told
from support.shared_store import LEASE_SECONDS, SharedStore
from support.stories import begin, now, virtually

from diptych.core.codec import Record
from diptych.core.errors import RunLost, StoreError
from diptych.core.events import (
    Aborted,
    RunRequested,
)
from diptych.ports import Gap, Notice
from diptych.ports.entries import Lease
from diptych.ports.stores import Stores
from diptych.runs.run_log import MAX_BUFFERED_CHARS, MAX_BUFFERED_ITEMS, RunLog, SubscriberBuffer
from diptych.stores.memory.store import MemoryStore

HANG = {"content": "{}", "delay_ms": 1e9}


def record(seq, event_type="text", **metadata):
    return Record("run-0000000a-0", "s", seq, event_type, 1_000_000.0, "x", metadata)


# Readers


def waiting(reader):
    return [getattr(item, "seq", item) for item in reader._items]


async def test_of_a_reader_that_is_behind_nothing_is_kept_but_that_it_must_read_again():
    reader = SubscriberBuffer()
    for n in range(MAX_BUFFERED_ITEMS):
        reader.put(record(n + 1))
    reader.put(Notice("progress"))
    assert waiting(reader) == [*range(1, MAX_BUFFERED_ITEMS + 1)], "notices are missed"
    reader.put(record(MAX_BUFFERED_ITEMS + 1))
    reader.put(Notice("progress"))
    assert waiting(reader)[:2] == [Gap(), MAX_BUFFERED_ITEMS + 1], "records are not"
    assert len(await reader.take()) == 3
    reader.put(record(MAX_BUFFERED_ITEMS + 2))
    assert waiting(reader) == [MAX_BUFFERED_ITEMS + 2]


async def test_what_is_kept_for_a_reader_is_bounded_in_size_as_well():
    reader, text = SubscriberBuffer(), "x" * (MAX_BUFFERED_CHARS // 4)
    for n in range(100):
        reader.put(replace(record(n + 1), content=text))
        assert (
            sum(len(item.content) for item in reader._items if item != Gap())
            <= 1.25 * MAX_BUFFERED_CHARS
        )
    assert waiting(reader)[0] == Gap()
    assert waiting(reader)[-1] == 100


@virtually
async def test_who_follows_at_a_process_that_has_left_is_told_so():
    store = SharedStore()
    a, b = replica(store, "a", HANG), replica(store, "b")
    run_id = await begin(a)
    b.trouble = lambda call: 2.0 if call.name == "watch" else None
    reader = asyncio.create_task(told(b, run_id))
    await asyncio.sleep(1)
    await b.run(b.runs.close())
    (*_, left) = await reader
    assert left.type == "handed_over"
    assert left.fields.keys() == {"run_id", "last_seq", "message"}
    assert (left.fields["run_id"], left.fields["last_seq"]) == (run_id, 2)


# Runs that are opened


@virtually
async def test_a_run_whose_opening_is_answered_late_is_here_once():
    store = SharedStore()
    a = replica(store, "a", {"content": "{}", "delay_ms": 1000}, "x")
    first = await begin(a, "Q0", "s")
    a.trouble = lambda call: 5.0 if call.name == "open" and call.is_done else None
    second = await begin(a, "Q1", "s")  # its turn comes before the store's reply
    for run_id in (first, second):
        heard = [i for i in await told(a, run_id) if isinstance(i, Record)]
        assert heard == store.runs[run_id].records
        assert [r.seq for r in heard] == list(range(1, len(heard) + 1))
    await asyncio.sleep(1)
    assert a.runs.active_count == 0


async def test_a_run_without_an_owner_records_nothing():
    store = MemoryStore("0000000a")
    stores = Stores(store, store, store, store, CountingClock())
    run_log = RunLog("run-0000000a-0", "s", stores)
    with pytest.raises(StoreError):
        await run_log.append([Aborted("x")])
    run_log.lease = Lease("s", "another")
    await run_log.open(RunRequested("hi"), None)
    with pytest.raises(StoreError):
        await run_log.append([Aborted("x")])
    assert types(await store.read("run-0000000a-0")) == ["user_message"]


@virtually
async def test_what_a_process_did_under_a_lease_that_ran_out_is_cancelled_when_it_claims_it_again():
    async def forever(**_):
        await asyncio.Event().wait()

    store = SharedStore()
    tools = FunctionTools({"look": forever}, (tool("look", read_only=True),))
    a = replica(store, "a", '{"tool": "look"}', tools=tools)
    await begin(a)
    await asyncio.sleep(1)
    a.freeze(LEASE_SECONDS + 5)
    a.trouble = lambda call: 60.0 if call.name == "renew" else None
    await asyncio.sleep(LEASE_SECONDS + 10)
    assert [name for name, _ in tools.called] == ["look", "look"]
    assert tools.cancelled == ["look"]
    assert a.runs.active_count == 1


@virtually
async def test_who_follows_a_run_that_turns_out_to_be_lost_is_told_so():
    async def lost(*_, **__):
        raise RunLost("the store has lost it")

    a = replica(SharedStore(), "a", "{}", {"content": "a b c d", "chunk_ms": 1000})
    reader = asyncio.create_task(told(a, await begin(a)))
    await asyncio.sleep(1)
    a.append = lost
    heard = await reader
    assert heard[-1].metadata["code"] == "store_lost"
    assert a.runs.active_count == 0


# Leaving


@virtually
async def test_a_run_that_is_opened_while_its_process_leaves_is_left_to_others():
    store = SharedStore()
    a = replica(store, "a", {"content": "{}", "delay_ms": 100}, "A")
    b = replica(store, "b", {"content": "{}", "delay_ms": 100}, "B")
    a.trouble = lambda call: 1.0 if call.name == "open" else None
    starting = asyncio.create_task(begin(a, "Q", "s"))
    await asyncio.sleep(0.5)
    await a.run(a.runs.close())
    run_id = await starting
    heard = await told(b, run_id)
    assert [i.content for i in heard if getattr(i, "event_type", "") == "text"] == ["B"]
    assert now() - 1_000 < LEASE_SECONDS


# Commands that a record answers
