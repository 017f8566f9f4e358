"""A store that is killed again and again under runs: faults.md R10, and R1, R2 with `everysec`.

R10 asks for all runs, so it has `appendfsync always`: what a pod was told to be written is on the
disk. With `everysec` up to a second of it may be lost. A kill of Redis alone loses nothing that it
has handed to the kernel, so one monkey takes that second away. The pods are never started anew.
"""

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import pytest
from support.callers import Gone
from support.one_text import TEXT, USUAL, ask, assert_whole
from support.pods import all_ready
from support.run_logs import Frame, records
from support.scene import Scene, tell

AT_ONCE = 12
RUNS = 20
MOST_SECONDS = 90.0
Range = tuple[float, float]

pytestmark = pytest.mark.timeout(300)  # more than MOST_SECONDS, and the start of the pods


async def test_runs_outlive_a_monkey_that_kills_the_store_and_one_that_takes_its_last_second(
    on: Scene,
) -> None:
    async with asyncio.timeout(MOST_SECONDS):
        await among_monkeys(on, runs=RUNS, every=(2.0, 4.0))
    on.begin_anew()
    await all_hear_what_they_have_lost(on)


@pytest.mark.skipif("DIPTYCH_SOAK" not in os.environ, reason="long: make soak")
@pytest.mark.timeout(7_200)
async def test_in_a_soak_1000_runs_outlive_a_monkey_that_kills_the_store(on: Scene) -> None:
    await among_monkeys(on, runs=1_000, every=(5.0, 40.0))


async def all_hear_what_they_have_lost(on: Scene) -> None:
    """What began in that second is gone, and said to be; all else is told whole, or anew."""
    on.redis.ask("CONFIG", "SET", "appendfsync", "everysec")
    told_lost: set[str] = set()

    async def one(n: int) -> None:
        await asyncio.sleep(USUAL * n / AT_ONCE if n < AT_ONCE else 0.0)  # not all at once
        try:
            caller = await ask(on, "second", n)
        except Gone:
            told_lost.add(next(c.run for c in on.callers if c.name == f"second {n}"))
        else:
            if caller.end == "failed":
                assert b"store_lost" in list(caller.frames.values())[-1]
                told_lost.add(caller.run)

    async with asyncio.timeout(MOST_SECONDS):
        kills = await under_kills(on, one, RUNS, every=(1.0, 3.0), loses=(0.05, 1.0))
    for caller in on.callers:
        assert caller.run in told_lost or (caller.end, caller.text) == ("completed", TEXT)
    gone = {caller.run for caller in on.callers if not await on.has(caller.run)}
    assert told_lost <= gone, "a run was said to be lost, and is there"
    forget(on, gone)
    for run, log in (await on.logs()).items():
        note_lost_ends(on, run, log)
    assert on.problems() == []
    resets = sum(caller.events.count("reset") for caller in on.callers)
    tell(f"{kills} kills: {len(gone)} of {RUNS} runs gone, {resets} resets")
    assert resets + len(gone) > 0, "nothing was lost"


async def among_monkeys(on: Scene, *, runs: int, every: Range) -> None:
    """Have runs done while the store is killed again and again; all must end right."""
    on.redis.ask("CONFIG", "SET", "appendfsync", "always")

    async def one(n: int) -> None:
        await ask(on, "monkey", n)

    kills = await under_kills(on, one, runs, every=every)
    assert kills >= 2
    assert_whole(on)
    await on.reckon()
    tell(f"{runs} runs, {kills} kills of the store")


async def under_kills(
    on: Scene,
    one: Callable[[int], Awaitable[None]],
    count: int,
    *,
    every: Range,
    loses: Range | None = None,
) -> int:
    """Do something so often while the store is killed again and again; gives how often it was.

    With `loses` it comes back as it was so many seconds before.
    """
    draw, room, done = random.Random(10), asyncio.Semaphore(AT_ONCE), asyncio.Event()
    kills = 0

    async def monkey() -> None:
        nonlocal kills
        while not await is_set_within(done, draw.uniform(*every)):
            if loses:
                await asyncio.to_thread(on.redis.copy_data)
                await asyncio.sleep(draw.uniform(*loses))
            await asyncio.to_thread(on.redis.kill)
            on.trouble("kill -9 redis", 2.0 + USUAL)
            if loses:
                await asyncio.to_thread(on.redis.restore_data)
            await asyncio.sleep(draw.uniform(0.0, 2.0))
            await asyncio.to_thread(on.redis.start)
            kills += 1

    async def within(n: int) -> None:
        async with room:
            await one(n)

    async with asyncio.TaskGroup() as group:
        group.create_task(monkey())
        async with asyncio.TaskGroup() as asking:
            for n in range(count):
                asking.create_task(within(n))
        done.set()
    await all_ready(on.pods)
    return kills


async def is_set_within(event: asyncio.Event, seconds: float) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


def forget(on: Scene, runs: set[str]) -> None:
    """Leave runs out of the reckoning."""
    on.history[:] = [event for event in on.history if event.get("run") not in runs]
    on.callers[:] = [caller for caller in on.callers if caller.run not in runs]


def note_lost_ends(on: Scene, run: str, log: Sequence[Frame]) -> None:
    """Note which ends that somebody had heard were lost, where a new owner found a loss later."""
    for event in records([f for f in log if f.event == "owner_changed"]):
        for caller in on.callers:
            if caller.run == run and caller.end and caller.ended < event["t"]:
                end = {"kind": "lost", "run": run, "keys": [], "end": (caller.last, caller.end)}
                on.history.append({"t": event["t"], "actor": "log", **end})
