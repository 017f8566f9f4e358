"""Two hundred people reading at once: 200 answers of 20 tokens a second, all asked for together."""

import asyncio
import contextlib
import statistics
from dataclasses import dataclass

from bench import client
from bench.processes import Backends, Peer, diptych, floor
from bench.report import table

STREAMS = 200
PACE = 20  # tokens a second; an answer has 200
WAVES = 2


@dataclass(frozen=True, slots=True)
class Wave:
    """What one wave of streams gave: seconds to the first token, and what the process used."""

    firsts: list[float]
    whole: float  # seconds that the longest answer took
    memory: float  # MB, the highest seen
    cpu: float  # of one core


async def measure(behind: Backends) -> str:
    """Let two waves of streams run at each peer, one peer after another; give a table."""
    rows = []
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(floor("sdk", behind)), stack.enter_context(diptych(behind))]
        idle = {peer.name: peer.memory() for peer in peers}
        for peer in peers:
            waves = [await _wave(peer) for _ in range(WAVES)]
            rows.append(_row(peer.name, idle[peer.name], waves))
    head = [
        f"{STREAMS} streams",
        "first token p50 ms",
        "p95 ms",
        "longest answer s",
        "CPU of a core",
        "idle MB",
        "streaming MB",
    ]
    return table(head, rows)


async def _wave(peer: Peer) -> Wave:
    request = client.question(1, 1, PACE)
    used = peer.cpu()
    loading = asyncio.create_task(client.load(peer.port, request, STREAMS, STREAMS))
    highest = 0.0
    while not loading.done():
        await asyncio.wait([loading], timeout=0.5)
        highest = max(highest, peer.memory())
    load = loading.result()
    return Wave(
        [timing.first for timing in load.timings],
        max(timing.whole for timing in load.timings),
        highest,
        (peer.cpu() - used) / load.seconds,
    )


def _row(name: str, idle: float, waves: list[Wave]) -> list[str]:
    firsts = sorted(first for wave in waves for first in wave.firsts)
    return [
        name,
        f"{statistics.median(firsts) * 1e3:.0f}",
        f"{firsts[int(len(firsts) * 0.95)] * 1e3:.0f}",
        f"{max(wave.whole for wave in waves):.1f}",
        f"{statistics.median(wave.cpu for wave in waves):.0%}",
        f"{idle:.0f}",
        f"{max(wave.memory for wave in waves):.0f}",
    ]
