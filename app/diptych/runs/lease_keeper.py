"""Renews this process's leases, takes over unowned sessions, and ends overdue runs.

The leases of a dead owner expire; an owner that shuts down releases them and announces it.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress

from diptych.core.errors import RunLost, RunNotFound, StoreError
from diptych.ports.stores import Stores
from diptych.runs.runner import DEADLINE_EXCEEDED
from diptych.runs.scheduler import Scheduler

TAKEOVER_SECONDS = 2.0  # between searches for sessions whose owner died
ROOM_SECONDS = 0.1  # between checks for capacity for another session
RENEWALS_PER_LEASE = 4
_logger = logging.getLogger(__name__)


class LeaseKeeper:
    """Three background tasks, needed only with a shared store."""

    def __init__(self, scheduler: Scheduler, stores: Stores) -> None:
        self._scheduler = scheduler
        self._stores = stores
        self._interval = 0.0  # seconds between renewals
        self._tasks: list[asyncio.Task[None]] = []
        self._released: dict[str, None] = {}  # sessions in order of release
        self._wake = asyncio.Event()
        self.takes_over = True

    def start(self) -> None:
        if (seconds := self._stores.leases.lease_seconds) is None:
            return
        self._stores.feed.on_hand_over(self._on_hand_over)
        self._interval = seconds / RENEWALS_PER_LEASE
        steps = {
            "cannot renew leases": self._renew_leases,
            "cannot search for overdue runs": self._end_overdue_runs,
            "cannot search for unowned sessions": self._take_over_sessions,
        }
        repeating = (self._repeat(step, failed) for failed, step in steps.items())
        self._tasks = [asyncio.create_task(work) for work in repeating]

    async def close(self) -> None:
        """End these tasks."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _repeat(self, step: Callable[[], Awaitable[None]], failed: str) -> None:
        """Repeat a step forever, and log its failures as `failed`."""
        while True:
            try:
                await step()
            except StoreError as error:
                _logger.warning("%s: %s", failed, error)
            except Exception:
                _logger.exception("%s", failed)

    async def _end_overdue_runs(self) -> None:
        """Signal the owners of queued runs whose deadline has passed."""
        await asyncio.sleep(self._interval)
        for run_id in await self._stores.leases.overdue_runs():
            with suppress(RunNotFound, RunLost):
                await self._stores.leases.send_signal(run_id, DEADLINE_EXCEEDED)

    async def _renew_leases(self) -> None:
        await asyncio.sleep(self._interval)
        leases, asked_at = self._scheduler.leases, asyncio.get_running_loop().time()
        lost = await self._stores.leases.renew(leases) if leases else ()
        held = [lease for lease in leases if lease not in lost]
        self._scheduler.note_renewal(held, asked_at)
        for lease in lost:
            await self._scheduler.lose(lease)

    async def _take_over_sessions(self) -> None:
        await self._wait_for_work()
        try:
            found = list(self._released) or await self._stores.leases.unowned_sessions()
            self._released.clear()
            for session_id in found:
                await self._take_over_or_leave(session_id)
        finally:
            if (
                not self._scheduler.has_room
            ):  # there may be more: search again once there is capacity
                self._wake.set()

    async def _wait_for_work(self) -> None:
        """Wait for a released session or the next search, and then for capacity."""
        with suppress(TimeoutError):
            async with asyncio.timeout(TAKEOVER_SECONDS * random.uniform(0.8, 1.2)):  # noqa: S311 - spreads
                await self._wake.wait()
        self._wake.clear()
        while not (self.takes_over and self._scheduler.has_room):  # noqa: ASYNC110 - it is cheap
            await asyncio.sleep(ROOM_SECONDS)

    async def _take_over_or_leave(self, session_id: str) -> None:
        """Take over one session; log a failure and go on."""
        try:
            await self._take_over(session_id)
        except StoreError as error:
            _logger.warning("cannot take over session %s: %s", session_id, error)

    async def _take_over(self, session_id: str) -> None:
        scheduler, stores = self._scheduler, self._stores
        if not (self.takes_over and scheduler.has_room):
            return
        head = await stores.leases.queue_head(session_id)
        if head is None or not scheduler.may_own(session_id, head.run_id):
            return
        if not scheduler.admission.may_claim(head):
            return
        asked_at = asyncio.get_running_loop().time()
        if lease := await stores.leases.claim(session_id, stores.clock.token()):
            _logger.info("taking over session %s", session_id)
            scheduler.start_session(lease, asked_at)

    def _on_hand_over(self, session_id: str) -> None:
        self._released[session_id] = None
        self._wake.set()
