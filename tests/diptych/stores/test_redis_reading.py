"""Reading from Redis what was recorded before it was started anew."""

from support.redis_server import RedisServer, redis_server
from support.redis_stores import end, first, record, soon, stores

from diptych.stores.redis import RedisStore


async def started_anew(server: RedisServer, store: RedisStore) -> None:
    before = store._connection.server.instance_id
    server.kill()
    server.start()
    await soon(
        lambda: (
            store._connection.server.instance_id != before
            and not store._connection.unavailable_reason()
        )
    )


async def test_a_run_that_was_driven_before_the_store_was_started_anew_may_have_lost_something():
    with redis_server("--appendonly", "yes", "--appendfsync", "always") as server:
        async with stores(server.url, lease_seconds=0.2) as [store]:
            driven = await store.open(first(store), "t1")
            waits = await store.open(first(store), "t2")
            await store.append([record(driven.entry, 2)], driven.lease)
            assert not (await store.entry(driven.entry.run_id)).may_be_truncated
            await started_anew(server, store)
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


async def test_of_a_run_of_an_earlier_version_it_is_known_when_it_began():
    with redis_server() as server:
        async with stores(server.url) as [store]:
            opened = await store.open(first(store), "t1")
            key = f"{store._settings.prefix}:run:{opened.entry.run_id}"
            server.ask("HDEL", key, "updated")
            [entry] = await store.entries()
            assert entry == await store.entry(opened.entry.run_id)
            assert entry.updated == entry.created == 1.5
