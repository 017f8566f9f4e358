"""A long time under load: memory, file descriptors and tasks of the pods stay what they are (I6).

`make soak` runs it for SOAK_MINUTES (60), after the long forms of the other tests.
"""

import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from support.orders import Charges, Pace
from support.pods import SERVERS, PodProcess, now
from support.scene import Scene, order_scene, orders, tell

AT_ONCE = 20
MINUTES = float(os.environ.get("SOAK_MINUTES", "60"))
WAVE_SECONDS = 120.0
WARM = 0.2  # of the time, that caches and allocators get to fill


@dataclass(frozen=True, slots=True)
class Sample:
    """What a pod used at a moment between two waves of runs, when it had nothing to do."""

    t: float
    memory: float  # MB
    descriptors: float
    tasks: float


@pytest.mark.skipif("DIPTYCH_SOAK" not in os.environ, reason="an hour: make soak")
@pytest.mark.timeout(2 * MINUTES * 60 + 600)
async def test_in_a_soak_memory_descriptors_and_tasks_stay_flat(tools: Charges) -> None:
    watched = [str(SERVERS / "watched_pod.py"), "serve"]
    samples: dict[str, list[Sample]] = {"pod-1": [], "pod-2": []}
    waves = 0
    async with order_scene(tools, pace=Pace(reply=0.05, word=0.02), command=watched) as on:
        ends_at = now() + MINUTES * 60
        while now() < ends_at:
            await orders(on, f"soak {waves}", AT_ONCE, seconds=20.0, within=WAVE_SECONDS)
            await on.reckon()
            on.begin_anew()
            waves += 1
            if waves % 5 == 0:
                cut_connections(on)
            for pod in on.pods:
                samples[pod.name].append(await sample(pod))
    tell(f"{waves * AT_ONCE} runs in {MINUTES:g} minutes")
    for name, found in samples.items():
        reckon(name, found[int(len(found) * WARM) :])


def cut_connections(on: Scene) -> None:
    """Make the pods connect to their store anew, as a long life does."""
    for kind in ("normal", "pubsub"):
        on.redis.ask("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")


async def sample(pod: PodProcess) -> Sample:
    return Sample(now(), pod.memory, pod.descriptors, await pod.tasks())


def reckon(name: str, samples: Sequence[Sample]) -> None:
    """Show what each thing grows by in an hour, and hold it against what it was."""
    times = [sample.t / 3600 for sample in samples]
    for what in ("memory", "descriptors", "tasks"):
        values = [getattr(sample, what) for sample in samples]
        slope = statistics.linear_regression(times, values).slope
        middle = statistics.median(values)
        tell(
            f"{name}: {what} {middle:.0f}, from {values[0]:.0f} to {values[-1]:.0f}; {slope:+.2f}/h"
        )
        grown = slope * (times[-1] - times[0])
        assert grown <= 0.05 * middle + 1, f"{name}: {what} grew by {grown:.1f}"
