"""Who takes a run to its end, and who follows it: what is seen from inside one process."""

import asyncio
from dataclasses import replace

import pytest
from support.doubles import CountingClock, FunctionTools, catalog, house, tool, types
from support.replicas import Replica, ask, replica, told
from support.shared_store import LEASE_SECONDS, SharedStore
from support.virtual_time import run_virtually

from diptych.a2a.no_agents import NoAgents
from diptych.core.codec import Record
from diptych.core.commands import Emit
from diptych.core.errors import Overloaded, RunLost, StoreError
from diptych.core.events import (
    Aborted,
    Failed,
    Offered,
    OwnerChanged,
    Replied,
    ReplyRejected,
    Returned,
    RunRequested,
)
from diptych.core.messages import Result
from diptych.core.reading import ActionError
from diptych.core.reducer import replay
from diptych.core.run_settings import RunSettings
from diptych.ports import Gap, Notice
from diptych.ports.entries import IdempotencyKey, Lease
from diptych.ports.stores import Stores
from diptych.runs.backends import Backends
from diptych.runs.definition import AgentDefinition
from diptych.runs.run_log import MAX_BUFFERED_CHARS, MAX_BUFFERED_ITEMS, RunLog, SubscriberBuffer
from diptych.runs.service import RunService
from diptych.stores.memory.leases import NullFeed
from diptych.stores.memory.store import MemoryStore

HANG = {"content": "{}", "delay_ms": 1e9}


def record(seq, event_type="text", **metadata):
    return Record("run-0000000a-0", "s", seq, event_type, 1_000_000.0, "x", metadata)


def now():
    return asyncio.get_running_loop().time()


async def begin(at: Replica, text="hi", session_id=None, **rest):
    return (await at.run(at.runs.start(ask(text, session_id, **rest)))).run_id


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


async def test_a_reader_that_has_ended_gives_what_is_left_and_then_nothing():
    reader = SubscriberBuffer()
    reader.put(record(1))
    reader.close()
    assert len(await reader.take()) == 1
    assert await reader.take() == []


def test_who_follows_at_a_process_that_has_left_is_told_so():
    async def story():
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

    run_virtually(story())


# Runs that are opened


def test_a_run_whose_opening_is_answered_late_is_here_once():
    async def story():
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

    run_virtually(story())


def test_a_run_whose_opening_failed_half_is_taken_up_once_its_lease_has_run_out():
    async def story():
        store = SharedStore()
        a = replica(store, "a", "{}", "x")
        a.trouble = lambda call: "lost" if call.name == "open" and call.is_done else None
        with pytest.raises(StoreError):
            await begin(a, "Q0", "s", idempotency_key=IdempotencyKey("k", "d"))
        a.trouble = lambda _: None
        run_id = await begin(a, "Q0", "s", idempotency_key=IdempotencyKey("k", "d"))
        heard = await told(a, run_id)
        assert types(heard)[-1] == "completed"
        assert len(store.runs) == 1
        assert now() - 1_000 < LEASE_SECONDS + 5

    run_virtually(story())


async def test_observers_hear_of_a_request_that_is_sent_again_once():
    heard = []
    store = MemoryStore("0000000a")
    stores = Stores(store, store, store.leases, NullFeed(), CountingClock())
    model = house("{}", "x").model
    runs = RunService(
        AgentDefinition(), Backends(model, FunctionTools(), NoAgents()), stores, [heard.append]
    )
    idempotency_key = IdempotencyKey("key", "digest")
    entries = [await runs.start(ask("hi", idempotency_key=idempotency_key)) for _ in range(2)]
    assert entries[0].run_id == entries[1].run_id
    await runs.close(1)
    assert types(heard).count("user_message") == 1


async def test_a_run_without_an_owner_records_nothing():
    store = MemoryStore("0000000a")
    stores = Stores(store, store, store.leases, NullFeed(), CountingClock())
    run_log = RunLog("run-0000000a-0", "s", stores)
    with pytest.raises(StoreError):
        await run_log.append([Aborted("x")])
    run_log.lease = Lease("s", "another")
    await run_log.open(RunRequested("hi"), None)
    with pytest.raises(StoreError):
        await run_log.append([Aborted("x")])
    assert types(await store.read("run-0000000a-0")) == ["user_message"]


def test_what_a_process_did_under_a_lease_that_ran_out_is_cancelled_when_it_claims_it_again():
    async def story():
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

    run_virtually(story())


def test_a_run_that_is_being_cancelled_when_its_turn_comes_holds_up_nobody():
    async def story():
        store = SharedStore()
        a = replica(store, "a", {"content": "{}", "delay_ms": 1000}, "x", "{}", "x")
        runs = [await begin(a, f"Q{n}", "s") for n in range(3)]
        a.trouble = lambda call: 2.0 if "aborted" in call.about and not call.is_done else None
        await a.run(a.runs.cancel(runs[1]))
        await told(a, runs[2])
        assert [types(store.runs[r].records)[-1] for r in runs] == [
            "completed",
            "aborted",
            "completed",
        ]
        assert now() - 1_000 < LEASE_SECONDS / 2

    run_virtually(story())


def test_who_follows_a_run_that_turns_out_to_be_lost_is_told_so():
    async def story():
        async def lost(*_, **__):
            raise RunLost("the store has lost it")

        a = replica(SharedStore(), "a", "{}", {"content": "a b c d", "chunk_ms": 1000})
        reader = asyncio.create_task(told(a, await begin(a)))
        await asyncio.sleep(1)
        a.append = lost
        heard = await reader
        assert heard[-1].metadata["code"] == "store_lost"
        assert a.runs.active_count == 0

    run_virtually(story())


# Leaving


def test_a_process_that_has_left_takes_nothing_up():
    async def story():
        store = SharedStore()
        a, b = replica(store, "a", HANG), replica(store, "b", HANG)
        await begin(a, session_id="s")
        await asyncio.sleep(1)
        a.kill()
        b.trouble = lambda call: 1.5 if call.name in {"unowned", "claim"} else None
        while store.sessions["s"].lease_until > now():  # noqa: ASYNC110 - a moment, not an event
            await asyncio.sleep(0.1)
        await asyncio.sleep(1)
        await b.run(b.runs.close())
        await asyncio.sleep(60)
        assert b.runs.active_count == 0
        assert b.model.requests == []
        with pytest.raises(Overloaded):
            await begin(b)

    run_virtually(story())


def test_a_run_that_is_opened_while_its_process_leaves_is_left_to_others():
    async def story():
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

    run_virtually(story())


async def test_a_store_that_ends_with_the_process_leaves_no_run_without_an_end():
    rooms = house({"content": "{}", "delay_ms": 60_000})
    runs = [(await rooms.runs.start(ask(f"Q{n}", "s"))).run_id for n in range(3)]
    await asyncio.sleep(0)
    await rooms.runs.close()
    assert [(await rooms.store.entry(run_id)).status for run_id in runs] == ["aborted"] * 3


# Commands that a record answers


def test_what_another_version_recorded_in_other_words_is_settled_all_the_same():
    broken = '{"tool": '
    run = replay([RunRequested("hi"), Offered(catalog("echo"), "S"), Replied(broken)])
    (due,) = [c for c in run.pending if isinstance(c, Emit)]
    assert isinstance(due.event, ReplyRejected)
    other = ReplyRejected(ActionError(due.event.error.type, "in other words"), broken)
    run = replay([RunRequested("hi"), Offered(catalog("echo"), "S"), Replied(broken), other])
    assert not [c for c in run.pending if isinstance(c, Emit)]


def test_a_result_in_other_words_is_settled_all_the_same():
    calls = '[{"tool": "a", "id": "x"}, {"tool": "b", "after": ["x"]}]'
    failed = Returned(Result("call_1_1", "no", error="failed"), "tool", "a")
    events = [RunRequested("hi"), Offered(catalog("a", "b"), "S"), Replied(calls), failed]
    (skipped,) = [c.event for c in replay(events).pending if isinstance(c, Emit)]
    other = replace(skipped, result=replace(skipped.result, text="in other words"))
    run = replay([*events, other])
    assert not [c for c in run.pending if isinstance(c, Emit)]


def test_a_run_that_was_given_up_by_its_model_twice_settles_its_end():
    events = [
        RunRequested("hi"),
        Offered(catalog(), "S", RunSettings()),
        Replied("{}"),
        Replied(""),
        Replied(""),
    ]
    (due,) = replay(events).pending
    assert isinstance(due, Emit)
    assert isinstance(due.event, Failed)
    assert replay([*events, due.event]).pending == ()


@pytest.mark.parametrize("lost_tail", [False, True])
def test_of_calls_that_have_not_begun_only_a_lost_tail_makes_a_difference(lost_tail):
    from diptych.core.catalog import Catalog  # noqa: PLC0415

    offered = Catalog((tool("charge"), tool("look", read_only=True)))
    calls = '[{"tool": "charge"}, {"tool": "look"}]'
    events = [RunRequested("hi"), Offered(offered, "S"), Replied(calls), OwnerChanged(lost_tail)]
    kinds = [type(command).__name__ for command in replay(events).pending]
    assert kinds == (["Emit", "MakeCall"] if lost_tail else ["MakeCall", "MakeCall"])
