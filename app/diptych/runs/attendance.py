"""Whether somebody still waits for a run that comes from another agent.

Its caller asks for a lease: while it is subscribed, by whatever replica, the run is attended. A run
that nobody has attended for so long is aborted: its caller died, and no other process took over.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from diptych.core.errors import StoreError
from diptych.core.events import Aborted
from diptych.ports import Feed, FeedItem, Notice
from diptych.runs.active_run import ActiveRun

UNATTENDED = Aborted("the agent that gave this task has gone, and nobody took its place")
_logger = logging.getLogger(__name__)


def attend(feed: Feed, run_id: str, active: ActiveRun | None) -> None:
    """Say that somebody waits for a run, to its owner: here, or at another process."""
    if active:
        active.attend()
    else:
        feed.publish_notice(_channel(run_id), Notice("attended"))


@asynccontextmanager
async def abandoned_after(seconds: float, active: ActiveRun, feed: Feed) -> AsyncIterator[None]:
    """Abort the run of the block once nobody has attended it for so long."""
    watching = asyncio.create_task(_watch(seconds, active, feed))
    try:
        yield
    finally:
        watching.cancel()


async def _watch(seconds: float, active: ActiveRun, feed: Feed) -> None:
    """Stop the run once nobody has attended it for so long, and somebody could.

    Not while it is not surely owned: the store is away, or this process stood still, and what was
    said meanwhile was not heard. After that the time begins anew.
    """

    def hear(_: FeedItem) -> None:
        active.attend()  # a gap counts, too: somebody may have been missed

    loop = asyncio.get_running_loop()
    active.attend()
    unsubscribe = None
    try:
        while (left := active.attended_at + seconds - loop.time()) > 0:
            if unsubscribe is None:
                with suppress(StoreError):  # it is tried again
                    unsubscribe = await feed.subscribe(_channel(active.run_id), hear)
            await asyncio.sleep(min(left, seconds / 4))
            if unsubscribe is None or not active.log.is_surely_owned:
                await active.log.wait_owned()
                active.attend()
        _logger.warning("run %s is aborted: %s", active.run_id, UNATTENDED.reason)
        active.stop(UNATTENDED)
    finally:
        if unsubscribe:
            unsubscribe()


def _channel(run_id: str) -> str:
    return f"{run_id}:attended"
