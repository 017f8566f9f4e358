"""How long a request takes, and how many there are in a second: Diptych beside the floors.

Rounds are interleaved (A B C, A B C …), so that what else the machine does falls on all alike.
"""

import contextlib
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench import client
from bench.processes import Backends, Peer, diptych, floor
from bench.report import table

SCENARIOS: Mapping[str, tuple[int, int]] = {  # rounds, and calls in each
    "S0": (0, 1),
    "S1": (1, 1),
    "S5": (5, 1),
    "S1x": (1, 4),
}
WAYS = ("raw", "sdk", "merged")
WARM_UP = 100
SLICE = 12  # requests that a peer is asked before it is the next one's turn


@dataclass(slots=True)
class Measured:
    """One peer in one scenario: a value for each round."""

    p50: list[float] = field(default_factory=list)  # ms
    first: list[float] = field(default_factory=list)  # ms
    cpu: list[float] = field(default_factory=list)  # ms per request
    rate: list[float] = field(default_factory=list)  # requests per second, 32 at once


@dataclass(frozen=True, slots=True)
class Effort:
    rounds: int = 7
    slices: int = 10  # of a round
    crowd: int = 256  # requests of a round, 32 at once
    trees: tuple[Path, ...] = ()
    scenarios: tuple[str, ...] = tuple(SCENARIOS)


async def measure(behind: Backends, effort: Effort) -> str:
    """Run all scenarios and give the tables, as Markdown."""
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(floor(way, behind)) for way in WAYS]
        peers.append(stack.enter_context(diptych(behind)))
        for tree in effort.trees:
            other = diptych(behind, name=f"diptych of {tree.name}", tree=tree)
            peers.append(stack.enter_context(other))
        results = {
            scenario: await _compare(peers, SCENARIOS[scenario], effort)
            for scenario in effort.scenarios
        }
    return "\n\n".join(_shown(scenario, result) for scenario, result in results.items())


async def _compare(peers: list[Peer], plan: tuple[int, int], effort: Effort) -> dict[str, Measured]:
    request = client.question(*plan)
    results = {peer.name: Measured() for peer in peers}
    for peer in peers:
        await client.load(peer.port, request, 4, WARM_UP)
    for _ in range(effort.rounds):
        for name, (timings, used) in (await _alone(peers, request, effort.slices)).items():
            results[name].p50.append(statistics.median(t.whole for t in timings) * 1e3)
            results[name].first.append(statistics.median(t.first for t in timings) * 1e3)
            results[name].cpu.append(used * 1e3 / len(timings))
        for peer in peers:
            crowd = await client.load(peer.port, request, 32, effort.crowd)
            results[peer.name].rate.append(len(crowd.timings) / crowd.seconds)
        peers = [*peers[1:], peers[0]]  # nobody always goes first
    return results


async def _alone(
    peers: list[Peer], request: bytes, slices: int
) -> dict[str, tuple[list[client.Timing], float]]:
    """Ask one at a time, a few requests of each peer in turn; give timings and seconds of CPU."""
    timings: dict[str, list[client.Timing]] = {peer.name: [] for peer in peers}
    used = dict.fromkeys(timings, 0.0)
    for _ in range(slices):
        for peer in peers:
            before = peer.cpu()
            timings[peer.name] += (await client.load(peer.port, request, 1, SLICE)).timings
            used[peer.name] += peer.cpu() - before
    return {name: (timings[name], used[name]) for name in timings}


def _shown(scenario: str, results: Mapping[str, Measured]) -> str:
    raw, sdk, merged = (results[f"floor, {way}"] for way in WAYS)
    rows = []
    for name, one in results.items():
        rows.append(
            [
                name,
                _median(one.p50),
                _median(one.first),
                _median(one.cpu),
                _median(one.rate),
                f"{ratio(one.p50, raw.p50):.2f}",
                f"{ratio(one.p50, sdk.p50):.2f}",
                f"{ratio(one.p50, merged.p50):.2f}",
                f"{ratio(one.cpu, sdk.cpu):.2f}",
            ]
        )
    head = [
        scenario,
        "p50 ms",
        "first token ms",
        "CPU ms",
        "req/s, 32 at once",
        "p50 / raw",
        "p50 / sdk",
        "p50 / merged",
        "CPU / sdk",
    ]
    return table(head, rows)


def ratio(ours: list[float], theirs: list[float]) -> float:
    """Give the median of the rounds' own ratios: each round had the same weather for all."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def _median(values: list[float]) -> str:
    value = statistics.median(values)
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"
