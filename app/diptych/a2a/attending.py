"""Says again and again that somebody waits for a task, while a stream of it is open."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from diptych.a2a.extension import LEASE_SECONDS
from diptych.http.guarded_runs import GuardedRuns

SECONDS = LEASE_SECONDS / 6


@asynccontextmanager
async def attending(runs: GuardedRuns, run_id: str) -> AsyncIterator[None]:
    """Attend a run as long as the block takes, and once more at its end."""
    task = asyncio.create_task(_attend(runs, run_id))
    try:
        yield
    finally:
        task.cancel()
        runs.attend(run_id)


async def _attend(runs: GuardedRuns, run_id: str) -> None:
    while True:
        runs.attend(run_id)
        await asyncio.sleep(SECONDS)
