"""The store in Redis: fences, what is sent twice, bounds, expiry, and what it costs."""

import asyncio
from collections import Counter
from dataclasses import replace

import pytest
from support.redis_server import RedisServer
from support.redis_stores import end, first, record, soon, stores

from diptych.core.errors import LeaseLost, LogTruncated, Overloaded, RunLost, StoreError
from diptych.ports.entries import Lease
from diptych.stores.redis import RedisSettings, RedisStore
from diptych.stores.redis.server import RedisServer as Server


def keys(server: RedisServer, store: RedisStore) -> list[str]:
    prefix = store._settings.prefix
    found = [key.decode() for key in server.ask("KEYS", f"{prefix}:*")]
    return sorted(key.removeprefix(f"{prefix}:") for key in found)


def connections(server: RedisServer) -> int:
    return len(server.ask("CLIENT", "LIST").splitlines())


# Fences


async def test_when_a_lease_runs_out_its_fence_holds_until_another_claims(server):
    async with stores(server.url, 2, lease_seconds=0.05) as [one, two]:
        opened = await one.open(first(one), "t1")
        await asyncio.sleep(0.06)
        await one.append([record(opened.entry, 2)], opened.lease)  # nobody else wants it
        assert list(await two.unowned_sessions()) == ["talk"]
        assert await two.claim("talk", "t2") == Lease("talk", "t2")
        with pytest.raises(LeaseLost):
            await one.append([record(opened.entry, 3)], opened.lease)
        assert list(await one.renew([opened.lease])) == [opened.lease]


async def test_renewing_takes_a_lease_up_again_that_has_run_out(server):
    async with stores(server.url, 2, lease_seconds=0.05) as [one, two]:
        opened = await one.open(first(one), "t1")
        await asyncio.sleep(0.06)
        assert list(await one.renew([opened.lease])) == []
        assert await two.claim("talk", "t2") is None


# One server for several stores


async def test_stores_share_the_connections_of_a_server_and_nothing_else(server):
    shared = Server(lambda: server.url)

    def store(number: int) -> RedisStore:
        return RedisStore(RedisSettings(lambda: server.url, f"shared:{number}"), shared)

    opened = [store(number) for number in range(20)]
    others = connections(server)
    heard: list[tuple[int, str]] = []
    for number, each in enumerate(opened):
        each.on_hand_over(lambda session, number=number: heard.append((number, session)))
        await each.start()
    assert connections(server) - others < len(opened) / 2
    assert len({each.epoch for each in opened}) == len(opened)
    run = await opened[3].open(first(opened[3]), "t1")
    await opened[3].release(run.lease, hand_over=True)
    await soon(lambda: bool(heard))
    assert heard == [(3, "talk")]

    server.ask("SCRIPT", "FLUSH")
    server.ask("DEL", "shared:4:epoch")
    former = opened[4].epoch
    await soon(lambda: opened[4].epoch != former)
    assert opened[5].unavailable_reason() == ""

    await opened[3].aclose()  # its last process may be waited for
    assert server.ask("PUBSUB", "NUMSUB", "shared:3:control", "shared:2:control")[1::2] == [0, 1]
    with pytest.raises(StoreError, match="closed"):
        await opened[3].sessions()
    assert list(await opened[2].sessions()) == []
    for each in opened[:3] + opened[4:]:
        await each.aclose()
    await soon(lambda: connections(server) <= others)
    late = store(3)
    await late.start()
    assert [entry.session_id for entry in await late.sessions()] == ["talk"]
    await late.aclose()


# Commands that are sent again, because their reply was lost


async def test_records_that_are_on_record_already_are_not_added_again(server):
    async with stores(server.url) as [store]:
        opened = await store.open(first(store), "t1")
        batch = [record(opened.entry, 2, "tool_call"), record(opened.entry, 3)]
        await store.append(batch, opened.lease)
        await store.append(batch, opened.lease)
        await store.append([batch[1], record(opened.entry, 4)], opened.lease)
        assert [r.seq for r in await store.read(opened.entry.run_id)] == [1, 2, 3, 4]
        [session] = await store.sessions()
        assert session.events == 2


async def test_other_records_under_a_seq_that_is_taken_are_refused(server):
    async with stores(server.url) as [store]:
        opened = await store.open(first(store), "t1")
        await store.append([record(opened.entry, 2)], opened.lease)
        with pytest.raises(LogTruncated) as lost:
            await store.append([record(opened.entry, 2, content="another")], opened.lease)
        assert lost.value.seq == 2
        assert (await store.read(opened.entry.run_id, 1))[0].content == "…"


async def test_a_gap_is_a_lost_tail_and_nothing_is_added(server):
    async with stores(server.url) as [store]:
        opened = await store.open(first(store), "t1")
        with pytest.raises(LogTruncated) as lost:
            await store.append([record(opened.entry, 4), record(opened.entry, 5)], opened.lease)
        assert lost.value.seq == 1
        assert len(await store.read(opened.entry.run_id)) == 1


async def test_claiming_a_session_again_with_the_same_token_is_the_same_claim(server):
    async with stores(server.url) as [store]:
        opened = await store.open(first(store), "t1")
        await store.release(opened.lease)
        assert await store.claim("talk", "t2") == await store.claim("talk", "t2")


async def test_a_run_whose_end_is_not_on_record_is_not_taken_out_of_the_queue(server):
    async with stores(server.url) as [store]:
        opened = await store.open(first(store), "t1")
        await store.append([record(opened.entry, 2)], opened.lease)
        with pytest.raises(LogTruncated) as lost:
            await store.finish_run(opened.entry.run_id, (), opened.lease)
        assert lost.value.seq == 2
        assert await store.next_run(opened.lease) == opened.entry.run_id


# Limits and expiry


async def test_a_session_with_too_many_waiting_runs_takes_no_more(server):
    async with stores(server.url, max_queued_runs=2) as [store]:
        await store.open(first(store), "t1")
        await store.open(first(store), "t2")
        with pytest.raises(Overloaded):
            await store.open(first(store), "t3")
        await store.open(first(store, "another"), "t4")


async def test_nothing_of_an_unfinished_session_expires(server):
    async with stores(server.url) as [store]:
        opened = await store.open(first(store), "t1")
        await end(store, opened.entry, opened.lease, "bye")
        await store.open(first(store), "t2")
        prefix, run_id = store._settings.prefix, opened.entry.run_id
        lasting = [key for key in keys(server, store) if server.ask("TTL", f"{prefix}:{key}") < 0]
        assert set(keys(server, store)) - set(lasting) == {
            "lease:talk",
            f"log:{run_id}",
            f"run:{run_id}",
        }


async def test_a_finished_session_expires_and_is_known_to_have_been(server):
    async with stores(server.url, retention=0.05) as [store]:
        opened = await store.open(first(store), "t1")
        await store.put_blob("abc", b"blob")
        await end(store, opened.entry, opened.lease, "bye")
        await asyncio.sleep(0.1)
        run_id = opened.entry.run_id
        for gone in (store.entry(run_id), store.read(run_id)):
            with pytest.raises(RunLost):
                await gone
        assert list(await store.entries()) == list(await store.sessions()) == []
        assert await store.conversation("talk") == ()
        assert await store.unowned_sessions() == []
        assert keys(server, store) == ["blob:abc", "epoch", "order", f"run:{run_id}"]


async def test_what_a_run_was_offered_is_kept_longer_than_the_run(server):
    async with stores(server.url, retention=60) as [store]:
        opened = await store.open(first(store), "t1")
        await store.put_blob("abc", b"blob")
        prefix = store._settings.prefix
        server.ask("EXPIRE", f"{prefix}:blob:abc", 5)
        await store.append([record(opened.entry, 2, "offered", "abc")], opened.lease)
        assert server.ask("TTL", f"{prefix}:blob:abc") > 24 * 3600
        server.ask("EXPIRE", f"{prefix}:blob:abc", 5)
        await store.append([record(opened.entry, 3, "completed")], opened.lease)
        await store.finish_run(opened.entry.run_id, (), opened.lease)
        assert server.ask("TTL", f"{prefix}:blob:abc") > 24 * 3600


async def test_a_long_run_is_read_whole(server):
    async with stores(server.url) as [store]:
        opened = await store.open(first(store), "t1")
        for start in range(2, 4502, 500):
            batch = [record(opened.entry, seq) for seq in range(start, start + 500)]
            await store.append(batch, opened.lease)
        records = await store.read(opened.entry.run_id)
        assert [r.seq for r in records] == list(range(1, 4502))


# What it costs


async def test_a_server_that_has_forgotten_the_scripts_is_sent_them_again(server):
    async with stores(server.url) as [store]:
        server.ask("SCRIPT", "FLUSH")
        opened = await store.open(first(store), "t1")
        await end(store, opened.entry, opened.lease)
        assert await store.delete("talk")
        assert keys(server, store) == ["epoch", "order"]


async def test_a_session_that_begins_anew_knows_nothing_of_the_one_that_expired(server):
    async with stores(server.url, retention=0.05) as [store]:
        opened = await store.open(first(store), "t1")
        await end(store, opened.entry, opened.lease, "bye")
        await asyncio.sleep(0.1)
        again = await store.open(first(store), "t2")
        assert [session.runs for session in await store.sessions()] == [1]
        assert [entry.run_id for entry in await store.entries()] == [again.entry.run_id]
        completed = await store.updated_entries(["completed", "queued"], 10)
        assert (completed.total, len(completed.entries)) == (1, 1)


async def test_opening_a_run_puts_off_once_in_a_while_when_the_earlier_ones_expire(server):
    async with stores(server.url, retention=1000) as [store]:
        earlier = await store.open(first(store), "t1")
        await end(store, earlier.entry, earlier.lease, "bye")
        log = store._key("log", earlier.entry.run_id)
        server.ask("EXPIRE", log, 30)
        opened = await store.open(first(store), "t2")
        assert server.ask("TTL", log) <= 30, "it was done just now"
        server.ask("HSET", store._key("session", "talk"), "refreshed", 1)
        await store.renew([opened.lease])
        assert server.ask("TTL", log) > 1000
        assert server.ask("TTL", store._key("run", earlier.entry.run_id)) > 24 * 3600
        assert server.ask("TTL", store._key("log", opened.entry.run_id)) == -1


async def test_a_run_costs_one_command_for_each_thing_that_is_done(server):
    async with stores(server.url) as [store]:
        warm = await store.open(first(store, "warm"), "t0")  # from here on the server knows them
        await store.append([record(warm.entry, 2)], warm.lease)
        await end(store, replace(warm.entry, seq=2), warm.lease)
        with server.watched() as seen:
            opened = await store.open(first(store), "t1")
            await store.put_blob("abc", b"blob")
            for seq in range(2, 7):
                await store.append([record(opened.entry, seq)], opened.lease)
            await end(store, replace(opened.entry, seq=6), opened.lease)
        assert Counter(seen) == {"EVALSHA": 1 + 5 + 2, "SET": 1}


async def test_stores_of_two_prefixes_see_nothing_of_each_other(server):
    async with stores(server.url) as [one], stores(server.url) as [two]:
        opened = await one.open(first(one), "t1")
        await one.put_blob("abc", b"blob")
        assert one.epoch != two.epoch
        assert list(await two.entries()) == list(await two.unowned_sessions()) == []
        with pytest.raises(RunLost):
            await two.entry(opened.entry.run_id)
        with pytest.raises(StoreError):
            await two.get_blob("abc")


async def test_session_ids_that_look_like_keys_are_kept_apart(server):
    async with stores(server.url) as [store]:
        names = ["a", "a:said", "said:a", "", "*", "grüße \n 😀"]
        for name in names:
            opened = await store.open(first(store, name), "t1")
            await end(store, opened.entry, opened.lease, f"in {name}")
        for name in names:
            assert [m.content for m in await store.conversation(name)] == [f"in {name}"]
        assert {s.session_id for s in await store.sessions()} == set(names)
