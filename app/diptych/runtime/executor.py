"""One run, from its record to its end.

What the record does not show did not happen (loop.md §9); a run that was opened just now has a
short one.

Not here: whose turn it is (`turns`), how a run proceeds (`loop`, `runner`).
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from diptych.errors import BlobMissing, LoopError, RunLost, StoreError, StoreFull
from diptych.loop.codec import Record, decode
from diptych.loop.events import Event, Failed, OwnerChanged, Stop
from diptych.loop.messages import Message
from diptych.loop.reducer import apply_all, replay
from diptych.loop.state import Phase, Run
from diptych.runtime.active_run import ActiveRun, Stores, is_last
from diptych.runtime.definition import AgentDefinition, CatalogRecorder
from diptych.runtime.effects import Backends
from diptych.runtime.runner import OUT_OF_TIME, Runner

MOST_OWNERS = 10  # of one run, after which it is taken for what kills them
WAITED_SECONDS = 0.4  # after which something may have been asked of a run before its turn
_log = logging.getLogger(__name__)


class UnreadableRecord(Exception):
    """This version cannot read a run's record: a newer one wrote it."""


class Executor:
    """Takes runs to their ends, any number at a time."""

    def __init__(self, charter: AgentDefinition, outside: Backends, stores: Stores) -> None:
        self._charter = charter
        self._outside = outside
        self._stores = stores
        self._offering = CatalogRecorder(charter, outside, stores.log)

    async def carry(self, live: ActiveRun) -> Run:
        """Take a run to its end, or to where it is to be left.

        Raises `UnreadableRecord`, and what says that the run is not this process's any more.
        """
        try:
            run = await self.restored(live)
        except BlobMissing:
            return await _given_up(live)
        if run.phase is Phase.DONE:
            return run
        try:
            return await self._drive(live, run)
        except StoreFull:
            stop = Failed("store_full", "the store has no room left for the record of this run")
        except (StoreError, RunLost):
            raise
        except Exception:  # noqa: BLE001 - whatever broke: the run ends, and its followers hear it
            _log.exception("run %s broke", live.run_id)
            stop = Failed("internal_error", "the agent failed inside")
        return await live.finish(live.run or run, stop)

    async def end(self, live: ActiveRun, run: Run, stop: Stop) -> Run:
        """End a run that waits for its turn, or that the store has put back there."""
        if run.phase is Phase.DONE:
            return run
        if live.was_resumed and await self._stores.leases.may_be_truncated(live.run_id):
            lost = [OwnerChanged(lost_tail=True)]
            await live.record(lost)
            run = apply_all(run, lost)
        return await live.finish(run, stop)

    async def restored(self, live: ActiveRun) -> Run:
        """Rebuild a run from its record, which is here already if the run was opened here."""
        if not live.records:
            live.resume(await self._stores.log.read(live.run_id))
        if live.was_resumed or live.age > WAITED_SECONDS:
            for demand in await self._stores.leases.pending_signals(live.run_id):
                live.send_signal(demand)
        history: tuple[Message, ...] = ()
        if not live.is_first:
            history = await self._stores.sessions.conversation(live.session_id)
        try:
            return replay(await self._events(live.records), history)
        except (LoopError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise UnreadableRecord(
                f"this version cannot read its record, and a newer one must ({error})"
            ) from error

    async def _events(self, records: Sequence[Record]) -> list[Any]:
        log = self._stores.log
        keys = [str(r.content) for r in records if r.event_type == "offered"]
        blobs = {key: await log.get_blob(key) for key in keys}
        return [decode(r.event_type, r.content, r.metadata, blobs.__getitem__) for r in records]

    async def _drive(self, live: ActiveRun, run: Run) -> Run:
        if run.phase is Phase.QUEUED and (stop := live.stopped or _too_late(live, run)):
            return await self.end(live, run, stop)
        runner = Runner(run, self._outside, live, self._late_at(live, run))
        first: list[Event] = []
        leases = self._stores.leases
        if run.phase is Phase.QUEUED:
            if live.was_resumed and await leases.may_be_truncated(live.run_id):
                first.append(OwnerChanged(lost_tail=True))  # it may have been further
            offered = await self._offering.now()
            first += [*live.spoken(), offered]  # what was said joins before the model is asked
        elif sum(r.event_type == "owner_changed" for r in live.records) >= MOST_OWNERS:
            runner.end(Failed("too_many_owners", "every process that took this run up has died"))
        else:
            first.append(OwnerChanged(await leases.may_be_truncated(live.run_id)))
        live.drive_by(runner)
        return await runner.drive(*first)

    def _late_at(self, live: ActiveRun, run: Run) -> float | None:
        """Say when a run has had its time, by the event loop's clock."""
        now = asyncio.get_running_loop().time()
        lates: list[float] = []
        if run.origin.seconds is not None:
            lates.append(now + run.origin.seconds - live.age)
        if self._charter.seconds is not None:
            begun = next((r.timestamp for r in live.records if r.event_type == "offered"), None)
            spent = 0.0 if begun is None else max(0.0, self._stores.clock.now() - begun)
            lates.append(now + self._charter.seconds - spent)
        return min(lates, default=None)


async def _given_up(live: ActiveRun) -> Run:
    """End a run that nobody can rebuild any more."""
    if not is_last(live.records[-1]):
        await live.record([Failed("store_lost", "the store has lost what this run was offered")])
    return Run(phase=Phase.DONE)


def _too_late(live: ActiveRun, run: Run) -> Stop | None:
    seconds = run.origin.seconds
    return OUT_OF_TIME if seconds is not None and live.age >= seconds else None
