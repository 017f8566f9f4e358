"""What an append costs over the store's own connection and over clients of redis-py, side by side.

The same scripts with the same arguments go over each. `pool` is redis-py's asyncio client with its
pool of connections; `batches` puts what is asked for at the same moment into one pipeline of that
client. Pub/sub is compared as well: the store's connection, and `PubSub.listen`.
"""

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.exceptions import NoScriptError

from bench.processes import ROOT
from bench.report import table
from diptych.adapters.redis.event_log import RedisEventLog
from diptych.adapters.redis.locator import MasterLocator
from diptych.adapters.redis.pubsub import Channel, PubSubConnection
from diptych.adapters.redis.scripts import Script
from diptych.adapters.redis.server_info import ServerInfo
from diptych.adapters.redis.settings import RedisSettings

sys.path.append(str(ROOT / "tests"))

from support.redis_server import redis_server
from support.redis_stores import first, record, stores

APPENDS, ROUNDS = 2_000, 7
MESSAGES = 10_000
AT_ONCE = (1, 20, 100)


class Pool:
    """redis-py's client, each command on a connection of its pool."""

    def __init__(self, client: "Redis[bytes]") -> None:
        self.server = ServerInfo()
        self.prefix = ""
        self.client = client

    def on_new_epoch(self, listener: Callable[[], None]) -> None:
        del listener

    async def run_script(self, script: Script, *arguments: Any) -> Any:
        rest = (0, self.prefix, *arguments)
        try:
            return await self.client.execute_command("EVALSHA", script.sha, *rest)
        except NoScriptError:
            return await self.client.execute_command("EVAL", script.source, *rest)

    run_script_when_available = run_script


class Batches(Pool):
    """Pipelines of redis-py: while one is under way, the next one is filled."""

    def __init__(self, client: "Redis[bytes]") -> None:
        super().__init__(client)
        self._waiting: list[tuple[Any, asyncio.Future[Any]]] = []
        self._task: asyncio.Task[None] | None = None

    async def run_script(self, script: Script, *arguments: Any) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((("EVALSHA", script.sha, 0, self.prefix, *arguments), future))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._flush())
        return await future

    run_script_when_available = run_script

    async def _flush(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            async with self.client.pipeline(transaction=False) as pipeline:
                for command, _ in batch:
                    pipeline.execute_command(*command)
                replies = await pipeline.execute(raise_on_error=False)
            for (_, future), reply in zip(batch, replies, strict=True):
                future.set_result(reply)


async def measure() -> str:
    """Measure all, and give tables."""
    with redis_server() as server:
        appends = [row for at_once in AT_ONCE for row in await _appends(server.url, at_once)]
        messages = await _messages(server.url)
    head = ["append", "at once", "CPU µs", "against ours", "p50 µs", "p99 µs"]
    return "\n\n".join(
        [table(head, appends), table(["messages heard", "CPU µs each", "ratio"], messages)]
    )


async def _appends(url: str, at_once: int) -> list[list[str]]:
    settings = RedisSettings(lambda: url, f"bench:{at_once}")
    async with stores(url, prefix=settings.prefix) as [store]:
        pool = BlockingConnectionPool.from_url(url, max_connections=20, protocol=2)
        async with Redis(connection_pool=pool) as client:
            logs: dict[str, Any] = {"ours": store}
            for name, kind in (("pool", Pool), ("batches", Batches)):
                way: Any = kind(client)
                way.prefix = settings.prefix
                logs[name] = RedisEventLog(settings, way)
            runs = [await store.open(first(store, str(n)), f"t{n}") for n in range(at_once)]
            seqs = [1] * at_once
            cpu: dict[str, list[float]] = {name: [] for name in logs}
            times: dict[str, list[float]] = {name: [] for name in logs}
            for number in range(ROUNDS + 1):
                for name in sorted(logs, reverse=bool(number % 2)):
                    took: list[float] = []
                    before = time.process_time()
                    await asyncio.gather(
                        *(_append(logs[name], runs, seqs, n, took) for n in range(at_once))
                    )
                    if number:  # the first round loads the scripts
                        cpu[name].append((time.process_time() - before) / len(took))
                        times[name] += took
    return [_row(name, at_once, cpu, times[name]) for name in logs]


async def _append(
    log: Any, runs: Sequence[Any], seqs: list[int], n: int, took: list[float]
) -> None:
    for _ in range(APPENDS // len(runs)):
        seqs[n] += 1
        begun = time.perf_counter()
        await log.append([record(runs[n].entry, seqs[n])], runs[n].lease)
        took.append(time.perf_counter() - begun)


def _row(name: str, at_once: int, cpu: dict[str, list[float]], times: list[float]) -> list[str]:
    ratio = statistics.median(a / b for a, b in zip(cpu[name], cpu["ours"], strict=True))
    times.sort()
    p50, p99 = (times[int(len(times) * part)] * 1e6 for part in (0.5, 0.99))
    micros = statistics.median(cpu[name]) * 1e6
    return [name, str(at_once), f"{micros:.0f}", f"{ratio:.2f}", f"{p50:.0f}", f"{p99:.0f}"]


async def _messages(url: str) -> list[list[str]]:
    ours = [await _heard(url, _pubsub) for _ in range(3)]
    theirs = [await _heard(url, _pubsub) for _ in range(3)]
    one, other = statistics.median(ours) * 1e6, statistics.median(theirs) * 1e6
    return [["ours", f"{one:.1f}", "1.00"], ["PubSub", f"{other:.1f}", f"{other / one:.2f}"]]


Hear = Callable[[str, Callable[[], None]], Awaitable[Callable[[], Awaitable[None]]]]


async def _heard(url: str, hear: Hear) -> float:
    """Give the CPU seconds for each of many messages, without what it takes to send them."""
    count, done = 0, asyncio.Event()

    def on_message() -> None:
        nonlocal count
        count += 1
        if count == MESSAGES:
            done.set()

    close = await hear(url, on_message)
    sender = await asyncio.create_subprocess_exec(
        "redis-cli", "-u", url, "EVAL",
        f"for i = 1, {MESSAGES} do redis.call('PUBLISH', 'bench', 'word ' .. i) end", "0",
        stdout=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    before = time.process_time()
    await sender.wait()
    await done.wait()
    used = time.process_time() - before
    await close()
    return used / MESSAGES


async def _pubsub(url: str, on_message: Callable[[], None]) -> Callable[[], Awaitable[None]]:
    pubsub = PubSubConnection(MasterLocator(lambda: url))
    channel = Channel(b"bench", lambda _: on_message(), lambda: None)
    pubsub.subscribe(channel)
    pubsub.start()
    await channel.confirmed.wait()
    return pubsub.aclose


async def _pubsub(url: str, on_message: Callable[[], None]) -> Callable[[], Awaitable[None]]:
    client = Redis.from_url(url, protocol=2)
    pubsub = client.pubsub(ignore_subscribe_messages=True)
    await pubsub.subscribe("bench")

    async def listen() -> None:
        async for _ in pubsub.listen():
            on_message()

    task = asyncio.create_task(listen())
    await asyncio.sleep(0.2)

    async def close() -> None:
        task.cancel()
        await asyncio.wait([task])
        await pubsub.aclose()
        await client.aclose()

    return close
