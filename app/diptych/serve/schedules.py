"""Runs an agent's schedules on a laptop; in a cluster CronJobs do.

A time that passed more than a minute ago was missed: the process was away, asleep or blocked.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from diptych.access.grants import Subject
from diptych.core.codec import Record, is_terminal
from diptych.core.errors import DiptychError
from diptych.core.messages import Message
from diptych.http.health import ScheduledEnd
from diptych.manifest.settings import ScheduleConfig
from diptych.ports import Item
from diptych.ports.entries import IdempotencyKey
from diptych.ports.ids import owner_key, owner_of
from diptych.ports.stores import EventLog
from diptych.runs.request import SCHEDULE, RunRequest
from diptych.runs.service import RunService

LATE_SECONDS = 60.0  # up to which a time is not missed; also in the operator's CronJobs
_LOOK_SECONDS = 30.0  # a machine that was asleep looks at the clock again after at most this
_RETRY_SECONDS = 5.0
_MAX_RUNS = 1_000  # that are searched for a schedule's last run
_logger = logging.getLogger(__name__)


class ScheduledRuns:
    """The ends of scheduled runs that this process executed; `observe` sees every record.

    `ends` has the last one of each schedule, by its name, or in a cluster by that of its CronJob.
    """

    def __init__(self) -> None:
        self.ends: dict[str, ScheduledEnd] = {}
        self._running: dict[str, str] = {}

    def observe(self, item: Item) -> None:
        if not isinstance(item, Record):
            return
        if item.seq == 1:
            notes = item.metadata.get("notes")
            if isinstance(notes, Mapping) and isinstance(name := notes.get(SCHEDULE), str):
                self._running[item.run_id] = name
        elif is_terminal(item) and (name := self._running.pop(item.run_id, "")):
            self.ends[name] = ScheduledEnd(name, item.run_id, item.event_type, item.timestamp)


class Schedules:
    """The schedules of one agent. `now` returns a Unix time in seconds."""

    def __init__(
        self,
        schedules: Sequence[ScheduleConfig],
        runs: RunService,
        log: EventLog,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._schedules = schedules
        self._runs = runs
        self._log = log
        self._now = now
        self._sleep = sleep

    async def run(self) -> None:
        """Start the runs of all schedules, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for schedule in self._schedules:
                group.create_task(self._run(schedule))

    async def _run(self, schedule: ScheduleConfig) -> None:
        done = self._now()  # up to here no run is owed
        if schedule.runs_missed:
            done = await self._last_begun(schedule, done)
        while True:
            now = self._now()
            due = schedule.cron.last_until(now)
            is_owed = due is not None and due > done and self._may_start(schedule, now - due)
            if due and is_owed and not await self._start(schedule, due):
                await self._sleep(_RETRY_SECONDS)
                continue
            done = max(done, now)
            following = schedule.cron.next_after(done)
            wait = _LOOK_SECONDS if following is None else following - self._now()
            await self._sleep(min(max(wait, 0.0), _LOOK_SECONDS))

    @staticmethod
    def _may_start(schedule: ScheduleConfig, late: float) -> bool:
        if schedule.runs_missed or late <= LATE_SECONDS:
            return True
        _logger.warning("schedule %s: a time was missed, %d s ago", schedule.name, late)
        return False

    async def _start(self, schedule: ScheduleConfig, due: float) -> bool:
        """Start the run of a time; False if that must be tried again.

        Processes that share a store start one run for each time: the time is its idempotency key.
        """
        subject = str(Subject("schedule", schedule.name))
        request = RunRequest(
            (Message("user", schedule.message),),
            session_id=schedule.session,
            idempotency_key=IdempotencyKey(f"{subject}:{due:.0f}", ""),
            owner=owner_key(subject),
            subject=subject,
            notes={SCHEDULE: schedule.name},
        )
        try:
            entry = await self._runs.start(request)
        except DiptychError as error:
            _logger.error("schedule %s: no run could be started: %s", schedule.name, error)
            return False
        _logger.info("schedule %s: started %s", schedule.name, entry.run_id)
        return True

    async def _last_begun(self, schedule: ScheduleConfig, now: float) -> float:
        """Return when the schedule's newest stored run was started; `now` if there is none."""
        owner = owner_key(str(Subject("schedule", schedule.name)))
        try:
            newest = await self._log.entries(None, limit=_MAX_RUNS)
        except DiptychError as error:
            _logger.error("schedule %s: its last run is unknown: %s", schedule.name, error)
            return now
        begun = (entry.created for entry in newest if owner_of(entry.session_id) == owner)
        return next(begun, now)
