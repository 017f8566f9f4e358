"""What processes hear of each other through Redis: records, notices, ends that are asked for."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from support.redis_server import redis_server
from support.redis_stores import end, first, record, soon, stores

from diptych.core.errors import RunNotFound, StoreError, StoreFull, TooManyMessages
from diptych.core.events import Aborted, ApprovalDecided, Failed, MessageQueued
from diptych.core.state import MAX_MESSAGES_PER_RUN
from diptych.ports import Gap, Notice

# Asking for ends


async def test_an_end_of_a_run_that_never_was_or_is_over_is_not_kept(server):
    async with stores(server.url) as [store]:
        with pytest.raises(RunNotFound):
            await store.send_signal(first(store).run_id, Aborted("why"))
        opened = await store.open(first(store), "t1")
        await end(store, opened.entry, opened.lease)
        await store.send_signal(opened.entry.run_id, Failed("deadline", "too late"))
        assert not await store.pending_signals(opened.entry.run_id)


async def test_a_message_is_kept_for_a_run_until_that_has_ended(server):
    async with stores(server.url, 2) as [one, two]:
        heard: list[Any] = []
        one.on_signal(lambda *asked: heard.append(asked))
        opened = await one.open(first(one), "t1")
        await asyncio.sleep(0.05)
        run_id, more = opened.entry.run_id, MessageQueued("more", "m-1")
        for _ in range(3):
            await two.send_signal(run_id, more)
        await two.send_signal(run_id, Aborted("enough"))
        assert await one.pending_signals(run_id) == [more, Aborted("enough")]
        await soon(lambda: len(heard) == 4)
        assert heard == [("talk", run_id, more)] * 3 + [("talk", run_id, Aborted("enough"))]
        await end(one, opened.entry, opened.lease)
        assert not await one.pending_signals(run_id)
        assert not [
            key for key in server.ask("KEYS", "*") if f"asked:{run_id}".encode() in bytes(key)
        ]


async def test_one_message_too_many_is_refused_and_an_end_is_not(server):
    async with stores(server.url) as [store]:
        run_id = (await store.open(first(store), "t1")).entry.run_id
        messages = [MessageQueued("more", f"m-{n}") for n in range(MAX_MESSAGES_PER_RUN)]
        for message in messages:
            await store.send_signal(run_id, message)
        with pytest.raises(TooManyMessages):
            await store.send_signal(run_id, MessageQueued("more", "one too many"))
        await store.send_signal(run_id, messages[0])
        await store.send_signal(run_id, Aborted("enough"))
        assert await store.pending_signals(run_id) == [*messages, Aborted("enough")]
        store.drop_signal(run_id, messages[0])  # it is on record
        await store.send_signal(run_id, decided := ApprovalDecided("call_1_1", "approve", "d-1"))
        left = [*messages[1:], Aborted("enough"), decided]
        async with asyncio.timeout(10):  # the drop is sent in the background
            while await store.pending_signals(run_id) != left:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_a_full_store_takes_ends_and_no_messages(server):
    async with stores(server.url) as [store]:
        run_id = (await store.open(first(store), "t1")).entry.run_id
        server.ask("CONFIG", "SET", "maxmemory", "1")
        try:
            with pytest.raises(StoreFull):
                await store.send_signal(run_id, MessageQueued("more", "m-1"))
            await store.send_signal(run_id, Aborted("enough"))
        finally:
            server.ask("CONFIG", "SET", "maxmemory", "0")
        assert await store.pending_signals(run_id) == [Aborted("enough")]


async def test_messages_of_newer_versions_are_passed_over(server, caplog):
    async with stores(server.url) as [store]:
        heard: list[Any] = []
        store.on_signal(lambda *asked: heard.append(asked))
        opened = await store.open(first(store), "t1")
        await store.subscribe(opened.entry.run_id, heard.append)
        prefix = store._settings.prefix
        for message in ("nonsense", "[1]", '["a","b","[\\"paused\\",null,{}]"]'):
            server.ask("PUBLISH", f"{prefix}:control", message)
        server.ask("PUBLISH", f"{prefix}:updates:{opened.entry.run_id}", "{}\nnonsense")
        await store.send_signal(opened.entry.run_id, Aborted("why"))
        await soon(lambda: len(heard) == 2)
        assert heard == [Gap(), ("talk", opened.entry.run_id, Aborted("why"))]


# The feed


async def test_who_watches_a_run_hears_its_records_and_notices(server):
    async with stores(server.url, 2) as [one, two]:
        heard: list[Any] = []
        opened = await one.open(first(one), "t1")
        await two.subscribe(opened.entry.run_id, heard.append)
        added = [record(opened.entry, 2), record(opened.entry, 3, content="a\nb")]
        await one.append(added, opened.lease)
        notice = Notice("progress", {"step": 1, "text": "a\nb"})
        one.publish_notice(opened.entry.run_id, notice)
        await soon(lambda: len(heard) == 3)
        assert heard == [*added, notice]


async def test_two_who_watch_a_run_hear_the_same_until_they_stop(server):
    async with stores(server.url) as [store]:
        opened = await store.open(first(store), "t1")
        one: list[Any] = []
        two: list[Any] = []
        stop_one = await store.subscribe(opened.entry.run_id, one.append)
        stop_two = await store.subscribe(opened.entry.run_id, two.append)
        await store.append([record(opened.entry, 2)], opened.lease)
        await soon(lambda: len(one) == len(two) == 1)
        stop_one()
        stop_one()
        await store.append([record(opened.entry, 3)], opened.lease)
        await soon(lambda: len(two) == 2)
        assert len(one) == 1
        stop_two()
        pattern = f"{store._settings.prefix}:updates:*"
        await soon(lambda: server.ask("PUBSUB", "CHANNELS", pattern) == [])


async def test_who_stops_and_watches_again_at_once_hears_what_follows(server):
    async with stores(server.url) as [store]:
        opened = await store.open(first(store), "t1")
        heard: list[Any] = []
        for seq in range(2, 30):
            (await store.subscribe(opened.entry.run_id, lambda _: None))()
            stop = await store.subscribe(opened.entry.run_id, heard.append)
            await store.append([record(opened.entry, seq)], opened.lease)
            await soon(lambda seq=seq: len(heard) == seq - 1)
            stop()
        assert [r.seq for r in heard] == list(range(2, 30))


async def test_a_new_owner_makes_who_watches_read_the_record_again(server):
    async with stores(server.url) as [store]:
        opened = await store.open(first(store), "t1")
        heard: list[Any] = []
        await store.subscribe(opened.entry.run_id, heard.append)
        await store.append([record(opened.entry, 2)], opened.lease)
        await store.release(opened.lease)
        lease = await store.claim("talk", "t2")
        await store.append([record(opened.entry, 3)], lease)
        await store.append([record(opened.entry, 4)], lease)
        await soon(lambda: len(heard) == 4)
        assert [item if item == Gap() else item.seq for item in heard] == [2, Gap(), 3, 4]


async def test_a_lost_subscription_comes_back_and_says_that_something_may_be_missing(
    server, caplog
):
    async with stores(server.url) as [store]:
        opened = await store.open(first(store), "t1")
        heard: list[Any] = []
        await store.subscribe(opened.entry.run_id, heard.append)
        server.ask("CLIENT", "KILL", "TYPE", "pubsub")
        await soon(lambda: heard == [Gap()])
        await store.append([record(opened.entry, 2)], opened.lease)
        await soon(lambda: len(heard) == 2)
    assert "broke" not in caplog.text, "a connection that is lost is no bug"


async def test_a_session_that_is_handed_over_is_told_to_other_processes_at_once(server):
    async with stores(server.url, 2) as [one, two]:
        told: list[str] = []
        two.on_hand_over(told.append)
        opened = await one.open(first(one), "t1")
        await asyncio.sleep(0.05)
        await one.release(opened.lease, hand_over=True)
        await soon(lambda: told == ["talk"])
        lease = await two.claim("talk", "t2")
        assert lease
        await two.release(lease)
        await one.release(opened.lease, hand_over=True)  # it is not its own any more
        await asyncio.sleep(0.1)
        assert told == ["talk"]


async def test_one_who_fails_at_what_it_hears_keeps_no_other_from_hearing(server, caplog):
    async with stores(server.url, 2) as [one, two]:
        heard: list[Any] = []
        failed: list[Any] = []

        def fail(*about: Any) -> None:
            failed.append(about)
            raise RuntimeError("a bug of ours")

        for callback in (fail, lambda *about: heard.append(about)):
            one.on_signal(callback)
            one.on_hand_over(callback)
        opened = await two.open(first(two), "t1")
        run_id = opened.entry.run_id
        await one.subscribe(run_id, fail)
        await one.subscribe(run_id, lambda item: heard.append((item,)))
        added = record(opened.entry, 2)
        await two.append([added], opened.lease)
        await soon(lambda: len(heard) == 1)
        await two.send_signal(run_id, Aborted("enough"))
        await two.release(opened.lease, hand_over=True)
        told = [(added,), ("talk", run_id, Aborted("enough")), ("talk",)]
        await soon(lambda: len(heard) == 3)
        assert heard == told, "a connection that was lost would be a gap"
        assert failed == [told[0], (Gap(),), *told[1:]], "what one has missed it must read"
    assert caplog.text.count("a subscriber of the feed failed") == 4
    assert "a bug of ours" in caplog.text


async def test_a_watch_that_is_not_confirmed_in_time_is_refused_and_leaves_nothing():
    with redis_server() as server:
        async with stores(server.url) as [store]:
            opened = await store.open(first(store), "t1")
            server.pause()
            with pytest.raises(StoreError, match="does not answer"):
                await store.subscribe(opened.entry.run_id, lambda _: None)
            assert store._channels == {}
            server.resume()
            await store.subscribe(opened.entry.run_id, lambda _: None)


async def test_runs_that_wait_beyond_their_deadline_are_named_until_they_have_begun(server):
    async with stores(server.url) as [store]:
        opened = await store.open(replace(first(store), metadata={"seconds": 0.0}), "t1")
        lasting = await store.open(replace(first(store), metadata={"seconds": 60.0}), "t2")
        await store.open(first(store), "t3")
        run_id = opened.entry.run_id
        assert await store.overdue_runs() == [run_id]
        assert await store.overdue_runs() == []  # not at once
        due = f"{store._settings.prefix}:due"
        server.ask("ZADD", due, "0", run_id)
        assert await store.overdue_runs() == [run_id]
        server.ask("ZADD", due, "0", run_id, "0", lasting.entry.run_id, "0", "gone")
        await store.append([record(opened.entry, 2)], opened.lease)  # it has begun
        assert await store.overdue_runs() == [lasting.entry.run_id]
        assert server.ask("ZRANGE", due, "0", "-1") == [lasting.entry.run_id.encode()]
