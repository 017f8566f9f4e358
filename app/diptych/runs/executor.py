"""Executes one run: rebuilds it from its log, gives it a runner, and handles its end.

A delegated run is leased to its caller: it is attended while the caller is subscribed, at any
replica, and aborted after a lease's time unattended.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import replace

from diptych.budgets.run_meter import RunMeter
from diptych.budgets.shared_budget_meter import meter_of
from diptych.core.codec import TERMINAL, Record, encode, is_terminal
from diptych.core.errors import BlobMissing, OutOfMemory, RunLost, StoreError, StoreFull
from diptych.core.events import Aborted, Event, Failed, OwnerChanged, Stop
from diptych.core.reducer import apply_all
from diptych.core.state import Phase, Run
from diptych.core.waits import waited_seconds
from diptych.ports import Feed, FeedItem, Notice, RunTrace
from diptych.ports.entries import Lease
from diptych.ports.stores import Stores
from diptych.runs.active_run import ActiveRun
from diptych.runs.backends import Backends
from diptych.runs.catalog_recorder import CatalogRecorder
from diptych.runs.definition import AgentDefinition
from diptych.runs.run_log import RunLog, rebuild
from diptych.runs.runner import DEADLINE_EXCEEDED, Runner
from diptych.runs.timers import Deadline

UNATTENDED = Aborted("the agent that delegated this task is gone, and no replica took over")
MAX_OWNER_CHANGES, OWNER_CHANGES_SECONDS = 10, 600.0
"""A run with this many new owners in this time is ended."""
SIGNALS_AFTER = 0.4  # seconds in the queue after which the store may hold signals for a run
TOO_MANY_CHANGES = Failed(
    "too_many_owners",
    f"{MAX_OWNER_CHANGES} processes took over this run within {OWNER_CHANGES_SECONDS / 60:.0f} "
    "minutes, and none could continue it",
)
_logger = logging.getLogger(__name__)


class Executor:
    """Executes any number of runs at a time."""

    def __init__(self, definition: AgentDefinition, backends: Backends, stores: Stores) -> None:
        self._definition = definition
        self._backends = backends
        self._stores = stores
        self._catalogs = CatalogRecorder(definition, backends, stores.log, stores.clock)

    async def execute(self, active: ActiveRun) -> Run:
        """Execute a run to its end, or until it is handed over.

        Raises `UnreadableRecord`, and `StoreError` or `RunLost` if this process cannot continue.
        """
        try:
            run = await self._restore(active)
        except BlobMissing:
            return await _fail_without_catalog(active.log)
        with self._traced(active.log) as trace:
            if run.phase is Phase.DONE:
                return await self._found_ended(active, run)
            try:
                return await self._drive(active, run, trace)
            except StoreFull:
                stop = Failed("store_full", "the store has no room for this run's log")
            except OutOfMemory as error:
                stop = Failed("out_of_memory", str(error))
            except (StoreError, RunLost):
                raise
            except Exception:
                _logger.exception("run %s failed with an unexpected error", active.run_id)
                stop = Failed("internal_error", "an internal error of the agent")
            return await active.finish(active.run or run, stop)

    async def end_unread(self, active: ActiveRun, lease: Lease, why: Failed) -> Run:
        """End a run that nobody can execute, without reading its log."""
        entry = await self._stores.log.entry(active.run_id)
        if entry.status not in TERMINAL:
            event_type, content, metadata = encode(why)
            now = self._stores.clock.now()
            end = Record(
                entry.run_id, entry.session_id, entry.seq + 1, event_type, now, content, metadata
            )
            await self._stores.log.append([end], lease)
            _logger.error("run %s was ended: %s", entry.run_id, why.message)
        return Run(phase=Phase.DONE)

    async def end_queued(self, active: ActiveRun, stop: Stop) -> Run:
        """End a run before its turn, or for lack of memory. Raises as `execute`."""
        run = await self._restore(active)
        with self._traced(active.log):
            return await self._end(active, run, stop)

    async def _end(self, active: ActiveRun, run: Run, stop: Stop) -> Run:
        """End a queued run, or one queued again because the store lost its newest records."""
        if run.phase is Phase.DONE:
            return await self._found_ended(active, run)
        if await self._may_be_truncated(active.log):
            truncated = [OwnerChanged(lost_tail=True)]
            await active.log.append(truncated)
            run = apply_all(run, truncated)
        ended = await active.finish(run, stop)
        await self._meter(active.log).close(has_ended=True)
        return ended

    async def _found_ended(self, active: ActiveRun, run: Run) -> Run:
        """Charge what a dead owner logged, including the end, but did not charge."""
        await self._meter(active.log).close(has_ended=True)
        return run

    async def _restore(self, active: ActiveRun) -> Run:
        """Rebuild a run from its log, and deliver signals sent while it had no owner."""
        log, stores = active.log, self._stores
        if not log.records:
            log.load(await stores.log.read(log.run_id))
            active.was_opened(stores.clock.now() - log.records[0].timestamp)
        if log.was_loaded or active.age > SIGNALS_AFTER:
            for signal in await stores.leases.pending_signals(log.run_id):
                active.signal(signal)
        return await rebuild(log.records, stores, () if active.is_new_session else None)

    async def _drive(self, active: ActiveRun, run: Run, trace: RunTrace | None) -> Run:
        if run.phase is Phase.QUEUED and (stop := active.stop_requested or _overdue(active, run)):
            return await self._end(active, run, stop)
        log = active.log
        deadline = self._deadline(active, run)
        backends = replace(self._backends, meter=self._meter(log), trace=trace)
        newest = backends.newest_model and backends.newest_model()
        if newest:
            backends = replace(backends, model=newest.model, habits=newest.habits)
        runner = Runner(run, backends, log, deadline, self._catalogs)
        first: list[Event] = []
        if run.phase is Phase.QUEUED:
            if await self._may_be_truncated(log):
                first.append(OwnerChanged(lost_tail=True))  # it may have got further
            offered = await self._catalogs.offered_now(newest, run.request.tools)
            first += [*active.mailbox.take(), offered]  # before the first model request
        else:
            if _changes_owners_fast(log):
                runner.stop(TOO_MANY_CHANGES)
            first.append(OwnerChanged(await self._stores.leases.may_be_truncated(log.run_id)))
        active.attach(runner)
        try:
            if run.origin.lease is None:
                return await runner.drive(*first)
            async with abandoned_after(run.origin.lease, active, self._stores.feed):
                return await runner.drive(*first)
        finally:
            await backends.meter.close(has_ended=is_terminal(log.records[-1]))

    def _traced(self, log: RunLog) -> AbstractContextManager[RunTrace | None]:
        """Trace a run during the block, if tracing is on."""
        if (tracing := self._backends.tracing) is None:
            return nullcontext()
        return tracing.of_run(log.run_id, log.session_id, lambda: log.records)

    def _meter(self, log: RunLog) -> RunMeter:
        return meter_of(self._backends.budgets, log)

    async def _may_be_truncated(self, log: RunLog) -> bool:
        return log.was_loaded and await self._stores.leases.may_be_truncated(log.run_id)

    def _deadline(self, active: ActiveRun, run: Run) -> Deadline:
        """Return the caller's and the manifest's deadline; approvals extend the latter."""
        now = asyncio.get_running_loop().time()
        records, time = active.log.records, self._stores.clock.now()
        waited = waited_seconds(records, time)
        callers, pausing = None, list[float]()
        if run.origin.seconds is not None:
            callers = now + run.origin.seconds - active.age
            if run.origin.deadline_pauses:
                pausing, callers = [callers + waited], None
        if self._definition.deadline is not None:
            begun = next((r.timestamp for r in records if r.event_type == "offered"), time)
            spent = max(0.0, time - begun - waited)
            pausing.append(now + self._definition.deadline - spent)
        return Deadline(callers, min(pausing, default=None))


async def _fail_without_catalog(log: RunLog) -> Run:
    """End a run that cannot be rebuilt."""
    if not is_terminal(log.records[-1]):
        await log.append([Failed("store_lost", "the store lost this run's catalog")])
    return Run(phase=Phase.DONE)


def _changes_owners_fast(log: RunLog) -> bool:
    since = log.now() - OWNER_CHANGES_SECONDS
    changes = (r for r in log.records if r.event_type == "owner_changed" and r.timestamp > since)
    return sum(1 for _ in changes) >= MAX_OWNER_CHANGES


def _overdue(active: ActiveRun, run: Run) -> Stop | None:
    seconds = run.origin.seconds
    return DEADLINE_EXCEEDED if seconds is not None and active.age >= seconds else None


def attend(feed: Feed, run_id: str, active: ActiveRun | None) -> None:
    """Tell a run's owner, at any process, that the caller still waits."""
    if active:
        active.attend()
    else:
        feed.publish_notice(_channel(run_id), Notice("attended"))


@asynccontextmanager
async def abandoned_after(seconds: float, active: ActiveRun, feed: Feed) -> AsyncIterator[None]:
    """Abort the run of the block once it was unattended for `seconds`."""
    watching = asyncio.create_task(_watch(seconds, active, feed))
    try:
        yield
    finally:
        watching.cancel()


async def _watch(seconds: float, active: ActiveRun, feed: Feed) -> None:
    """Stop the run once it was unattended for `seconds`.

    While the store is away or this process is frozen, no notice arrives, so the time starts again
    afterwards.
    """

    def on_attended(_: FeedItem) -> None:
        active.attend()  # a gap counts too: it may hide a notice

    loop = asyncio.get_running_loop()
    active.attend()
    unsubscribe = None
    try:
        while (left := active.attended_at + seconds - loop.time()) > 0:
            if unsubscribe is None:
                with suppress(StoreError):  # retried below
                    unsubscribe = await feed.subscribe(_channel(active.run_id), on_attended)
            await asyncio.sleep(min(left, seconds / 4))
            if unsubscribe is None or not active.log.is_surely_owned:
                await active.log.wait_owned()
                active.attend()
        _logger.warning("run %s was aborted: %s", active.run_id, UNATTENDED.reason)
        active.stop(UNATTENDED)
    finally:
        if unsubscribe:
            unsubscribe()


def _channel(run_id: str) -> str:
    return f"{run_id}:attended"
