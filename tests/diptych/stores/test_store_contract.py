"""What every store promises: event log, sessions and session leases."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from diptych.core.codec import NOT_IN_MEMORY_VIEW, Record
from diptych.core.errors import (
    InvalidRequest,
    LeaseLost,
    NotResumable,
    RunLost,
    RunNotFound,
    SessionBusy,
    StoreError,
)
from diptych.core.messages import Message
from diptych.ports import SessionLeases
from diptych.ports.entries import IdempotencyKey, Lease, Push, RunEntry
from diptych.ports.stores import EventLog, Pushes, Sessions
from diptych.stores.memory.store import MemoryStore
from diptych.stores.redis import RedisSettings, RedisStore
from diptych.stores.sqlite import SqliteStore


@dataclass
class Store:
    """The ports of one store, and short forms of what tests do with them."""

    log: EventLog
    sessions: Sessions
    leases: SessionLeases
    pushes: Pushes

    def run_id(self) -> str:
        return f"run-{self.log.epoch}-{secrets.token_hex(16)}"

    async def open(self, session_id: str = "talk", token: str = "t1", **rest: Any) -> Any:
        return await self.log.open(first(self.run_id(), session_id), token, **rest)

    async def end(self, entry: RunEntry, lease: Lease, *said: str) -> str | None:
        """Put a run's end on record, and take it out of the queue."""
        await self.log.append([record(entry, entry.seq + 1, "completed")], lease)
        messages = tuple(Message("assistant", text) for text in said)
        return await self.leases.finish_run(entry.run_id, messages, lease)


def first(run_id: str, session_id: str, at: float = 100.5) -> Record:
    return Record(run_id, session_id, 1, "user_message", at, "hi", {"system": "Be brief."})


def record(entry: RunEntry, seq: int, event_type: str = "text", **rest: Any) -> Record:
    fields = {"timestamp": 100.5 + seq, "content": f"piece {seq}", **rest}
    return Record(entry.run_id, entry.session_id, seq, event_type, **fields)


@pytest.fixture(params=["memory", "sqlite", "redis"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    if request.param == "memory":
        memory = MemoryStore("0000000a")
        yield Store(memory, memory, memory, memory)
        return
    if request.param == "sqlite":
        local = SqliteStore(tmp_path / "helper.sqlite")
        await local.start()
        yield Store(local, local, local, local)
        await local.aclose()
        return
    server = request.getfixturevalue("server")
    kept = RedisStore(RedisSettings(partial(str, server.url), f"test:{secrets.token_hex(4)}"))
    await kept.start()
    yield Store(kept, kept, kept, kept)
    await kept.aclose()


# The event log


async def test_a_run_begins_queued_with_its_first_record(store):
    opened = await store.open()
    assert opened.is_new
    assert opened.entry.status == "queued"
    assert opened.entry == await store.log.entry(opened.entry.run_id)
    assert await store.log.read(opened.entry.run_id) == [first(opened.entry.run_id, "talk")]


async def test_the_opener_of_a_free_session_owns_it_and_the_next_one_does_not(store):
    assert (await store.open(token="t1")).lease == Lease("talk", "t1")
    assert (await store.open(token="t2")).lease is None
    assert (await store.open("another", token="t3")).lease == Lease("another", "t3")


async def test_a_session_that_must_be_idle_takes_no_run_while_another_is_unfinished(store):
    key, log = IdempotencyKey("k", "d"), store.log
    mine = first(store.run_id(), "talk")
    opened = await log.open(mine, "t1", key, if_idle=True)
    another = first(store.run_id(), "talk")
    with pytest.raises(SessionBusy):
        await log.open(another, "t2", if_idle=True)
    again = await log.open(another, "t2", key, if_idle=True)
    assert (again.entry.run_id, again.is_new) == (mine.run_id, False)
    assert len(await log.entries("talk")) == 1, "what is refused leaves nothing"
    await log.append([record(opened.entry, 2, "completed", content=None)], opened.lease)
    next_one = await log.open(another, "t2", if_idle=True)
    assert next_one.is_new, "a run that has ended keeps nobody out, though it is still queued"
    assert next_one.lease is None
    with pytest.raises(SessionBusy):
        await log.open(first(store.run_id(), "talk"), "t3", if_idle=True)
    assert await store.leases.finish_run(mine.run_id, (), opened.lease) == another.run_id


async def test_a_run_that_must_follow_another_is_refused_once_its_session_has_gone_on(store):
    key, log = IdempotencyKey("k", "d"), store.log
    old = (await store.open()).entry.run_id
    await store.open("another")
    mine = await store.open(idempotency_key=key, if_newest=old)
    assert mine.is_new
    for asked in ({"if_newest": old}, {"if_newest": "run-0000000a-unknown"}):
        with pytest.raises(NotResumable, match="has continued"):
            await store.open(**asked)
    with pytest.raises(NotResumable):
        await store.open("unknown", if_newest=old)
    again = await store.open(idempotency_key=key, if_newest=old)
    assert (again.entry.run_id, again.is_new) == (mine.entry.run_id, False)
    ids = [entry.run_id for entry in await log.entries("talk")]
    assert ids == [mine.entry.run_id, old], "what is refused leaves nothing"
    assert not await store.sessions.session_exists("unknown")


async def test_a_run_that_was_deleted_before_it_left_its_queue_keeps_nobody_out():
    store = MemoryStore("0000000a")  # in a shared one such a session is not deleted
    opened = await store.open(first("0000000a-1", "talk"), "t1")
    await store.append([record(opened.entry, 2, "completed", content=None)], opened.lease)
    assert await store.delete("talk")
    assert (await store.open(first("0000000a-2", "talk"), "t2", if_idle=True)).is_new


async def test_a_record_is_read_in_portions_too(store):
    opened = await store.open()
    added = [record(opened.entry, seq) for seq in range(2, 8)]
    await store.log.append(added, opened.lease)
    run_id = opened.entry.run_id
    assert await store.log.read(run_id, 1, 3) == added[:3]
    assert await store.log.read(run_id, 4, 3) == added[3:6]
    assert await store.log.read(run_id, 6, 3) == added[5:]
    assert list(await store.log.read(run_id, 7, 3)) == []
    assert len(await store.log.read(run_id, 0, 1_000)) == 7


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(None, id="nothing"),
        pytest.param("line\nline\r\u2028 grüße 😀 \0", id="text that is hard to frame"),
        pytest.param([2**64 - 1, -(2**63)], id="numbers of 64 bits"),
        pytest.param(1763740000.1234567, id="a fraction"),
        pytest.param({"a": [1, {"b": [None, True, ""]}], "": {}}, id="a nested value"),
    ],
)
async def test_a_record_comes_back_as_it_was(store, content):
    opened = await store.open()
    added = record(opened.entry, 2, "tool_result", content=content, metadata={"value": content})
    await store.log.append([added], opened.lease)
    assert (await store.log.read(opened.entry.run_id, 1))[0] == added


async def test_what_a_newer_version_records_is_carried_as_it_is(store):
    opened = await store.open()
    strange = record(opened.entry, 2, "teleported", metadata={"whither": "mars"})
    await store.log.append([strange], opened.lease)
    assert (await store.log.read(opened.entry.run_id, 1))[0] == strange


async def test_the_list_says_of_each_run_what_its_entry_says(store):
    opened = [await store.open(name, token=name) for name in ("a", "b")]
    await store.log.append([record(opened[0].entry, 2)], opened[0].lease)
    await store.end(opened[1].entry, opened[1].lease)
    entries = [await store.log.entry(each.entry.run_id) for each in opened]
    assert list(await store.log.entries()) == entries[::-1]
    assert list(await store.log.entries("b")) == entries[1:]
    assert [(entry.status, entry.seq) for entry in entries] == [("running", 2), ("completed", 2)]
    assert [(entry.created, entry.updated) for entry in entries] == [(100.5, 102.5)] * 2
    assert not any(entry.may_be_truncated for entry in entries)
    assert not await store.leases.may_be_truncated(entries[0].run_id)
    assert not await store.leases.pending_signals(entries[0].run_id)


# Lists


def ids_of(entries: Sequence[RunEntry]) -> list[str]:
    return [entry.run_id for entry in entries]


async def test_entries_are_listed_with_the_run_first_that_was_opened_last(store):
    opened = [await store.open(name) for name in ("b", "a", "b", "c")]
    ids = [o.entry.run_id for o in opened][::-1]
    assert ids_of(await store.log.entries()) == ids
    assert ids_of(await store.log.entries("b")) == [ids[1], ids[3]]
    assert list(await store.log.entries("nobody")) == []


async def test_entries_are_listed_page_by_page(store):
    opened = [await store.open(name) for name in "abcab" * 5]
    ids = [o.entry.run_id for o in opened][::-1]
    of_a = [o.entry.run_id for o in opened if o.entry.session_id == "a"][::-1]
    for session_id, whole in ((None, ids), ("a", of_a)):
        seen: list[str] = []
        while page := await store.log.entries(
            session_id, before=seen[-1] if seen else None, limit=4
        ):
            seen += ids_of(page)
        assert seen == whole
    assert ids_of(await store.log.entries(before=ids[-1], limit=4)) == []


async def test_entries_of_one_status_are_listed_page_by_page(store):
    opened = [await store.open(str(number), f"t{number}") for number in range(130)]
    for each in (opened[0], opened[3], opened[125]):
        await store.end(each.entry, each.lease)
    done = [opened[n].entry.run_id for n in (125, 3, 0)]
    assert ids_of(await store.log.entries(status="completed")) == done
    assert ids_of(await store.log.entries(status="completed", limit=2)) == done[:2]
    assert ids_of(await store.log.entries(status="completed", before=done[0], limit=2)) == done[1:]
    assert ids_of(await store.log.entries("3", status="completed")) == [done[1]]
    assert ids_of(await store.log.entries(status="failed")) == []
    assert len(await store.log.entries(status="queued")) == 127


async def test_a_list_goes_on_only_from_a_run_of_its_own(store):
    one, other = await store.open("a"), await store.open("b")
    for session_id, before in (("a", other), ("nobody", one)):
        with pytest.raises(RunNotFound):
            await store.log.entries(session_id, before=before.entry.run_id, limit=1)
    for unknown in (store.run_id(), "nope", ""):
        with pytest.raises(RunNotFound):
            await store.log.entries(before=unknown, limit=1)


async def updated_at(store: Store, *times: float, end: str = "completed") -> list[str]:
    """Make runs whose last records are of these times."""
    ids = []
    for number, at in enumerate(times):
        opened = await store.open(f"{end} {number}", f"t{number}")
        await store.log.append([record(opened.entry, 2, end, timestamp=at)], opened.lease)
        await store.leases.finish_run(opened.entry.run_id, (), opened.lease)
        ids.append(opened.entry.run_id)
    return ids


async def test_runs_are_listed_by_the_time_of_their_last_record(store):
    ids = await updated_at(store, 300.0, 500.0, 400.0)
    waits = await store.open("waits")
    runs = await store.open("runs")
    await store.log.append([record(runs.entry, 2, timestamp=450.0)], runs.lease)
    everything = ("queued", "running", "completed")
    page = await store.log.updated_entries(everything, 10)
    expected = [ids[1], runs.entry.run_id, ids[2], ids[0], waits.entry.run_id]
    assert (ids_of(page.entries), page.total) == (expected, 5)
    assert list(page.entries) == [await store.log.entry(run_id) for run_id in expected]
    page = await store.log.updated_entries(everything, 2, before=(450_000, runs.entry.run_id))
    assert (ids_of(page.entries), page.total) == (expected[2:4], 5)
    page = await store.log.updated_entries(everything, 10, since=400_000)
    assert (ids_of(page.entries), page.total) == (expected[:3], 3)
    page = await store.log.updated_entries(("running", "failed"), 10)
    assert (ids_of(page.entries), page.total) == ([runs.entry.run_id], 1)


async def test_runs_of_the_same_moment_are_listed_by_their_ids_page_by_page(store):
    ids = await updated_at(store, *[200.0] * 5, 100.0)
    ids += await updated_at(store, *[200.0] * 4, end="failed")
    expected = [*sorted(ids[:5] + ids[6:], reverse=True), ids[5]]
    seen: list[str] = []
    position = None
    while True:
        page = await store.log.updated_entries(("failed", "completed"), 3, before=position)
        assert page.total == 10
        if not page.entries:
            break
        seen += ids_of(page.entries)
        position = (int(page.entries[-1].updated * 1000), page.entries[-1].run_id)
    assert seen == expected


async def test_sessions_that_were_used_last_are_listed_by_their_age(store):
    for number in range(5):
        opened = await store.log.open(first(store.run_id(), str(number), 100.0 + number), "t")
        ended = record(opened.entry, 2, "completed", timestamp=200.0 + number)
        await store.log.append([ended], opened.lease)
        await store.leases.finish_run(opened.entry.run_id, (), opened.lease)
        await asyncio.sleep(0.002)  # Redis goes by its own clock, in ms
    again = await store.log.open(first(store.run_id(), "1", 300.0), "t2")
    assert again.lease
    listed = await store.sessions.sessions(3)
    assert [entry.session_id for entry in listed] == ["1", "3", "4"]
    assert [entry.session_id for entry in await store.sessions.sessions()] == list("01234")
    assert await store.sessions.count_sessions() == 5


async def test_events_are_counted_while_runs_go_on_and_after(store):
    assert await store.sessions.count_events() == await store.sessions.count_sessions() == 0
    one, two = await store.open("one"), await store.open("two", "t2")
    await store.log.append([record(one.entry, 2, "tool_call")], one.lease)
    assert await store.sessions.count_events() == 3
    await store.log.append([record(one.entry, 3, "text")], one.lease)
    entry = await store.log.entry(one.entry.run_id)
    await store.end(entry, one.lease)
    assert await store.sessions.count_events() == 3
    assert await store.sessions.count_events("one") == 2
    assert await store.sessions.count_events("nobody") == 0
    again = await store.open("one", "t3")
    assert await store.sessions.count_events() == 4
    await store.end(again.entry, again.lease)
    await store.end(two.entry, two.lease)
    assert await store.sessions.count_events() == 4
    await store.sessions.delete("one")
    assert await store.sessions.count_events() == 1
    assert await store.sessions.count_sessions() == 1


# What is not there


async def test_a_run_that_never_was_is_unknown(store):
    for run_id in (store.run_id(), "nonsense", "", "run-xyz"):
        with pytest.raises(RunNotFound):
            await store.log.entry(run_id)
        with pytest.raises(RunNotFound):
            await store.log.read(run_id)


async def test_a_run_of_another_epoch_is_lost(store):
    run_id = f"run-{int(store.log.epoch, 16) ^ 1:08x}-{'a' * 32}"
    with pytest.raises(RunLost):
        await store.log.entry(run_id)
    with pytest.raises(RunLost):
        await store.log.read(run_id, 5)


async def test_a_blob_is_given_back_and_stored_once(store):
    await store.log.put_blob("abc", b"\0blob")
    await store.log.put_blob("abc", b"\0blob")
    assert await store.log.get_blob("abc") == b"\0blob"
    with pytest.raises(StoreError):
        await store.log.get_blob("abd")


async def test_a_request_that_is_sent_again_gets_the_run_that_it_began(store):
    idempotency_key = IdempotencyKey("key", "digest")
    opened = await store.open(idempotency_key=idempotency_key)
    await store.log.append([record(opened.entry, 2)], opened.lease)
    again = await store.open(token="t2", idempotency_key=idempotency_key)
    assert not again.is_new
    assert again.lease is None
    assert again.entry == await store.log.entry(opened.entry.run_id)
    assert len(await store.log.entries()) == 1


async def test_a_key_with_another_body_is_refused(store):
    await store.open(idempotency_key=IdempotencyKey("key", "digest"))
    with pytest.raises(InvalidRequest) as refused:
        await store.open(idempotency_key=IdempotencyKey("key", "other"))
    assert refused.value.code == "idempotency_mismatch"
    assert refused.value.param == "Idempotency-Key"
    assert len(await store.log.entries()) == 1


async def test_a_key_whose_run_is_gone_begins_a_new_one(store):
    opened = await store.open(idempotency_key=IdempotencyKey("key", "digest"))
    await store.end(opened.entry, opened.lease)
    await store.sessions.delete("talk")
    assert (await store.open(idempotency_key=IdempotencyKey("key", "digest"))).is_new


# The sessions


async def test_a_conversation_is_what_ended_runs_said_in_order(store):
    one, two = await store.open(), await store.open(token="t2")
    await store.end(one.entry, one.lease, "first", "second")
    assert [m.content for m in await store.sessions.conversation("talk")] == ["first", "second"]
    await store.end(two.entry, one.lease, "third")
    said = await store.sessions.conversation("talk")
    assert said[2] == Message("assistant", "third")
    assert await store.sessions.conversation("nobody") == ()


async def test_a_session_counts_its_runs_and_what_memory_shows_of_them(store):
    one = await store.open()
    await store.open(token="t2")
    assert await store.sessions.session_exists("talk")
    shown = [record(one.entry, 2, "offered"), record(one.entry, 3, "tool_call")]
    await store.log.append(shown, one.lease)
    [entry] = await store.sessions.sessions()
    assert (entry.session_id, entry.runs, entry.events) == ("talk", 2, 3)
    assert (entry.created, entry.updated) == (100.5, 103.5)


async def test_a_session_with_unfinished_runs_is_not_deleted(store):
    await store.open()
    with pytest.raises(InvalidRequest) as refused:
        await store.sessions.delete("talk")
    assert refused.value.code == "session_busy"


async def test_a_session_whose_last_run_is_being_counted_is_deleted_after_that(store):
    opened = await store.open()
    await store.log.append([record(opened.entry, 2, "completed", content=None)], opened.lease)
    deleted, _ = await asyncio.gather(
        store.sessions.delete("talk"),
        store.leases.finish_run(opened.entry.run_id, (), opened.lease),
    )
    assert deleted
    assert not await store.sessions.session_exists("talk")


async def test_a_deleted_session_leaves_nothing(store):
    opened = await store.open()
    await store.end(opened.entry, opened.lease, "bye")
    assert await store.sessions.delete("talk")
    assert not await store.sessions.delete("talk")
    assert not await store.sessions.session_exists("talk")
    assert await store.sessions.conversation("talk") == ()
    assert list(await store.sessions.sessions()) == []
    assert list(await store.log.entries()) == []
    with pytest.raises(RunNotFound):
        await store.log.read(opened.entry.run_id)


async def test_a_deleted_run_leaves_nothing_and_the_others_stay(store):
    one, two = [await store.open(token=token) for token in ("t1", "t2")]
    with pytest.raises(InvalidRequest):
        await store.sessions.delete_run("talk", two.entry.run_id, 0)
    for each, words in ((one, "one"), (two, "two")):
        await store.end(each.entry, one.lease, words)
    run_id = one.entry.run_id
    shown = sum(r.event_type not in NOT_IN_MEMORY_VIEW for r in await store.log.read(run_id))
    before = await store.sessions.count_events("talk")
    assert await store.sessions.delete_run("talk", run_id, shown)
    assert not await store.sessions.delete_run("talk", run_id, shown)
    assert [m.content for m in await store.sessions.conversation("talk")] == ["two"]
    assert [e.run_id for e in await store.log.entries("talk")] == [two.entry.run_id]
    assert await store.sessions.count_events("talk") == before - shown
    assert await store.sessions.count_events() == before - shown
    with pytest.raises(RunNotFound):
        await store.log.read(run_id)
    await store.sessions.delete_run("talk", two.entry.run_id, before - shown)
    assert not await store.sessions.session_exists("talk")
    assert await store.sessions.count_events() == 0


# Leases


async def test_runs_of_a_session_have_their_turns_in_the_order_in_which_they_were_opened(store):
    one, two, three = [await store.open(token=token) for token in ("t1", "t2", "t3")]
    assert await store.leases.next_run(one.lease) == one.entry.run_id
    assert await store.end(one.entry, one.lease) == two.entry.run_id
    assert await store.leases.next_run(one.lease) == two.entry.run_id
    assert await store.end(two.entry, one.lease) == three.entry.run_id
    assert await store.end(three.entry, one.lease) is None


async def test_a_session_is_free_after_its_last_run(store):
    opened = await store.open()
    await store.end(opened.entry, opened.lease)
    assert await store.leases.claim("talk", "t2") is None
    assert list(await store.leases.unowned_sessions()) == []
    assert (await store.open(token="t3")).lease == Lease("talk", "t3")


async def test_a_run_can_end_before_its_turn(store):
    one, two, three = [await store.open(token=token) for token in ("t1", "t2", "t3")]
    assert await store.end(two.entry, one.lease) == one.entry.run_id
    assert await store.end(one.entry, one.lease) == three.entry.run_id


async def test_a_run_that_is_not_in_the_queue_adds_no_messages(store):
    one, two = [await store.open(token=token) for token in ("t1", "t2")]
    await store.end(one.entry, one.lease, "once")
    said = (Message("assistant", "twice"),)
    assert await store.leases.finish_run(one.entry.run_id, said, one.lease) == two.entry.run_id
    assert [m.content for m in await store.sessions.conversation("talk")] == ["once"]


async def test_a_session_with_an_owner_or_without_runs_cannot_be_claimed(store):
    assert await store.leases.claim("nobody", "t9") is None
    await store.open()
    assert await store.leases.claim("talk", "t9") is None


async def test_a_released_session_can_be_claimed_at_once(store):
    opened = await store.open()
    assert list(await store.leases.unowned_sessions()) == []
    await store.leases.release(opened.lease)
    assert list(await store.leases.unowned_sessions()) == ["talk"]
    lease = await store.leases.claim("talk", "t2")
    assert lease == Lease("talk", "t2")
    assert await store.leases.next_run(lease) == opened.entry.run_id
    assert list(await store.leases.unowned_sessions()) == []


async def test_the_opener_of_a_released_session_gets_the_older_runs_too(store):
    one = await store.open()
    await store.leases.release(one.lease)
    two = await store.open(token="t2")
    assert two.lease == Lease("talk", "t2")
    assert await store.leases.next_run(two.lease) == one.entry.run_id


async def test_a_former_owner_can_write_nothing(store):
    opened = await store.open()
    await store.leases.release(opened.lease)
    await store.leases.claim("talk", "t2")
    with pytest.raises(LeaseLost):
        await store.log.append([record(opened.entry, 2)], opened.lease)
    with pytest.raises(LeaseLost):
        await store.leases.next_run(opened.lease)
    with pytest.raises(LeaseLost):
        await store.leases.finish_run(opened.entry.run_id, (), opened.lease)
    await store.leases.release(opened.lease)
    assert list(await store.leases.unowned_sessions()) == []
    assert len(await store.log.read(opened.entry.run_id)) == 1


async def test_renewing_names_the_leases_that_are_lost(store):
    one, two = await store.open("one"), await store.open("two", token="t2")
    await store.leases.release(one.lease)
    await store.leases.claim("one", "t3")
    assert list(await store.leases.renew([one.lease, two.lease])) == [one.lease]
    assert list(await store.leases.renew([])) == []


async def test_a_run_that_waits_for_a_decision_says_so_until_it_does_not(store):
    opened = await store.open()
    run_id = opened.entry.run_id
    await store.log.append([record(opened.entry, 2)], opened.lease, awaits_input=True)
    assert (await store.log.entry(run_id)).status == "input-required"
    waiting = await store.log.entries(status="input-required", limit=10)
    assert [entry.run_id for entry in waiting] == [run_id]
    listed = await store.log.updated_entries(["input-required"], 10)
    assert ([entry.run_id for entry in listed.entries], listed.total) == ([run_id], 1)
    await store.log.append([record(opened.entry, 3)], opened.lease)
    assert (await store.log.entry(run_id)).status == "running"
    await store.log.append([record(opened.entry, 4)], opened.lease, awaits_input=True)
    await store.log.append([record(opened.entry, 5, "aborted")], opened.lease)
    assert (await store.log.entry(run_id)).status == "aborted"


# Push notifications


async def test_a_push_is_taken_by_one_process_at_a_time_until_all_is_sent(store):
    run_id, pushes = (await store.open()).entry.run_id, store.pushes
    late, due = Push(run_id, "a b", b"{1 2}"), Push(run_id, "c", b"\x00 x", 3)
    await pushes.put_push(late, 600)
    await pushes.put_push(due, 0)
    await pushes.put_push(Push(run_id, "never", b"x"), None)
    assert list(await pushes.pushes(run_id))[:2] == [late, due]
    assert list(await pushes.take_due_pushes(600)) == [due]
    assert list(await pushes.take_due_pushes(600)) == []
    await pushes.put_push(Push(run_id, "c", b"changed"), 600)
    assert await pushes.advance_push(Push(run_id, "c", b"", 7), 0) == b"changed"
    assert list(await pushes.take_due_pushes(600)) == [Push(run_id, "c", b"changed", 7)]
    assert await pushes.advance_push(Push(run_id, "c", b"", 8), None) == b"changed"
    assert list(await pushes.take_due_pushes(0)) == []
    await pushes.delete_push(run_id, "c")
    await pushes.delete_push(run_id, "c")
    assert await pushes.advance_push(due, 0) is None
    assert [push.config_id for push in await pushes.pushes(run_id)] == ["a b", "never"]


async def test_pushes_go_with_their_run(store):
    opened = await store.open()
    run_id, pushes = opened.entry.run_id, store.pushes
    await pushes.put_push(Push(run_id, "a", b"x"), 0)
    await store.end(opened.entry, opened.lease)
    assert await store.sessions.delete("talk")
    assert list(await pushes.pushes(run_id)) == list(await pushes.take_due_pushes(0)) == []
    with pytest.raises(RunNotFound):
        await pushes.put_push(Push(run_id, "a", b"x"), 0)
