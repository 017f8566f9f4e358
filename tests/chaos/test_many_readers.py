"""Many readers of one run, and many requests that are one (faults.md C6, C7)."""

import asyncio
from collections import Counter

from support.callers import Caller
from support.scene import Scene, scene
from support.stack import script

TEXT = " ".join(f"w{n}" for n in range(40))


async def read(on: Scene, run: str, n: int) -> Caller:
    """Read a run from its start."""
    caller = on.caller(f"reader {n}", n)
    await caller.subscribe(run)
    return caller


async def test_a_hundred_readers_of_a_run_at_once_hear_the_same_bytes_of_one_producer() -> None:
    mock = script("{}", {"content": TEXT, "chunk_ms": 60})
    async with scene(DEBUG_MOCK_RESPONSES=mock) as on:
        asking = on.caller("asking")
        run = await asking.start("count", 20.0)
        await asyncio.sleep(0.5)
        async with asyncio.timeout(30):
            found = await asyncio.gather(*(read(on, run, n) for n in range(100)))
        logs = await on.reckon()
        whole = {frame.id: frame.raw for frame in logs[run]}
        for caller in found:
            assert (caller.frames, caller.text) == (whole, TEXT)
        assert Counter(frame.event for frame in logs[run])["offered"] == 1
