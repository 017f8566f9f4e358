"""What many agents cost in one process of a pool, against a process for each of them.

All are scripted, and keep their sessions in one Redis, as agents in a cluster do.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.processes import ROOT, Backends, diptych
from bench.report import table

sys.path.append(str(ROOT / "tests"))

from support.pods import all_ready
from support.pool import PoolProcess, changed, document, pools, write_redis
from support.redis_server import RedisServer

SIZES = (1, 100, 200)
OWN = 10  # processes
SETTLE_SECONDS, IDLE_SECONDS = 5.0, 20.0
_MEBIBYTE = 2**20 / 1e6  # MB


def measure(behind: Backends) -> str:
    """Serve agents in one process, and some in their own; give a table."""
    with tempfile.TemporaryDirectory(prefix="bench-pool-") as folder, ExitStack() as stack:
        redis = RedisServer(Path(folder) / "redis")
        redis.start()
        stack.callback(redis.stop)
        write_redis(Path(folder), redis.url)
        rows = [asyncio.run(_in_one(Path(folder), size)) for size in SIZES]
        rows.append(_in_their_own(behind, redis.url))
    head = ["agents", "all ready s", "idle MiB", "idle CPU %", "one more s", "one changed s"]
    return table(head, rows)


async def _in_one(folder: Path, size: int) -> list[str]:
    documents = [_document(n, folder) for n in range(size)]
    async with pools(folder, f"pool-of-{size}") as [pool]:
        pool.write(*documents)
        begun = time.perf_counter()
        pool.start()
        await all_ready([pool])
        ready = time.perf_counter() - begun
        memory, cpu = await _idle(pool)
        more = _document(size, folder)
        added = await _handed_over(pool, more)
        altered = await _handed_over(pool, changed(more, manifest=_other(more["manifest"])))
    figures = f"{ready:.1f}", f"{memory:.0f}", f"{cpu:.1f}", f"{added:.2f}", f"{altered:.2f}"
    return [f"{size} in one process", *figures]


def _in_their_own(behind: Backends, redis_url: str) -> list[str]:
    script = {"DEBUG_MOCK_RESPONSES": '["hello"]', "REDIS_URL": redis_url}
    with ExitStack() as stack:
        peers = [
            stack.enter_context(diptych(behind, AGENT_NAME=f"own-{n}", **script))
            for n in range(OWN)
        ]
        time.sleep(SETTLE_SECONDS)
        before = sum(peer.cpu() for peer in peers)
        time.sleep(IDLE_SECONDS)
        cpu = (sum(peer.cpu() for peer in peers) - before) / IDLE_SECONDS
        memory = sum(peer.memory() for peer in peers) / _MEBIBYTE
        ready = sum(peer.ready_seconds for peer in peers)
    return [f"{OWN} in their own", f"{ready:.1f}", f"{memory:.0f}", f"{100 * cpu:.1f}", "", ""]


async def _idle(pool: PoolProcess) -> tuple[float, float]:
    """Return MiB, and percent of a core."""
    await asyncio.sleep(SETTLE_SECONDS)
    before = _cpu(pool.pid)
    await asyncio.sleep(IDLE_SECONDS)
    return pool.memory / _MEBIBYTE, (_cpu(pool.pid) - before) / IDLE_SECONDS * 100


async def _handed_over(pool: PoolProcess, content: Mapping[str, Any]) -> float:
    begun = time.perf_counter()
    entry = await pool.put(content)
    assert entry["state"] == "ready", entry
    return time.perf_counter() - begun


def _document(number: int, references: Path) -> dict[str, Any]:
    return document(
        f"agent-{number}",
        instructions="You are a careful assistant. " * 20,
        description="Answers questions.",
        references=references,
    )


def _other(manifest: Mapping[str, Any]) -> dict[str, Any]:
    return {**manifest, "spec": {**manifest["spec"], "instructions": "You are brief."}}


def _cpu(pid: int) -> float:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
