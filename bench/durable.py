"""What it costs to keep runs in Redis: the same agent with a store and without, side by side.

Besides: how many commands a run takes, how soon a long run is replayed, and what a thousand
readers of a silent run weigh. The Redis is a process of its own on loopback, that saves nothing.
"""

import asyncio
import contextlib
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator
from urllib.request import Request, urlopen

from bench import client
from bench.processes import ROOT, Backends, Peer, diptych
from bench.report import table

sys.path.append(str(ROOT / "tests"))

from support.redis_server import RedisServer, redis_server
from support.redis_stores import end, first, record, stores

ROUNDS, ASKED = 12, 12  # rounds of a scenario, and requests of each peer in each
SCENARIOS = {"S0": (0, 1), "S1": (1, 1), "S5": (5, 1)}
CROWD, PACE = 20, 20  # streams at once, and tokens a second of each: ten seconds
EVENTS, REPLAYS = 2_000, 50
READERS = 1_000
_SILENT = json.dumps([{"content": "{}", "delay_ms": 3_600_000}])


async def measure(behind: Backends) -> str:
    """Measure all, and give tables."""
    with redis_server() as redis, contextlib.ExitStack() as stack:
        off = stack.enter_context(diptych(behind, name="memory"))
        on = stack.enter_context(diptych(behind, name="Redis", REDIS_URL=redis.url))
        rows = [await compared(what, plan, off, on) for what, plan in SCENARIOS.items()]
        rows.append(await _paced(off, on))
        commands = [await _commands(redis, on, what, plan) for what, plan in SCENARIOS.items()]
        commands.append(await _commands(redis, on, f"S1, {PACE}/s", (1, 1, PACE)))
        others = [await _replay(redis, on), *await _readers(behind, redis)]
    head = [
        "store on against off",
        "CPU ms, off",
        "on",
        "ratio",
        "first token ms, off",
        "later by ms (p50)",
    ]
    counts = ["commands of one run", "sent by the pod", "records added", "run by Redis in all"]
    return "\n\n".join(
        [table(head, rows), table(counts, commands), table(["what", "seen"], others)]
    )


async def compared(what: str, plan: tuple[int, int], off: Peer, on: Peer) -> list[str]:
    """Ask both in turn, a few times each, with one caller."""
    request = client.question(*plan)
    for peer in (off, on):
        await client.load(peer.port, request, 4, 60)
    used: dict[str, list[float]] = {off.name: [], on.name: []}
    firsts: dict[str, list[float]] = {off.name: [], on.name: []}
    for n in range(ROUNDS):
        for peer in (off, on) if n % 2 else (on, off):
            before = peer.cpu()
            load = await client.load(peer.port, request, 1, ASKED)
            used[peer.name].append((peer.cpu() - before) / ASKED)
            firsts[peer.name].append(statistics.median(t.first for t in load.timings))
    return _row(what, used[off.name], used[on.name], firsts[off.name], firsts[on.name])


async def _paced(off: Peer, on: Peer) -> list[str]:
    """Let both answer a crowd at the pace at which models speak."""
    request = client.question(1, 1, PACE)
    used: dict[str, list[float]] = {off.name: [], on.name: []}
    firsts: dict[str, list[float]] = {off.name: [], on.name: []}
    for n in range(2):
        for peer in (off, on) if n % 2 else (on, off):
            before = peer.cpu()
            load = await client.load(peer.port, request, CROWD, CROWD)
            used[peer.name].append((peer.cpu() - before) / CROWD)
            firsts[peer.name].append(statistics.median(t.first for t in load.timings))
    what = f"S1, {CROWD} at once, {PACE} tokens/s"
    return _row(what, used[off.name], used[on.name], firsts[off.name], firsts[on.name])


def _row(
    what: str, cpu_off: list[float], cpu_on: list[float], off: list[float], on: list[float]
) -> list[str]:
    ratio = statistics.median(b / a for a, b in zip(cpu_off, cpu_on, strict=True))
    later = statistics.median(b - a for a, b in zip(off, on, strict=True))
    return [
        what,
        f"{statistics.median(cpu_off) * 1e3:.2f}",
        f"{statistics.median(cpu_on) * 1e3:.2f}",
        f"{ratio:.2f}",
        f"{statistics.median(off) * 1e3:.1f}",
        f"{later * 1e3:+.1f}",
    ]


async def _commands(redis: RedisServer, on: Peer, what: str, plan: tuple[int, ...]) -> list[str]:
    """Count what one run takes: what the pod sends, and what Redis does in all."""
    request = client.question(*plan)
    redis.ask("CONFIG", "RESETSTAT")
    with redis.watched() as sent:
        await client.load(on.port, request, 1, 1)
    done = {name: n for name, n in redis.calls().items() if name not in {"monitor", "ping"}}
    return [what, str(len(sent)), str(done.get("xadd", 0)), str(sum(done.values()))]


async def _replay(redis: RedisServer, on: Peer) -> list[str]:
    """Read a run of 2,000 events again and again."""
    async with stores(redis.url, prefix="diptych:default:bench") as (store,):
        opened = await store.open(first(store, "long"), "token")
        assert opened.lease
        for seq in range(2, EVENTS, 100):
            last = min(seq + 100, EVENTS)
            batch = [record(opened.entry, n, content="word ") for n in range(seq, last)]
            await store.append(batch, opened.lease)
        entry = await store.entry(opened.entry.run_id)
        await end(store, entry, opened.lease, "said")
    took: list[float] = []
    url = f"http://127.0.0.1:{on.port}/v1/runs/{entry.run_id}/events"
    for _ in range(REPLAYS):
        begun = time.perf_counter()
        whole = await asyncio.to_thread(_read, url)
        took.append(time.perf_counter() - begun)
        assert whole.count(b"\nid: ") == EVENTS, whole.count(b"\nid: ")
    took.sort()
    p50, p95 = (took[int(REPLAYS * part)] * 1e3 for part in (0.5, 0.95))
    return [f"replay of {EVENTS} events", f"p50 {p50:.0f} ms, p95 {p95:.0f} ms"]


async def _readers(behind: Backends, redis: RedisServer) -> list[list[str]]:
    """Weigh pods that a thousand read at, where nothing happens: the owner, and another one."""
    rows = []
    settings = {"REDIS_URL": redis.url, "DEBUG_MOCK_RESPONSES": _SILENT, "AGENT_NAME": "silent"}
    with (
        diptych(behind, name="the run's owner", **settings) as owner,
        diptych(behind, name="another pod", **settings) as other,
    ):
        url = f"http://127.0.0.1:{owner.port}/v1/runs"
        run = json.loads(await asyncio.to_thread(_read, url, b'{"input": "wait"}'))["id"]
        for peer in (owner, other):
            idle = peer.memory()
            async with _subscribed(peer, run):
                used = peer.cpu()
                await asyncio.sleep(5)
                busy = (peer.cpu() - used) / 5
                weight = f"{idle:.0f} MB before, {peer.memory():.0f} MB with them, {busy:.0%} CPU"
            rows.append([f"{READERS} idle readers at {peer.name}", weight])
    return rows


@contextlib.asynccontextmanager
async def _subscribed(peer: Peer, run: str) -> AsyncIterator[None]:
    """Have a thousand readers of a run, who have heard what there is."""
    writers = []
    try:
        for _ in range(READERS):
            reader, writer = await asyncio.open_connection("127.0.0.1", peer.port)
            writers.append(writer)
            writer.write(
                b"GET /v1/runs/%b/events HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" % run.encode()
            )
            async with asyncio.timeout(30):
                await reader.readuntil(b"event: offered")
        yield
    finally:
        for writer in writers:
            writer.close()


def _read(url: str, body: bytes | None = None) -> bytes:
    request = Request(url, body, {"Content-Type": "application/json"})
    with urlopen(request, timeout=30) as reply:
        whole: bytes = reply.read()
    return whole
