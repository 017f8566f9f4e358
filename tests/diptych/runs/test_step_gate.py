"""The gate at which runs wait that are taken step by step, by itself."""

import asyncio

import pytest
from support.stories import virtually

from diptych.runs.backends import StepGate


async def begin(gate, run_id, seconds):
    """Begin a paused run: its id is known after some time."""
    with gate.holding() as held:
        await asyncio.sleep(seconds)
        held.add(run_id)


@virtually
async def test_two_runs_that_are_begun_paused_at_once_are_both_held():
    gate = StepGate()
    await asyncio.gather(begin(gate, "a", 1), begin(gate, "b", 2))
    for run_id in ("a", "b"):
        assert gate.holds(run_id)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(gate.pass_through(run_id), 5)


@virtually
async def test_other_runs_pass_though_paused_ones_are_always_being_begun():
    gate = StepGate()
    begun = [asyncio.create_task(begin(gate, "a", 2))]
    await asyncio.sleep(1)
    passing = asyncio.create_task(gate.pass_through("other"))
    await asyncio.sleep(0.5)
    begun.append(asyncio.create_task(begin(gate, "b", 10)))
    await asyncio.wait_for(passing, 1)
    await asyncio.gather(*begun)
    assert (gate.holds("a"), gate.holds("b"), gate.holds("other")) == (True, True, False)


@virtually
async def test_a_run_that_ends_while_it_waits_leaves_nothing():
    gate = StepGate()
    await begin(gate, "a", 0)
    waiting = asyncio.create_task(gate.pass_through("a"))
    await asyncio.sleep(1)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert not gate.holds("a")
