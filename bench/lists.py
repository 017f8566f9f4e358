"""How long lists take when a few, some and many sessions are stored: their cost must stay flat.

With `--tree` another checkout is measured too, in turn with this one and on the same Redis.
"""

import asyncio
import contextlib
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.request import Request, urlopen

from bench.processes import ROOT, Backends, Peer, diptych
from bench.report import table

sys.path.append(str(ROOT / "tests"))

from support.redis_server import redis_server
from support.redis_stores import end, first, record, stores

SESSIONS = (10, 300, 3_000)
EVENTS = 5  # that `/memory/events` shows of each session
ROUNDS = 15
PATHS = ("/v1/runs?limit=1", "/memory/events?limit=10", "/memory/sessions?limit=10", "ListTasks")
_TASKS = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {"pageSize": 1}}


async def measure(behind: Backends, trees: Sequence[Path] = ()) -> str:
    """Measure, and give a table."""
    rows: dict[tuple[str, str], list[str]] = {}
    with redis_server() as redis, contextlib.ExitStack() as stack:
        pods = [
            stack.enter_context(diptych(behind, name=name, tree=tree, REDIS_URL=redis.url))
            for name, tree in [("this", None), *((tree.name, tree) for tree in trees)]
        ]
        for before, sessions in zip((0, *SESSIONS), SESSIONS, strict=False):
            await _fill(redis.url, before, sessions)
            for path in PATHS:
                took: dict[str, list[float]] = {pod.name: [] for pod in pods}
                for number in range(ROUNDS + 1):
                    for pod in pods[:: -1 if number % 2 else 1]:
                        seconds = await asyncio.to_thread(_time, pod, path)
                        if number:
                            took[pod.name].append(seconds)
                for name, each in took.items():
                    row = rows.setdefault((path, name), [path, name])
                    row.append(f"{statistics.median(each) * 1e3:.1f}")
    head = ["list", "tree", *(f"ms (p50), {count:,} sessions" for count in SESSIONS)]
    return table(head, list(rows.values()))


async def _fill(url: str, start: int, stop: int) -> None:
    async with stores(url, prefix="diptych:default:bench") as [store]:
        for number in range(start, stop):
            opened = await store.open(first(store, f"session {number}"), f"token {number}")
            assert opened.lease
            seqs = range(2, EVENTS + 1)
            await store.append([record(opened.entry, n, "tool_call") for n in seqs], opened.lease)
            await end(store, await store.entry(opened.entry.run_id), opened.lease, "said")


def _time(pod: Peer, path: str) -> float:
    url, body, headers = f"http://127.0.0.1:{pod.port}{path}", None, {}
    if path == "ListTasks":
        url, body = f"http://127.0.0.1:{pod.port}/a2a", json.dumps(_TASKS).encode()
        headers = {"Content-Type": "application/json", "A2A-Version": "1.0"}
    begun = time.perf_counter()
    with urlopen(Request(url, body, headers), timeout=60) as reply:
        content = reply.read()
    assert b"error" not in content[:200], content[:200]
    return time.perf_counter() - begun
