"""The store in Redis: fences, what is sent twice, bounds, expiry, and what it costs."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from support.redis_server import RedisServer, redis_server
from support.redis_stores import end, first, record, stores

from diptych.core.errors import LeaseLost, LogTruncated, Overloaded, RunLost, StoreError
from diptych.core.messages import Message
from diptych.ports.entries import IdempotencyKey, Lease
from diptych.stores.redis import RedisStore


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


def keys(server: RedisServer, store: RedisStore) -> list[str]:
    prefix = store._settings.prefix
    found = [key.decode() for key in server.ask("KEYS", f"{prefix}:*")]
    return sorted(key.removeprefix(f"{prefix}:") for key in found)


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


async def test_a_late_renewal_does_not_keep_a_session_that_was_released(server):
    async with stores(server.url, 2) as [one, two]:
        opened = await one.open(first(one), "t1")
        await end(one, opened.entry, opened.lease)
        await one.renew([opened.lease])
        assert (await two.open(first(two), "t2")).lease == Lease("talk", "t2")


async def test_who_has_released_a_session_writes_no_more(server):
    async with stores(server.url) as [store]:
        opened = await store.open(first(store), "t1")
        await store.release(opened.lease)
        with pytest.raises(LeaseLost):
            await store.append([record(opened.entry, 2)], opened.lease)
        assert list(await store.renew([opened.lease])) == [opened.lease]
        assert list(await store.unowned_sessions()) == ["talk"]


async def test_one_of_many_claims_gets_the_session(server):
    async with stores(server.url, 3) as replicas:
        opened = await replicas[0].open(first(replicas[0]), "t1")
        await replicas[0].release(opened.lease)
        claims = [replicas[i % 3].claim("talk", f"token-{i}") for i in range(60)]
        won = [lease for lease in await asyncio.gather(*claims) if lease]
        assert len(won) == 1


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


async def test_a_run_that_is_opened_again_is_the_same_and_as_far_as_it_was(server):
    async with stores(server.url) as [store]:
        one = first(store)
        opened = await store.open(one, "t1", IdempotencyKey("key", "digest"))
        again = await store.open(one, "t1", IdempotencyKey("key", "digest"))
        assert again == opened
        assert len(await store.entries()) == 1


async def test_claiming_a_session_again_with_the_same_token_is_the_same_claim(server):
    async with stores(server.url) as [store]:
        opened = await store.open(first(store), "t1")
        await store.release(opened.lease)
        assert await store.claim("talk", "t2") == await store.claim("talk", "t2")


async def test_finishing_a_run_again_adds_its_messages_once(server):
    async with stores(server.url) as [store]:
        opened = await store.open(first(store), "t1")
        await end(store, opened.entry, opened.lease, "bye")
        again = [Message("assistant", "bye")]
        assert await store.finish_run(opened.entry.run_id, again, opened.lease) is None
        assert len(await store.conversation("talk")) == 1


async def test_a_run_whose_end_is_not_on_record_is_not_taken_out_of_the_queue(server):
    async with stores(server.url) as [store]:
        opened = await store.open(first(store), "t1")
        await store.append([record(opened.entry, 2)], opened.lease)
        with pytest.raises(LogTruncated) as lost:
            await store.finish_run(opened.entry.run_id, (), opened.lease)
        assert lost.value.seq == 2
        assert await store.next_run(opened.lease) == opened.entry.run_id


async def test_one_key_that_is_sent_by_many_at_once_begins_one_run(server):
    async with stores(server.url, 2) as replicas:
        idempotency_key = IdempotencyKey("key", "digest")
        asked = [replicas[i % 2] for i in range(20)]
        opened = await asyncio.gather(
            *(s.open(first(s), f"t{i}", idempotency_key) for i, s in enumerate(asked))
        )
        assert sum(o.is_new for o in opened) == 1
        assert len({o.entry.run_id for o in opened}) == 1


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
        assert keys(server, store) == ["blob:abc", "epoch", "lists", "order", f"run:{run_id}"]


async def test_earlier_runs_of_a_session_are_kept_as_long_as_its_newest(server):
    async with stores(server.url, retention=0.6) as [store]:
        entries = []
        for _ in range(8):
            opened = await store.open(first(store), "t1")
            entries.append(opened.entry)
            await asyncio.sleep(0.15)
            await end(store, opened.entry, opened.lease, "bye")
        assert [e.run_id for e in await store.entries("talk")] == [e.run_id for e in entries[::-1]]
        assert len(await store.conversation("talk")) == 8


async def test_earlier_runs_are_kept_while_a_run_of_their_session_is_unfinished(server):
    async with stores(server.url, retention=1) as [store]:
        earlier = await store.open(first(store), "t1")
        await end(store, earlier.entry, earlier.lease, "bye")
        opened = await store.open(first(store), "t2")  # it waits for somebody's approval, say
        for _ in range(15):
            await asyncio.sleep(0.1)
            assert list(await store.renew([opened.lease])) == []
        assert len(await store.read(earlier.entry.run_id)) == 2
        await end(store, opened.entry, opened.lease, "bye")
        assert len(await store.entries("talk")) == 2
        assert [session.runs for session in await store.sessions()] == [2]


class Aged:
    """A session of runs that have ended, whose time is nearly over."""

    def __init__(self, server: RedisServer, store: RedisStore, session_id: str) -> None:
        self.server, self.store, self.session_id = server, store, session_id
        self.run_id = ""

    async def age(self) -> None:
        opened = await self.store.open(first(self.store, self.session_id), "t1")
        await end(self.store, opened.entry, opened.lease, "bye")
        self.run_id = opened.entry.run_id
        self.server.ask("HSET", self.store._key("session", self.session_id), "refreshed", 1)
        for kind in ("log", "run"):
            self.server.ask("EXPIRE", self.store._key(kind, self.run_id), 30)

    def seconds(self, kind: str = "log") -> int:
        left: int = self.server.ask("TTL", self.store._key(kind, self.run_id))
        return left


async def test_opening_a_run_puts_off_when_the_earlier_ones_expire(server):
    async with stores(server.url, retention=1000) as [store]:
        aged = Aged(server, store, "talk")
        await aged.age()
        opened = await store.open(first(store), "t2")
        assert aged.seconds() > 1000
        assert aged.seconds("run") > 24 * 3600
        assert server.ask("TTL", store._key("log", opened.entry.run_id)) == -1


async def test_renewing_leases_puts_off_little_at_once_and_seldom(server):
    async with stores(server.url, retention=1000) as [store]:
        long, short = Aged(server, store, "long"), Aged(server, store, "short")
        leases = []
        for aged in (long, short):
            await aged.age()
            leases.append((await store.open(first(store, aged.session_id), "t2")).lease)
            server.ask("HSET", store._key("session", aged.session_id), "refreshed", 1)
            server.ask("EXPIRE", store._key("log", aged.run_id), 30)
        many = [each for n in range(1000) for each in (n - 1000, f"run-{n}")]
        server.ask("ZADD", store._key("runs", "long"), *many)
        await store.renew(leases)
        assert long.seconds() > 1000
        assert short.seconds() <= 30, "its turn is when leases are renewed next"
        await store.renew(leases)
        assert short.seconds() > 1000
        server.ask("CONFIG", "RESETSTAT")
        await store.renew(leases)
        assert "zrange" not in server.calls()


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


async def test_a_deleted_session_leaves_no_key(server):
    async with stores(server.url) as [store]:
        opened = await store.open(first(store), "t1")
        await end(store, opened.entry, opened.lease, "bye")
        await store.delete("talk")
        assert keys(server, store) == ["epoch", "lists", "order"]


# What it costs


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


async def test_a_server_that_was_restarted_is_sent_the_scripts_once(server):
    async with stores(server.url) as [store]:
        server.ask("SCRIPT", "FLUSH")
        opened = await store.open(first(store), "t1")
        server.ask("CONFIG", "RESETSTAT")
        await store.append([record(opened.entry, 2)], opened.lease)
        await store.append([record(opened.entry, 3)], opened.lease)
        calls = server.calls()
        assert (calls["evalsha"], calls["eval"]) >= (2, 1)
        assert calls["xadd"] == 2


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
