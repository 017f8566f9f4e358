"""A master that dies and is replaced: the store is found again, where its sentinels say."""

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from support.redis_server import RedisServer, free_port, redis_server
from support.redis_stores import end, first, record, soon, stores

from diptych.core.errors import LeaseLost, LogTruncated, RunLost
from diptych.ports import Gap
from diptych.stores.redis import RedisStore

BACK_SECONDS = 15.0  # faults.md R5


@dataclass
class Group:
    """A master, its replica, and three sentinels that watch them."""

    master: RedisServer
    replica: RedisServer
    sentinels: list[RedisServer]

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/mymaster/0"


@contextmanager
def group() -> Iterator[Group]:
    with ExitStack() as stack:
        master = stack.enter_context(redis_server("--repl-diskless-sync-delay", "0"))
        replica = stack.enter_context(
            redis_server(
                "--replicaof", f"127.0.0.1 {master.port}", "--repl-diskless-load", "swapdb"
            )
        )
        wait(lambda: b"master_link_status:up" in raw_info(replica))
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="sentinels-")))
        sentinels = [sentinel(folder / str(number), master.port) for number in range(3)]
        for each in sentinels:
            each.start()
            stack.callback(each.kill)
        wait(lambda: all(knows_all(each) for each in sentinels))
        yield Group(master, replica, sentinels)


def sentinel(folder: Path, master_port: int) -> RedisServer:
    folder.mkdir()
    port = free_port()
    (folder / "sentinel.conf").write_text(
        f"port {port}\nbind 127.0.0.1\n"
        f"sentinel monitor mymaster 127.0.0.1 {master_port} 2\n"
        "sentinel down-after-milliseconds mymaster 500\n"
        "sentinel failover-timeout mymaster 3000\n"
    )
    return RedisServer(folder, "sentinel.conf", "--sentinel", port=port)


def knows_all(each: RedisServer) -> bool:
    told = each.ask("SENTINEL", "MASTER", "mymaster")
    facts = dict(zip(told[::2], told[1::2], strict=True))
    return facts[b"num-other-sentinels"] == b"2" and facts[b"num-slaves"] == b"1"


def raw_info(server: RedisServer) -> bytes:
    with socket.create_connection(("127.0.0.1", server.port), 1) as it:
        it.sendall(b"INFO replication\r\n")
        return it.recv(65_536)


def server_of(store: RedisStore) -> str:
    """Name the server of the store's connections."""
    client = store._connection.server._client
    host, port = client.connection_pool.master_address if client else ("", 0)
    return f"{host}:{port}"


def wait(claim: Callable[[], bool]) -> None:
    until = time.monotonic() + BACK_SECONDS
    while not claim():
        assert time.monotonic() < until, "the servers do not find each other"
        time.sleep(0.02)


async def test_a_run_goes_on_at_the_new_master_and_its_fence_holds():
    with group() as servers:
        async with stores(servers.url, 2, lease_seconds=0.2) as [one, two]:
            opened = await one.open(first(one), "t1")
            heard: list[Any] = []
            await two.subscribe(opened.entry.run_id, heard.append)
            epoch = one.epoch
            assert servers.master.ask("WAIT", 1, 1_000) == 1
            servers.master.kill()
            async with asyncio.timeout(BACK_SECONDS):
                await one.append([record(opened.entry, 2)], opened.lease)
            await soon(lambda: two.unavailable_reason() == "" and Gap() in heard)
            assert one.epoch == epoch
            assert await two.may_be_truncated(opened.entry.run_id)
            await asyncio.sleep(0.2)
            lease = await two.claim("talk", "t2")
            assert lease
            with pytest.raises(LeaseLost):
                await one.append([record(opened.entry, 3)], opened.lease)
            await end(two, replace(opened.entry, seq=2), lease)


async def test_what_the_new_master_never_got_is_a_lost_tail():
    with group() as servers:
        async with stores(servers.url) as [store]:
            opened = await store.open(first(store), "t1")
            await store.append([record(opened.entry, 2)], opened.lease)
            assert servers.master.ask("WAIT", 1, 1_000) == 1
            servers.replica.pause()
            servers.master.ask("CLIENT", "KILL", "TYPE", "replica")
            missing = [record(opened.entry, 3), record(opened.entry, 4)]
            await store.append(missing, opened.lease)
            late = await store.open(first(store, "late"), "t2")
            servers.master.kill()
            servers.replica.resume()
            async with asyncio.timeout(BACK_SECONDS):
                with pytest.raises(LogTruncated) as lost:
                    await store.append([record(opened.entry, 5)], opened.lease)
                with pytest.raises(RunLost):
                    await store.append([record(late.entry, 2)], late.lease)
            assert lost.value.seq == 2
            await store.append([*missing, record(opened.entry, 5)], opened.lease)
            assert [r.seq for r in await store.read(opened.entry.run_id)] == [1, 2, 3, 4, 5]


async def test_a_master_that_is_replaced_while_it_lives_is_left():
    with group() as servers:
        async with stores(servers.url) as [store]:
            opened = await store.open(first(store), "t1")
            assert servers.master.ask("WAIT", 1, 1_000) == 1
            servers.sentinels[0].ask("SENTINEL", "FAILOVER", "mymaster")
            new_master = f"127.0.0.1:{servers.replica.port}"
            await soon(lambda: server_of(store) == new_master, BACK_SECONDS)
            await store.append([record(opened.entry, 2)], opened.lease)
            assert servers.replica.ask("XLEN", store._key("log", opened.entry.run_id)) == 2


async def test_without_sentinels_or_their_master_the_store_says_so():
    with group() as servers:
        url = servers.url.replace("mymaster", "another")
        async with stores(url) as [store]:
            assert "do not know the master" in store.unavailable_reason()
        url = f"redis+sentinel://127.0.0.1:{free_port()}/mymaster"
        async with stores(url) as [store]:
            assert "sentinels are unreachable" in store.unavailable_reason()
        url = servers.url.replace("127.0.0.1", f"127.0.0.1:{free_port()},127.0.0.1", 1)
        async with stores(url) as [store]:  # the first of four is not there
            assert store.unavailable_reason() == ""
            for each in servers.sentinels:
                each.kill()
            await asyncio.sleep(2.5)
            assert store.unavailable_reason() == "", "the master is still there"
            assert await store.open(first(store), "t1")
