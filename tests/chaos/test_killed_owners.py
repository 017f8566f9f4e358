"""`kill -9` of pods that own runs, at seeded moments: faults.md P1, P2, P3, and G1 to G4."""

import asyncio
import itertools
import os
import random
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from support.orders import Charges
from support.pods import PodProcess, all_ready, now
from support.redis_monitor import monitored
from support.run_logs import Frame
from support.scene import Scene, order_scene, orders, tell

RUNS = 20
KILLS = 50
MOST_SECONDS = 120.0  # that a test waits, though the machine has other work
_PHASES = {"tool_call": "in a tool", "text": "between tokens"}

pytestmark = pytest.mark.timeout(300)  # more than MOST_SECONDS, and the start of the pods


async def kill(scene: Scene, victim: PodProcess, usual: float) -> None:
    """Kill a pod and start it again; what it had begun may take as long as `usual` anew."""
    victim.kill()
    scene.trouble(f"kill -9 {victim.name}", usual)
    victim.start()
    await victim.ready()


async def round_of_killing(scene: Scene, seed: int, usual: float) -> Counter[str]:
    """Kill one of the pods under 20 runs, and hold what all saw against what is promised.

    `usual` is how long a run takes in peace. Gives where the runs were that were cut.
    """
    draw = random.Random(seed)
    async with asyncio.timeout(MOST_SECONDS), asyncio.TaskGroup() as group:
        group.create_task(
            orders(scene, f"seed {seed}", RUNS, seconds=usual + 1, within=MOST_SECONDS)
        )
        await asyncio.sleep(draw.uniform(0.3, usual))
        group.create_task(kill(scene, scene.pods[draw.randrange(2)], usual))
    cut = where_cut(await scene.reckon())
    scene.begin_anew()
    return cut


def where_cut(logs: Mapping[str, Sequence[Frame]]) -> Counter[str]:
    """Say where runs were when they lost their owner."""
    pairs = [pair for log in logs.values() for pair in itertools.pairwise(log)]
    return Counter(
        _PHASES.get(before.event, "in a model call")
        for before, after in pairs
        if after.event == "owner_changed"
    )


async def test_runs_whose_owners_are_killed_one_after_another_are_finished_by_others(
    tools: Charges,
) -> None:
    draw, usual = random.Random(7), 8.0
    async with order_scene(tools) as scene, monitored(scene.redis, scene.history) as seen:
        async with asyncio.timeout(MOST_SECONDS), asyncio.TaskGroup() as group:
            for n in range(2):  # not more: a run whose third owner dies is ended
                group.create_task(orders(scene, f"wave {n}", 8, seconds=usual, within=MOST_SECONDS))
                await asyncio.sleep(draw.uniform(0.8, 3.5))
                await all_ready(scene.pods)  # one is left to go on, each time
                group.create_task(kill(scene, scene.pods[n % 2], usual))
        cut = where_cut(await scene.reckon())
        assert any(event["kind"] == "write_accepted" for event in seen.history)
    assert sum(cut.values()) >= 2, cut


@pytest.mark.skipif("DIPTYCH_SOAK" not in os.environ, reason="15 minutes: make soak")
@pytest.mark.timeout(3_600)
async def test_in_a_soak_50_owners_are_killed_each_under_20_runs(tools: Charges) -> None:
    cut: Counter[str] = Counter()
    took: list[float] = []
    async with order_scene(tools) as scene, monitored(scene.redis, scene.history):
        calm = await orders(scene, "calm", RUNS, seconds=20.0, within=MOST_SECONDS)
        usual = max(caller.ended - caller.began for caller in calm)
        await scene.reckon()
        scene.begin_anew()
        for seed in range(KILLS):
            begun = now()
            cut += await round_of_killing(scene, seed, usual)
            took.append(now() - begun)
            tell(f"kill {seed + 1}: all answers after {took[-1]:.1f} s; cut {dict(cut)}")
    tell(f"a run in peace {usual:.1f} s; a round {statistics.median(took):.1f} s at the median")
    assert sum(cut.values()) >= KILLS
