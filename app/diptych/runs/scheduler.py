"""Runs the sessions that this process owns: the runs of each one after another.

A session is owned by whoever holds its lease: its opener, or who has taken it over.
"""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, assert_never

from diptych.core.errors import LeaseLost, LogTruncated, RunLost, RunNotFound, StoreError
from diptych.core.events import (
    Aborted,
    ApprovalDecided,
    Failed,
    MessageQueued,
    QueueCleared,
    Signal,
    Stop,
)
from diptych.core.state import Phase, Run
from diptych.net.memory_budget import MemoryBudget
from diptych.ports.entries import Lease
from diptych.runs.active_run import ActiveRun, Stage
from diptych.runs.backends import Backends
from diptych.runs.definition import AgentDefinition
from diptych.runs.executor import Executor
from diptych.runs.owned_sessions import OwnedSessions
from diptych.runs.rebuilding import UnreadableRecord
from diptych.runs.run_log import Observer, RunLog
from diptych.runs.runner import DEADLINE_EXCEEDED
from diptych.runs.stores import Stores
from diptych.runs.turn_admission import TurnAdmission

HAND_OVER_SECONDS = 3.0  # for which a leaving process waits for a store that is away
_logger = logging.getLogger(__name__)


class Scheduler:
    """The active runs of this process: queued until their turn, or executing."""

    def __init__(
        self,
        definition: AgentDefinition,
        backends: Backends,
        stores: Stores,
        observers: Sequence[Observer] = (),
        memory_budget: MemoryBudget | None = None,
    ) -> None:
        self.admission = TurnAdmission(stores, memory_budget or MemoryBudget())
        self._max_runs = definition.max_runs
        self._stores = stores
        self._observers = tuple(observers)
        self._executor = Executor(definition, backends, stores)
        self._active: dict[str, ActiveRun] = {}
        self.owned = OwnedSessions(stores.leases.lease_seconds)
        self._unreadable: dict[str, str] = {}  # runs that a newer version wrote, by their sessions
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_shutting_down = False
        stores.feed.on_signal(self._on_signal)

    @property
    def active_count(self) -> int:
        return len(self._active)

    def count_in(self, prefix: str) -> int:
        """How many active runs are in sessions whose stored ids begin with `prefix`."""
        return sum(a.log.session_id.startswith(prefix) for a in self._active.values())

    @property
    def has_room(self) -> bool:
        """Whether another session may be taken over, counting those that were taken just now."""
        have_runs = {active.log.session_id for active in self._active.values()}
        starting = sum(session_id not in have_runs for session_id in self.owned.ids)
        return len(self._active) + starting < self._max_runs

    def find(self, run_id: str) -> ActiveRun | None:
        """Give an active run whose record is known here."""
        active = self._active.get(run_id)
        return active if active and active.log.records else None

    def register(
        self, run_id: str, session_id: str, *, is_new_session: bool = False, subject: str = ""
    ) -> ActiveRun:
        """Make a run active whose log nothing is in yet; see `schedule` and `remove`."""
        share = self.admission.memory_budget.share(subject)
        log = RunLog(run_id, session_id, self._stores, self._observers, share)
        active = self._active[run_id] = ActiveRun(log, is_new_session=is_new_session)
        return active

    def schedule(self, active: ActiveRun, lease: Lease | None, seconds: float | None) -> None:
        """Execute an opened run when its turn comes, if this process owns its session.

        `seconds` is what is left until its caller's deadline, which holds while it waits, too.
        """
        if seconds is not None:
            loop = asyncio.get_running_loop()
            if active.stage is Stage.QUEUED:  # its turn may have come: then its runner has it
                active.set_deadline(loop.call_later(seconds, self.stop, active, DEADLINE_EXCEEDED))
        if lease is not None:
            opened_at = asyncio.get_running_loop().time() - active.age
            run_id = active.run_id if active.is_new_session else None
            self.start_session(lease, opened_at, run_id)
        if session := self.owned.get(active.log.session_id):
            active.log.take(session)
        else:
            self._disown(active)

    def remove(self, active: ActiveRun) -> None:
        if self._active.get(active.run_id) is active:
            del self._active[active.run_id]
        self.admission.end(active.run_id)
        active.release()

    def stop(self, active: ActiveRun, stop: Stop) -> None:
        """End a run, also before its turn; the first reason counts."""
        if active.stop(stop) and active.log.lease and active.begin(Stage.CANCELLING):
            self._spawn(self._cancel_queued(active, stop, active.log.lease))

    async def wait_idle(self, seconds: float) -> None:
        """Wait until all runs have ended, at most so long."""
        if tasks := self.owned.tasks:
            await asyncio.wait(tasks, timeout=seconds)

    async def shut_down(self, *, if_not_handed_over: Stop) -> None:
        """End now. Runs that another process can continue are handed over, others are stopped.

        Without a shared store no other process can continue any.
        """
        self._is_shutting_down = True
        for active in tuple(self._active.values()):
            if self._outlive_process:
                active.hand_over()
            else:
                self.stop(active, if_not_handed_over)
        if tasks := self.owned.tasks:
            await asyncio.wait(tasks, timeout=HAND_OVER_SECONDS)
        tasks = [*self._tasks, *self.owned.tasks]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # Leases

    def may_own(self, session_id: str, run_id: str) -> bool:
        """Whether this process can read the run whose turn it is, as far as it knows."""
        return self._unreadable.get(session_id) != run_id

    def start_session(self, lease: Lease, asked_at: float, run_id: str | None = None) -> None:
        """Execute the runs of a session; `run_id` is the first, if it is known.

        The store was asked for its lease at `asked_at`, by the event loop's clock.
        """
        if former := self.owned.get(lease.session_id):  # stale, and it does not know yet
            former.task.cancel()
            self._disown_all(former.lease)
        self.owned.add(lease, asyncio.create_task(self._execute_all(lease, run_id)), asked_at)

    async def lose(self, lease: Lease) -> None:
        """Stop executing the runs of a session whose lease was lost."""
        session = self.owned.under(lease)
        if session is None:
            return
        _logger.warning("session %s is not owned here any more", lease.session_id)
        lost = [a for a in self._under(lease) if await self._stores.has_lost(a.run_id)]
        session.task.cancel()
        for active in lost:
            active.log.report_lost()

    @property
    def _outlive_process(self) -> bool:
        return self._stores.leases.lease_seconds is not None

    def _under(self, lease: Lease) -> list[ActiveRun]:
        return [active for active in self._active.values() if active.log.lease == lease]

    def _disown_all(self, lease: Lease) -> None:
        for active in self._under(lease):
            self._disown(active)

    def _disown(self, active: ActiveRun) -> None:
        """Remove a run that another process executes; its caller's deadline still holds."""
        if (until := active.waits_until) is not None:
            seconds = until - asyncio.get_running_loop().time()
            self._spawn(self._signal_deadline(active.run_id, seconds))
        self.remove(active)

    # One session

    async def _execute_all(self, lease: Lease, run_id: str | None) -> None:
        leases = self._stores.leases
        try:
            run_id = run_id or await leases.next_run(lease)
            while run_id is not None:
                run_id = await self._execute_one(run_id, lease)
        except LeaseLost:
            _logger.warning("another process has taken over session %s", lease.session_id)
        except (RunLost, RunNotFound):
            _logger.error("the store has lost session %s", lease.session_id)
            for active in self._under(lease):
                active.log.report_lost()
        except StoreError as error:
            _logger.warning("session %s is released for a takeover: %s", lease.session_id, error)
            with suppress(StoreError):
                await leases.release(lease)
        except Exception:  # whoever takes it over counts a death: it may be what that one dies of
            _logger.exception("session %s cannot be executed here", lease.session_id)
        finally:
            self.owned.remove(lease)
            self._disown_all(lease)

    async def _execute_one(self, run_id: str, lease: Lease) -> str | None:
        """Execute the run whose turn it is. Gives the next one; None if the session is let go."""
        active = self._active.get(run_id) or self.register(run_id, lease.session_id)
        if not active.begin(Stage.EXECUTING):  # it is being cancelled
            await active.released.wait()
            return await self._stores.leases.next_run(lease)
        if (session := self.owned.under(lease)) is None:
            raise LeaseLost("another process has the session")
        active.log.take(session)
        run = await self._execute(active, lease)
        if run is None or run.phase is not Phase.DONE:
            await self._stores.leases.release(lease, hand_over=self._is_shutting_down)
            return None
        next_run = await self._finish(active, run, lease)
        self.remove(active)
        return next_run

    async def _execute(self, active: ActiveRun, lease: Lease) -> Run | None:
        """Execute a run to its end; None if it is left as it is."""
        if self._is_shutting_down and self._outlive_process:
            return None
        try:
            if denial := await self.admission.admit(active):
                if denial.is_readable:
                    return await self._executor.end_queued(active, denial.why)
                return await self._executor.end_unread(active, lease, denial.why)
            return await self._executor.execute(active)
        except UnreadableRecord as error:
            self._unreadable[active.log.session_id] = active.run_id
            _logger.error("run %s cannot be taken over: %s", active.run_id, error)
            return None

    async def _finish(self, active: ActiveRun, run: Run, lease: Lease) -> str | None:
        leases = self._stores.leases
        try:
            return await leases.finish_run(active.run_id, run.messages, lease)
        except LogTruncated as truncated:
            await active.log.restore(truncated)
            return await leases.finish_run(active.run_id, run.messages, lease)

    async def _cancel_queued(self, active: ActiveRun, stop: Stop, lease: Lease) -> None:
        """End a run before its turn; one that has ended meanwhile stays as it is."""
        try:
            run = await self._executor.end_queued(active, stop)
            await self._finish(active, run, lease)
        except (StoreError, RunNotFound, RunLost, UnreadableRecord) as error:
            _logger.warning("run %s could not be ended before its turn: %s", active.run_id, error)
        finally:
            self.remove(active)

    # Signals

    def _on_signal(self, session_id: str, run_id: str, signal: Signal) -> None:
        """Deliver a signal that was sent at another process."""
        active, session = self._active.get(run_id), self.owned.get(session_id)
        match signal:
            case MessageQueued() | QueueCleared() | ApprovalDecided():
                if active:  # a run that is not here yet reads its signals when its turn comes
                    active.signal(signal)
            case Aborted() | Failed():
                if active is None and session:  # another process put it into the queue
                    active = self.register(run_id, session_id)
                    active.log.take(session)
                if active:
                    self.stop(active, signal)
            case _:
                assert_never(signal)

    async def _signal_deadline(self, run_id: str, seconds: float) -> None:
        """End a run in time whose owner learns of its deadline only at its turn."""
        await asyncio.sleep(seconds)
        try:
            await self._stores.leases.send_signal(run_id, DEADLINE_EXCEEDED)
        except (StoreError, RunNotFound, RunLost) as error:
            _logger.warning("run %s cannot be told that its time is over: %s", run_id, error)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
