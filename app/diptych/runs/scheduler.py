"""Executes the sessions leased by this process, each session's runs one after another."""

import asyncio
import logging
import math
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any

from diptych.core.errors import LeaseLost, LogTruncated, RunLost, RunNotFound, StoreError
from diptych.core.events import Aborted, Failed, Signal, Stop
from diptych.core.state import Phase, Run
from diptych.net.memory_budget import MemoryBudget
from diptych.ports.entries import Lease
from diptych.ports.stores import Stores
from diptych.runs.active_run import ActiveRun, Stage
from diptych.runs.backends import Backends
from diptych.runs.definition import AgentDefinition
from diptych.runs.executor import Executor
from diptych.runs.run_log import Observer, OwnedSession, RunLog, UnreadableRecord
from diptych.runs.runner import DEADLINE_EXCEEDED
from diptych.runs.turn_admission import TurnAdmission

HAND_OVER_SECONDS = 3.0  # to wait for an unreachable store at shutdown
_logger = logging.getLogger(__name__)


class Scheduler:
    """The active runs of this process: queued or executing."""

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
        lease_seconds = stores.leases.lease_seconds
        self._lease_seconds = math.inf if lease_seconds is None else lease_seconds
        self._sessions: dict[str, OwnedSession] = {}  # by id
        self._unreadable: dict[str, str] = {}  # run ids that a newer version wrote, by session
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_shutting_down = False
        stores.feed.on_signal(self._on_signal)

    @property
    def active_count(self) -> int:
        return len(self._active)

    def count_in(self, prefix: str) -> int:
        """The number of active runs in sessions whose stored ids begin with `prefix`."""
        return sum(a.log.session_id.startswith(prefix) for a in self._active.values())

    @property
    def has_room(self) -> bool:
        """Whether another session may be taken over, counting sessions just taken over."""
        have_runs = {active.log.session_id for active in self._active.values()}
        starting = sum(session_id not in have_runs for session_id in self._sessions)
        return len(self._active) + starting < self._max_runs

    def find(self, run_id: str) -> ActiveRun | None:
        """Return an active run whose log is known here."""
        active = self._active.get(run_id)
        return active if active and active.log.records else None

    def register(
        self, run_id: str, session_id: str, *, is_new_session: bool = False, subject: str = ""
    ) -> ActiveRun:
        """Register a run with an empty log; see `schedule` and `remove`."""
        share = self.admission.memory_budget.share(subject)
        log = RunLog(run_id, session_id, self._stores, self._observers, share)
        active = self._active[run_id] = ActiveRun(log, is_new_session=is_new_session)
        return active

    def schedule(self, active: ActiveRun, lease: Lease | None, seconds: float | None) -> None:
        """Execute an opened run at its turn, if this process owns its session.

        The caller's deadline is in `seconds`, and applies while the run waits.
        """
        if (
            seconds is not None and active.stage is Stage.QUEUED
        ):  # otherwise its runner keeps the deadline
            loop = asyncio.get_running_loop()
            active.set_deadline(loop.call_later(seconds, self.stop, active, DEADLINE_EXCEEDED))
        if lease is not None:
            opened_at = asyncio.get_running_loop().time() - active.age
            run_id = active.run_id if active.is_new_session else None
            self.start_session(lease, opened_at, run_id)
        if session := self._sessions.get(active.log.session_id):
            active.log.take(session)
        else:  # another process executes it
            self.remove(active)

    def remove(self, active: ActiveRun) -> None:
        if self._active.get(active.run_id) is active:
            del self._active[active.run_id]
        self.admission.end(active.run_id)
        active.release()

    def stop(self, active: ActiveRun, stop: Stop) -> None:
        """End a run, even before its turn; the first reason counts."""
        if active.stop(stop) and active.log.lease and active.begin(Stage.CANCELLING):
            self._spawn(self._cancel_queued(active, stop, active.log.lease))

    async def wait_idle(self, seconds: float) -> None:
        """Wait for all runs to end, at most `seconds`."""
        if tasks := self._session_tasks:
            await asyncio.wait(tasks, timeout=seconds)

    async def shut_down(self, *, if_not_handed_over: Stop) -> None:
        """Stop at once: hand runs over to another process, or stop them if that is impossible.

        They cannot be handed over without a shared store.
        """
        self._is_shutting_down = True
        for active in tuple(self._active.values()):
            if self._outlive_process:
                active.hand_over()
            else:
                self.stop(active, if_not_handed_over)
        if tasks := self._session_tasks:
            await asyncio.wait(tasks, timeout=HAND_OVER_SECONDS)
        tasks = [*self._tasks, *self._session_tasks]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # Leases

    @property
    def leases(self) -> list[Lease]:
        """The leases of this process, as far as it knows."""
        return [session.lease for session in self._sessions.values()]

    def note_renewal(self, leases: Sequence[Lease], asked_at: float) -> None:
        """Note that leases were renewed at `asked_at` (event loop time)."""
        for lease in leases:
            if session := self._session_under(lease):
                session.owned_until = asked_at + self._lease_seconds

    def may_own(self, session_id: str, run_id: str) -> bool:
        """Whether this process can read the run whose turn it is, as far as it knows."""
        return self._unreadable.get(session_id) != run_id

    def start_session(self, lease: Lease, asked_at: float, run_id: str | None = None) -> None:
        """Execute the runs of a session; `run_id` is the first, if known.

        The lease was requested at `asked_at` (event loop time).
        """
        if former := self._sessions.get(lease.session_id):  # stale, without knowing it yet
            former.task.cancel()
            self._remove_all(former.lease)
        task = asyncio.create_task(self._execute_all(lease, run_id))
        until = asked_at + self._lease_seconds
        self._sessions[lease.session_id] = OwnedSession(lease, task, until)

    async def lose(self, lease: Lease) -> None:
        """Stop executing a session whose lease was lost."""
        session = self._session_under(lease)
        if session is None:
            return
        _logger.warning("lost the lease of session %s", lease.session_id)
        lost = [a for a in self._under(lease) if await self._stores.has_lost(a.run_id)]
        session.task.cancel()
        for active in lost:
            active.log.report_lost()

    @property
    def _outlive_process(self) -> bool:
        return self._stores.leases.lease_seconds is not None

    @property
    def _session_tasks(self) -> list[asyncio.Task[None]]:
        return [session.task for session in self._sessions.values()]

    def _session_under(self, lease: Lease) -> OwnedSession | None:
        """Return a lease's session, unless it is now owned under another lease."""
        session = self._sessions.get(lease.session_id)
        return session if session and session.lease == lease else None

    def _under(self, lease: Lease) -> list[ActiveRun]:
        return [active for active in self._active.values() if active.log.lease == lease]

    def _remove_all(self, lease: Lease) -> None:
        for active in self._under(lease):
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
            _logger.error("the store lost session %s", lease.session_id)
            for active in self._under(lease):
                active.log.report_lost()
        except StoreError as error:
            _logger.warning("session %s is released for a takeover: %s", lease.session_id, error)
            with suppress(StoreError):
                await leases.release(lease)
        except Exception:  # whoever takes it over may die of it, so count a death
            _logger.exception("cannot execute session %s", lease.session_id)
        finally:
            if self._session_under(lease):
                del self._sessions[lease.session_id]
            self._remove_all(lease)

    async def _execute_one(self, run_id: str, lease: Lease) -> str | None:
        """Execute the run whose turn it is; return the next, None if the session is released."""
        active = self._active.get(run_id) or self.register(run_id, lease.session_id)
        if not active.begin(Stage.EXECUTING):  # being cancelled
            await active.released.wait()
            return await self._stores.leases.next_run(lease)
        if (session := self._session_under(lease)) is None:
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
        """Execute a run to its end; return None if it must be left for another process."""
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
            _logger.error("cannot take over run %s: %s", active.run_id, error)
            return None

    async def _finish(self, active: ActiveRun, run: Run, lease: Lease) -> str | None:
        leases = self._stores.leases
        try:
            return await leases.finish_run(active.run_id, run.messages, lease)
        except LogTruncated as truncated:
            await active.log.restore(truncated)
            return await leases.finish_run(active.run_id, run.messages, lease)

    async def _cancel_queued(self, active: ActiveRun, stop: Stop, lease: Lease) -> None:
        """End a run before its turn, unless it has ended meanwhile."""
        try:
            run = await self._executor.end_queued(active, stop)
            await self._finish(active, run, lease)
        except (StoreError, RunNotFound, RunLost, UnreadableRecord) as error:
            _logger.warning("cannot end run %s before its turn: %s", active.run_id, error)
        finally:
            self.remove(active)

    # Signals

    def _on_signal(self, session_id: str, run_id: str, signal: Signal) -> None:
        """Deliver a signal sent from another process."""
        active, session = self._active.get(run_id), self._sessions.get(session_id)
        if isinstance(signal, Aborted | Failed):
            if active is None and session:  # another process queued it
                active = self.register(run_id, session_id)
                active.log.take(session)
            if active:
                self.stop(active, signal)
        elif active:  # a run not active here reads its signals at its turn
            active.signal(signal)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
