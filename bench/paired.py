"""Agents asked in turn by one caller, a few requests at a time, and compared round by round.

What else the machine does falls on all alike; a ratio is the median of the rounds' own, and its
spread the middle half of them. Give an agent twice, to see what such a ratio is worth.
"""

import asyncio
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from bench import client, speed
from bench.processes import Peer
from bench.report import table


@dataclass(slots=True)
class Way:
    """One way to ask: whom, and how the next request is written."""

    peer: Peer
    has_changing_requests: bool = False

    def request(self, question: bytes) -> bytes:
        """Write the next request."""
        return question


async def compare(
    ways: Mapping[str, Way], question: bytes, effort: speed.Effort
) -> dict[str, speed.Measured]:
    """Ask in turn; give times and CPU for each round."""
    results = {name: speed.Measured() for name in ways}
    for way in ways.values():
        await client.load(way.peer.port, way.request(question), 4, speed.WARM_UP)
    names = [*ways]
    for _ in range(effort.rounds):
        timings: dict[str, list[client.Timing]] = {name: [] for name in names}
        used = dict.fromkeys(names, 0.0)
        for _ in range(effort.slices):
            for name in names:
                requests = [ways[name].request(question) for _ in range(speed.SLICE)]
                before = ways[name].peer.cpu()
                timings[name] += await _ask(ways[name], requests)
                used[name] += ways[name].peer.cpu() - before
            names = [*names[1:], names[0]]  # nobody always goes first
        for name, found in timings.items():
            results[name].p50.append(statistics.median(t.whole for t in found) * 1e3)
            results[name].first.append(statistics.median(t.first for t in found) * 1e3)
            results[name].cpu.append(used[name] * 1e3 / len(found))
    return results


def shown(scenario: str, results: Mapping[str, speed.Measured], beside: Mapping[str, str]) -> str:
    """Give a table; `beside` says which agent each is compared with."""
    rows = []
    for name, one in results.items():
        other = results[beside.get(name, name)]
        times = [f"{statistics.median(one.p50):.2f}", f"{statistics.median(one.cpu):.2f}"]
        row = [name, *times, beside.get(name, "")]
        rows.append([*row, _ratio(one.p50, other.p50), _ratio(one.cpu, other.cpu)])
    head = [scenario, "p50 ms", "CPU ms", "beside", "p50, ratio (middle half)"]
    return table([*head, "CPU, ratio (middle half)"], rows)


def _ratio(ours: list[float], theirs: list[float]) -> str:
    ratios = sorted(a / b for a, b in zip(ours, theirs, strict=True))
    if len(ratios) == 1:
        return f"{ratios[0]:.3f}"
    low, median, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return f"{median:.3f} ({low:.3f} to {high:.3f})"


async def _ask(way: Way, requests: list[bytes]) -> list[client.Timing]:
    """Ask one after another; with one request over and over, over one connection."""
    if not way.has_changing_requests:
        return (await client.load(way.peer.port, requests[0], 1, len(requests))).timings
    loop = asyncio.get_running_loop()
    _, asker = await loop.create_connection(
        lambda: client.RunCaller(requests[0]), "127.0.0.1", way.peer.port
    )
    try:
        found = []
        for request in requests:
            asker.request = request
            found.append(await asker.ask())
        return found
    finally:
        asker.close()
