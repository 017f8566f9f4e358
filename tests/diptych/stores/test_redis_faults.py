"""What becomes of runs when Redis restarts, forgets, fills up or is cut off (faults.md R)."""

import asyncio
import time
from typing import Any

import pytest
import redis
from support.redis_server import redis_server
from support.redis_stores import end, first, record, soon, stores
from support.tcp_proxy import tcp_proxy

from diptych.core.errors import LeaseLost, RunLost, StoreError, StoreFull
from diptych.core.messages import Message
from diptych.ports import Gap
from diptych.stores.redis.settings import read_url

DURABLE = ("--appendonly", "yes", "--appendfsync", "always")


async def test_a_run_goes_on_over_a_restart_and_who_waits_for_it_is_not_told_of_it():
    with redis_server(*DURABLE) as server:
        async with stores(server.url) as [store]:
            opened = await store.open(first(store), "t1")
            heard: list[Any] = []
            await store.subscribe(opened.entry.run_id, heard.append)
            epoch = store.epoch
            server.kill()
            waiting = asyncio.create_task(store.append([record(opened.entry, 2)], opened.lease))
            await asyncio.sleep(0.1)
            assert not waiting.done()
            server.start()
            await waiting
            assert store.epoch == epoch
            assert len(await store.read(opened.entry.run_id)) == 2
            await soon(lambda: Gap() in heard)


async def test_when_the_store_is_emptied_all_learn_it_at_once(caplog):
    with redis_server() as server:
        async with stores(server.url) as [store]:
            opened = await store.open(first(store), "t1")
            heard: list[Any] = []
            await store.subscribe(opened.entry.run_id, heard.append)
            another = first(store)
            epoch = store.epoch
            server.ask("FLUSHALL")
            with pytest.raises(RunLost):
                await store.append([record(opened.entry, 2)], opened.lease)
            with pytest.raises(RunLost):
                await store.finish_run(opened.entry.run_id, (), opened.lease)
            with pytest.raises(StoreError):
                await store.open(another, "t2")
            assert store.epoch != epoch
            with pytest.raises(RunLost):
                await store.read(opened.entry.run_id)
            assert heard == [Gap()]
            assert list(await store.renew([opened.lease])) == [opened.lease]
            assert (await store.open(first(store), "t3")).lease
            assert "emptied" in caplog.text


async def test_an_owner_whose_claim_a_restart_has_lost_writes_no_more():
    with redis_server(*DURABLE) as server:
        async with stores(server.url, 2) as [one, two]:
            opened = await one.open(first(one), "t1")
            await one.release(opened.lease)
            server.copy_data()
            lease = await two.claim("talk", "t2")
            server.kill()
            server.restore_data()
            server.start()
            with pytest.raises(LeaseLost):
                await two.append([record(opened.entry, 2)], lease)


async def test_a_new_owner_learns_that_a_tail_may_be_lost_until_it_has_written():
    with redis_server(*DURABLE) as server:
        async with stores(server.url, 2, lease_seconds=0.05) as [one, two]:
            opened = await one.open(first(one), "t1")
            run_id = opened.entry.run_id
            await one.append([record(opened.entry, 2)], opened.lease)
            assert not await two.may_be_truncated(run_id)
            server.kill()
            server.start()
            assert await two.may_be_truncated(run_id)
            await asyncio.sleep(0.06)  # the lease has expired then
            assert await two.claim("talk", "t2")
            await asyncio.sleep(0.06)  # it dies before it has written, and a third comes
            lease = await one.claim("talk", "t3")
            assert await one.may_be_truncated(run_id)
            await one.append([record(opened.entry, 3)], lease)
            assert not await one.may_be_truncated(run_id)


async def test_a_run_that_was_driven_before_the_store_was_started_anew_may_have_lost_something():
    with redis_server(*DURABLE) as server:
        async with stores(server.url, lease_seconds=0.2) as [store]:
            driven = await store.open(first(store), "t1")
            waits = await store.open(first(store), "t2")
            await store.append([record(driven.entry, 2)], driven.lease)
            assert not (await store.entry(driven.entry.run_id)).may_be_truncated
            server.kill()
            server.start()
            for entry in (await store.entry(driven.entry.run_id), (await store.entries())[-1]):
                assert entry.may_be_truncated  # its owner may go on, and not know
            assert not (await store.entry(waits.entry.run_id)).may_be_truncated
            while (lease := await store.claim("talk", "t3")) is None:
                pass
            await store.append([record(driven.entry, 3)], lease)
            assert (
                await store.entry(driven.entry.run_id)
            ).may_be_truncated  # a new one found it so
            await end(store, await store.entry(driven.entry.run_id), lease)
            await end(store, await store.entry(waits.entry.run_id), lease)
            assert not (await store.entry(waits.entry.run_id)).may_be_truncated
            assert (await store.entries())[-1].may_be_truncated


async def test_a_full_store_still_takes_the_ends_of_runs():
    with redis_server() as server:
        async with stores(server.url) as [store]:
            opened = await store.open(first(store), "t1")
            server.ask("CONFIG", "SET", "maxmemory", "1")
            with pytest.raises(StoreFull):
                await store.append([record(opened.entry, 2)], opened.lease)
            with pytest.raises(StoreFull):
                await store.open(first(store), "t2")
            with pytest.raises(StoreFull):
                await store.put_blob("abc", b"blob")
            assert list(await store.renew([opened.lease])) == []
            await end(store, opened.entry, opened.lease, "bye")
            assert (await store.entry(opened.entry.run_id)).status == "completed"
            assert await store.conversation("talk") == (Message("assistant", "bye"),)
            assert len(await store.entries()) == 1
            assert store.unavailable_reason() == ""
            await soon(lambda: store.full_reason().startswith("full since 20"))
            since = store.full_reason()
            await asyncio.sleep(1.1)
            assert store.full_reason() == since
            server.ask("CONFIG", "SET", "maxmemory", "0")
            assert (await store.open(first(store), "t3")).lease
            await soon(lambda: not store.full_reason())


async def test_lost_connections_lose_no_record_and_double_none():
    with redis_server() as server:
        async with tcp_proxy(server.port) as proxy:
            url = f"redis://127.0.0.1:{proxy.port}"
            async with stores(url) as [store]:
                runs = [await store.open(first(store, f"talk {i}"), f"t{i}") for i in range(10)]

                async def write(opened: Any) -> None:
                    for seq in range(2, 42):
                        await store.append([record(opened.entry, seq)], opened.lease)
                        await asyncio.sleep(0.005)

                writing = asyncio.gather(*map(write, runs))
                for number in range(12):
                    await asyncio.sleep(0.05)
                    if number % 2:
                        proxy.cut()
                    else:
                        server.ask("CLIENT", "KILL", "TYPE", "normal")
                    assert store.unavailable_reason() == ""
                await writing
                for opened in runs:
                    seqs = [r.seq for r in await store.read(opened.entry.run_id)]
                    assert seqs == list(range(1, 42))
                [session, *_] = await store.sessions()
                assert session.events == 1


async def test_a_partition_is_noticed_and_told_at_once_and_heals_by_itself():
    with redis_server() as server:
        async with tcp_proxy(server.port) as proxy:
            async with stores(f"redis://127.0.0.1:{proxy.port}") as [store]:
                opened = await store.open(first(store), "t1")
                heard: list[Any] = []
                await store.subscribe(opened.entry.run_id, heard.append)
                proxy.passing.clear()
                began = time.perf_counter()
                waiting = asyncio.create_task(store.append([record(opened.entry, 2)], opened.lease))
                with pytest.raises(StoreError):
                    await store.open(first(store), "t2")
                assert time.perf_counter() - began < 2.0
                await soon(
                    lambda: store.unavailable_reason() != "", began + 5.0 - time.perf_counter()
                )
                began = time.perf_counter()
                for ask in (store.sessions, store.entries, store.unowned_sessions):
                    with pytest.raises(StoreError, match="does not answer"):
                        await ask()
                with pytest.raises(StoreError):
                    await store.subscribe("run-x", heard.append)
                assert time.perf_counter() - began < 0.1
                proxy.passing.set()
                await soon(lambda: store.unavailable_reason() == "", 5.0)
                await waiting
                await soon(lambda: Gap() in heard)
                assert len(await store.read(opened.entry.run_id)) == 2


async def test_a_store_that_takes_no_writes_now_is_waited_for():
    with redis_server() as server:
        async with stores(server.url) as [store]:
            opened = await store.open(first(store), "t1")
            server.ask("CONFIG", "SET", "min-replicas-to-write", "1")
            waiting = asyncio.create_task(store.append([record(opened.entry, 2)], opened.lease))
            await soon(lambda: "too few replicas" in store.unavailable_reason())
            with pytest.raises(StoreError, match="too few replicas"):
                await store.open(first(store), "t2")
            server.ask("CONFIG", "SET", "min-replicas-to-write", "0")
            await waiting
            await soon(lambda: store.unavailable_reason() == "")


async def test_a_store_that_is_closed_keeps_nobody_waiting():
    with redis_server() as server:
        async with stores(server.url) as [store]:
            opened = await store.open(first(store), "t1")
            server.kill()
            waiting = asyncio.create_task(store.append([record(opened.entry, 2)], opened.lease))
            await asyncio.sleep(0.05)
            await store.aclose()
            with pytest.raises(StoreError, match="closed"):
                await waiting
            assert "closed" in store.unavailable_reason()


async def test_a_store_that_hangs_is_given_up_in_time_and_taken_up_again():
    with redis_server() as server:
        async with stores(server.url) as [store]:
            server.pause()
            began = time.perf_counter()
            with pytest.raises(StoreError):
                await store.read(first(store).run_id)
            assert time.perf_counter() - began < 2.0
            server.resume()
            await soon(lambda: store.unavailable_reason() == "")
            assert (await store.open(first(store), "t1")).lease


async def test_no_cancellation_is_lost():
    """Of a command that is sent just then, either: a pod that leaves would wait for it for ever."""

    async def ask_forever(store: Any) -> None:
        while True:
            await store.unowned_sessions()

    with redis_server() as server:
        async with stores(server.url) as [store]:
            for turn in range(20):
                asking = [asyncio.create_task(ask_forever(store)) for _ in range(5)]
                await asyncio.sleep(0.001 * (turn % 7))
                for task in asking:
                    task.cancel()
                _, left = await asyncio.wait(asking, timeout=2)
                assert not left


async def test_a_command_whose_connection_breaks_is_not_sent_again():
    """It may have been executed; the store finds out."""
    received: list[bytes] = []

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.read(1_000))
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with read_url(f"redis://127.0.0.1:{port}").client() as client:
            with pytest.raises(redis.ConnectionError):
                await client.incr("n")
    assert len(received) == 1
