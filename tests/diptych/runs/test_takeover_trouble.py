"""Ends asked for elsewhere, stores that lose things, logs of newer versions.

As `test_takeover`: stories of processes and a store, in virtual time.
"""

import asyncio
from dataclasses import replace
from functools import partial

import pytest
from support.doubles import FunctionAgents, facts, types
from support.replicas import replica, told
from support.shared_store import SharedStore
from support.stories import (
    CALL,
    SLOWLY,
    TAKEN_UP,
    Counted,
    Hung,
    begin,
    ends,
    log,
    now,
    records,
    virtually,
)

from diptych.core.codec import Record
from diptych.core.errors import RunLost, StoreError
from diptych.core.events import Origin
from diptych.core.messages import ChildRun, Message, Used
from diptych.ports import Notice

# Ends that are asked for elsewhere


@virtually
async def test_a_run_is_cancelled_from_another_process_at_once():
    store, charge = SharedStore(), Counted()
    a, b = (replica(store, n, CALL, tools=charge.tools) for n in "ab")
    run_id = await begin(a)
    await asyncio.sleep(1)
    asked = now()
    entry = await b.run(b.runs.cancel(run_id, "enough"))
    assert entry.status == "aborted"
    assert now() - asked < 1
    assert facts(log(store, run_id))[-2:] == ["tool_error", "aborted"]


@pytest.mark.parametrize("opener", ["a", "b"])
@virtually
async def test_a_run_that_waits_is_cancelled_from_another_process_at_once(opener):
    store = SharedStore()
    a, b = (replica(store, n, model=Hung()) for n in "ab")
    await begin(a, "Q0", "s")
    run_id = await begin({"a": a, "b": b}[opener], "Q1", "s")
    await asyncio.sleep(1)
    asked = now()
    assert (await b.run(b.runs.cancel(run_id))).status == "aborted"
    assert now() - asked < 1
    assert types(log(store, run_id)) == ["user_message", "aborted"]
    assert store.sessions["s"].queue != [run_id]


@virtually
async def test_an_owner_that_does_not_hear_of_a_cancel_is_asked_again():
    store = SharedStore()
    a, b = replica(store, "a", model=Hung()), replica(store, "b")
    run_id = await begin(a)
    await asyncio.sleep(1)
    a.loses_messages = lambda: now() < 1_002
    assert (await b.run(b.runs.cancel(run_id))).status == "aborted"


@virtually
async def test_a_cancel_at_the_last_moment_leaves_what_was_said():
    store = SharedStore()
    a, b = replica(store, "a", "{}", "A1"), replica(store, "b")

    def cancel(call):
        if call.name == "append" and not call.is_done and "completed" in call.about:
            cancels.append(asyncio.create_task(b.run(b.runs.cancel(run_ids[0]))))
            return 0.5
        return 1.0 if call.name == "conclude" and not call.is_done else None

    cancels, run_ids = [], []
    a.trouble = cancel
    run_ids.append(await begin(a, "Q1", "s"))
    assert ends(await told(b, run_ids[0])) == ["completed"]
    await asyncio.gather(*cancels)
    await asyncio.sleep(5)
    assert store.conversation("s") == (Message("user", "Q1"), Message("assistant", "A1"))


@virtually
async def test_a_cancel_does_not_wait_for_ever_for_a_store_that_is_away():
    store = SharedStore()
    a = replica(store, "a", model=Hung())
    run_id = await begin(a)
    await asyncio.sleep(1)
    store.go_away(20)
    with pytest.raises(StoreError):
        await a.run(a.runs.cancel(run_id))
    assert now() - 1_001 < 18
    assert ends(await told(a, run_id)) == ["aborted"]


@virtually
async def test_a_run_that_waits_is_out_of_time_where_another_process_owns_the_session():
    store = SharedStore()
    a, b = (replica(store, n, model=Hung()) for n in "ab")
    await begin(a, "Q0", "s")
    run_id = await begin(b, "Q1", "s", origin=Origin(seconds=5))
    heard = await told(b, run_id)
    assert types(heard) == ["user_message", "failed"]
    assert now() - 1_000 == pytest.approx(5, abs=0.5)


# A store that loses things


@virtually
async def test_a_store_that_was_emptied_ends_its_runs_and_says_so(caplog):
    store = SharedStore()
    a, b = replica(store, "a", model=Hung()), replica(store, "b")
    run_id = await begin(a)
    reader = asyncio.create_task(told(a, run_id))
    elsewhere = asyncio.create_task(told(b, run_id))
    await asyncio.sleep(1)
    store.flush()
    emptied = now()
    heard = await reader
    assert heard[-1].metadata["code"] == "store_lost"
    assert now() - emptied < 10
    with pytest.raises(RunLost):
        await elsewhere
    assert a.runs.active_count == 0
    assert await begin(a) in store.runs


@virtually
async def test_a_full_store_ends_a_run_on_record():
    store, charge = SharedStore(), Counted()
    a = replica(store, "a", CALL, "{}", "Done.", tools=charge.tools)
    run_id = await begin(a)
    await asyncio.sleep(1)
    store.is_full = True
    heard = await told(a, run_id)
    assert heard[-1].metadata["code"] == "store_full"
    assert records(heard) == log(store, run_id)
    assert store.sessions[heard[-1].session_id].queue == []


@virtually
async def test_a_run_that_nobody_can_rebuild_ends_and_holds_up_nobody():
    store = SharedStore()
    a, b = replica(store, "a", model=Hung()), replica(store, "b", "{}", "Hello.")
    run_id = await begin(a, "Q", "s")
    waits = await begin(a, "Q2", "s")
    await asyncio.sleep(1)
    a.kill()
    store.blobs.clear()
    assert ends(await told(b, run_id)) == ["failed"]
    assert log(store, run_id)[-1].metadata["code"] == "store_lost"
    assert ends(await told(b, waits)) == ["completed"]


@pytest.mark.parametrize(
    "is_late", [pytest.param(True, id="no time left"), pytest.param(False, id="cancelled")]
)
@virtually
async def test_who_reads_a_run_that_ends_in_the_queue_hears_what_was_lost_before(is_late):
    store = SharedStore()
    a, b = (replica(store, n, "{}", SLOWLY) for n in "ab")
    run_id = await begin(a, origin=Origin(seconds=5.0 if is_late else None))
    await asyncio.sleep(2)
    a.kill()
    store.lose_tail(run_id, len(log(store, run_id)) - 1)
    if not is_late:
        b.spawn(b.runs.cancel(run_id))
    reader = await told(b, run_id)
    for seen in (2, 3):
        heard = await told(b, run_id, seen)
        assert heard[0] == Notice("reset", {"epoch": store.epoch, "last_seq": 1})
        assert heard[1:] == log(store, run_id)[1:]
    assert ends(reader) == ["failed" if is_late else "aborted"]


# A log of a newer version


def _of_a_newer_version(store, run_id, what):
    run = store.runs[run_id]
    if what == "unknown event":
        seq = len(run.records) + 1
        run.records.append(Record(run_id, run.session_id, seq, "telepathy", 1.0))
    else:
        run.records[0] = replace(run.records[0], metadata={"format": 2})


@pytest.mark.parametrize("what", ["unknown event", "unknown format"])
@virtually
async def test_a_log_of_a_newer_version_is_left_alone(what, caplog):
    store = SharedStore()
    a, b = replica(store, "a", model=Hung()), replica(store, "b", "{}", "Hello.")
    run_id = await begin(a, "Q", "s")
    await asyncio.sleep(1)
    a.kill()
    _of_a_newer_version(store, run_id, what)
    before = list(log(store, run_id))
    await asyncio.sleep(60)
    assert log(store, run_id) == before
    assert caplog.text.count("cannot take over run") == 1
    assert ends(await told(b, await begin(b))) == ["completed"]
    waits = await begin(b, "Q2", "s")
    await asyncio.sleep(5)
    assert types(log(store, waits)) == ["user_message"]
    assert store.sessions["s"].owner is None


@virtually
async def test_a_session_that_cannot_be_asked_for_keeps_nobody_from_the_next(monkeypatch):
    store = SharedStore()
    a = replica(store, "a", model=Hung())
    replica(store, "b", "{}", "Hello.")
    broken, beside = await begin(a, "Q", "broken"), await begin(a, "Q", "beside")
    await asyncio.sleep(1)
    a.kill()
    queue_head = store.queue_head

    def refused(session_id):
        if session_id == "broken":
            raise StoreError("the store refuses a command")
        return queue_head(session_id)

    monkeypatch.setattr(store, "queue_head", refused)
    await asyncio.sleep(30)
    assert ends(log(store, beside)) == ["completed"]
    assert not ends(log(store, broken))


@virtually
async def test_what_breaks_while_a_run_is_taken_up_is_on_the_log(caplog):
    store = SharedStore()
    a, b = replica(store, "a", model=Hung()), replica(store, "b")

    async def broken(_):
        raise ValueError("what nobody foresaw")

    b.pending_signals = broken
    run_id = await begin(a)
    await asyncio.sleep(1)
    a.kill()
    await asyncio.sleep(20 * TAKEN_UP)
    assert log(store, run_id)[-1].metadata["code"] == "too_many_owners"
    assert "died or failed" in log(store, run_id)[-1].content
    assert "cannot execute session" in caplog.text
    assert "what nobody foresaw" in caplog.text


@virtually
async def test_leases_are_renewed_and_taken_after_an_error_that_nobody_foresaw(caplog):
    store = SharedStore()
    a = replica(store, "a", {"content": "{}", "delay_ms": 60_000}, "Hello.")
    b = replica(store, "b", "{}", "Hello.")
    renew, look, broken = a.renew, b.unowned_sessions, [True, True]

    async def breaks_once(*about, of):
        if broken:
            broken.pop()
            raise ValueError("what nobody foresaw")
        return await of(*about)

    a.renew, b.unowned_sessions = partial(breaks_once, of=renew), partial(breaks_once, of=look)
    run_id = await begin(a)
    await told(a, run_id)
    assert "owner_changed" not in [record.event_type for record in log(store, run_id)]
    other = await begin(a)
    await asyncio.sleep(1)
    a.kill()
    await told(b, other)
    assert caplog.text.count("ValueError: what nobody foresaw") == 2


@pytest.mark.parametrize("after", [0.0, 0.3, 0.6, 1.0])
@virtually
async def test_a_cancel_that_a_leaving_process_takes_is_for_the_next_owner(after):
    async def slow(**_):
        try:
            await asyncio.sleep(1_000)
        except asyncio.CancelledError:
            await asyncio.sleep(0.8)
            raise

    store = SharedStore()
    a, _ = replica(store, "a", CALL, tools={"charge": slow}), replica(store, "b", model=Hung())
    run_id = await begin(a)
    await asyncio.sleep(1)
    leaving = a.spawn(a.runs.close())
    await asyncio.sleep(after)
    await a.run(a.runs.cancel(run_id, "please"))
    await leaving
    await asyncio.sleep(3 * TAKEN_UP)
    assert (log(store, run_id)[-1].event_type, log(store, run_id)[-1].content) == (
        *("aborted", "please"),
    )


@pytest.mark.parametrize("how", ["cancel", "deadline"])
@virtually
async def test_a_run_that_ends_while_nobody_owns_it_cancels_its_children_all_the_same(how):
    class Lasting(FunctionAgents):
        """Its tasks go on without whoever has sent them."""

        async def delegate(self, request, progress):
            progress(ChildRun("http://worker", "task-1", "working", used=Used(10)))
            try:
                await asyncio.sleep(1_000)
            except asyncio.CancelledError:
                cancelled.append((request.is_taken_over, request.leaves_task()))
                raise

    store, cancelled = SharedStore(), []
    call = '{"agent": "worker", "task": "work"}'
    agents = Lasting({"worker": None})
    a, b = (replica(store, n, call, agents=agents) for n in "ab")
    run_id = await begin(a, origin=Origin(seconds=4.0 if how == "deadline" else None))
    await asyncio.sleep(1)
    a.kill()
    if how == "cancel":
        await b.run(b.runs.cancel(run_id, "enough"))
    await asyncio.sleep(3 * TAKEN_UP)
    assert cancelled == [(False, True), (True, False)]  # who is dead cancels nothing
    *_, child, end = log(store, run_id)
    assert (child.event_type, child.metadata["child"]["task_id"]) == ("delegation_error", "task-1")
    assert end.event_type == ("aborted" if how == "cancel" else "failed")
