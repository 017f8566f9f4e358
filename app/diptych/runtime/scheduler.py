"""Taking runs to their ends: the sessions that this process owns, each one run after another.

A session with work is claimed, by its opener or, when its owner has died, by whoever finds it.

Not here: one run from its record to its end (`carrying`), who asks for runs and follows them
(`runs`).
"""

import asyncio
import logging
import random
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from diptych.errors import LeaseLost, LogTruncated, RunLost, RunNotFound, StoreError
from diptych.loop.events import Signal, Steered, Stop
from diptych.loop.state import Phase, Run
from diptych.ports.entries import Lease
from diptych.runtime.active_run import ActiveRun, Observer, Stores
from diptych.runtime.definition import AgentDefinition
from diptych.runtime.effects import Backends
from diptych.runtime.executor import Executor, UnreadableRecord
from diptych.runtime.runner import OUT_OF_TIME

SEEK_SECONDS = 2.0  # between two looks for sessions whose owner has died
LEAVE_SECONDS = 3.0  # for which a store that is away is waited for when this process leaves
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Session:
    """A session that is owned here, and the task that takes its runs to their ends."""

    lease: Lease
    task: asyncio.Task[None] | None = None


class Scheduler:
    """The runs that are queued or running in this process."""

    def __init__(
        self,
        charter: AgentDefinition,
        outside: Backends,
        stores: Stores,
        observers: Sequence[Observer] = (),
    ) -> None:
        self._charter = charter
        self._stores = stores
        self._observers = tuple(observers)
        self._carrier = Executor(charter, outside, stores)
        self._live: dict[str, ActiveRun] = {}
        self._sessions: dict[str, _Session] = {}
        self._unreadable: set[str] = set()  # sessions whose record a newer version wrote
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_seeking = True  # for sessions whose owner has died
        self._is_leaving = False
        stores.feed.on_signal(self._heed)

    def __len__(self) -> int:
        return len(self._live)

    def find(self, run_id: str) -> ActiveRun | None:
        """Give a run that is here, once its record is."""
        live = self._live.get(run_id)
        return live if live and live.records else None

    def start(self) -> None:
        """Keep what is owned, and look for what nobody owns; needless if leases never end."""
        if (seconds := self._stores.leases.lease_seconds) is not None:
            self._spawn(self._keep(seconds / 4))
            self._spawn(self._seek())

    def new(self, run_id: str, session_id: str) -> ActiveRun:
        """Have a run here that is about to be opened; see `take` and `drop`."""
        live = ActiveRun(run_id, session_id, self._stores, self._observers)
        self._live[run_id] = live
        return live

    def take(self, live: ActiveRun, lease: Lease | None, seconds: float | None) -> None:
        """Take an opened run to its end when its turn comes, if its session is owned here.

        `seconds` is what its caller will wait, for its turn too.
        """
        loop = asyncio.get_running_loop()
        if seconds is not None:
            live.late = loop.call_later(seconds, self.stop, live, OUT_OF_TIME)
        if lease is not None:
            live.lease = lease
            self._own(lease, live.run_id if live.is_first else None)
        elif session := self._sessions.get(live.session_id):
            live.lease = session.lease
        else:
            self._leave_to_others(live)

    def drop(self, live: ActiveRun) -> None:
        """Have nothing to do with a run any more."""
        if self._live.get(live.run_id) is live:
            del self._live[live.run_id]
        live.release()

    def stop(self, live: ActiveRun, stop: Stop) -> None:
        """End a run, wherever it is; the first reason counts."""
        if live.stop(stop) and live.lease:
            live.has_begun = True
            self._spawn(self._end_before_turn(live, stop, live.lease))

    async def idle(self, seconds: float) -> None:
        """Wait until all runs have ended, at most so long."""
        if tasks := self._running():
            await asyncio.wait(tasks, timeout=seconds)

    async def leave(self, stop: Stop) -> None:
        """End now. Runs that another process can take up are left to it; others are stopped."""
        self._is_leaving, self.is_seeking = True, False
        for live in tuple(self._live.values()):
            if not self._lasts:
                self.stop(live, stop)
            else:
                live.hand_over()
        if tasks := self._running():
            await asyncio.wait(tasks, timeout=LEAVE_SECONDS)
        tasks = [*self._tasks, *self._running()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    @property
    def _lasts(self) -> bool:
        """Whether runs outlive this process."""
        return self._stores.leases.lease_seconds is not None

    def _running(self) -> list[asyncio.Task[None]]:
        return [session.task for session in self._sessions.values() if session.task]

    # One session

    def _own(self, lease: Lease, run_id: str | None = None) -> None:
        if former := self._sessions.get(lease.session_id):  # it was stale and does not know yet
            if former.task:
                former.task.cancel()
            self._let_be(former.lease)
        session = _Session(lease)
        self._sessions[lease.session_id] = session
        session.task = asyncio.create_task(self._take_all(session, run_id))

    async def _take_all(self, session: _Session, run_id: str | None) -> None:
        lease, leases = session.lease, self._stores.leases
        try:
            run_id = run_id or await leases.next_run(lease)
            while run_id is not None:
                run_id = await self._take_one(run_id, lease)
        except LeaseLost:
            _log.warning("another process has taken over session %s", lease.session_id)
        except (RunLost, RunNotFound):
            _log.error("the store has lost session %s", lease.session_id)
            for live in self._of(lease):
                live.tell_lost()
        except StoreError as error:
            _log.warning("session %s is left to be taken up: %s", lease.session_id, error)
            with suppress(StoreError):
                await leases.release(lease)
        finally:
            if self._sessions.get(lease.session_id) is session:
                del self._sessions[lease.session_id]
            self._let_be(lease)

    def _of(self, lease: Lease) -> list[ActiveRun]:
        """Give the runs that are here under a lease."""
        return [live for live in self._live.values() if live.lease == lease]

    def _let_be(self, lease: Lease) -> None:
        for live in self._of(lease):
            self._leave_to_others(live)

    def _leave_to_others(self, live: ActiveRun) -> None:
        """Drop a run that is not to be taken to its end here; its caller waits all the same."""
        if live.late and not live.has_begun:
            seconds = live.late.when() - asyncio.get_running_loop().time()
            self._spawn(self._end_late(live.run_id, seconds))
        self.drop(live)

    async def _take_one(self, run_id: str, lease: Lease) -> str | None:
        """Take the run whose turn it is to its end; gives the next one."""
        live = self._live.get(run_id) or self.new(run_id, lease.session_id)
        if live.has_begun:  # it is being ended before its turn
            await live.ended.wait()
            return await self._stores.leases.next_run(lease)
        live.has_begun, live.lease = True, lease
        run = await self._carry(live)
        if run is None or run.phase is not Phase.DONE:
            await self._stores.leases.release(lease)
            return None
        following = await self._conclude(live, run, lease)
        self.drop(live)
        return following

    async def _carry(self, live: ActiveRun) -> Run | None:
        """Take a run to its end; None if it is to be left as it is."""
        if self._is_leaving and self._lasts:
            return None
        try:
            return await self._carrier.carry(live)
        except UnreadableRecord as error:
            self._unreadable.add(live.session_id)
            _log.error("run %s cannot be taken up: %s", live.run_id, error)
            return None

    async def _conclude(self, live: ActiveRun, run: Run, lease: Lease) -> str | None:
        try:
            return await self._stores.leases.finish_run(live.run_id, run.messages, lease)
        except LogTruncated as lost:
            await live.restore(lost)
            return await self._stores.leases.finish_run(live.run_id, run.messages, lease)

    async def _end_before_turn(self, live: ActiveRun, stop: Stop, lease: Lease) -> None:
        """End a run that waits; one that has ended meanwhile stays as it is."""
        try:
            run = await self._carrier.end(live, await self._carrier.restored(live), stop)
            await self._conclude(live, run, lease)
        except (StoreError, RunNotFound, RunLost, UnreadableRecord) as error:
            _log.warning("run %s could not be ended before its turn: %s", live.run_id, error)
        finally:
            self.drop(live)

    # Ownership

    def _heed(self, session_id: str, run_id: str, demand: Signal) -> None:
        """Do what was asked of a run at another process."""
        live = self._live.get(run_id)
        if isinstance(demand, Steered):
            if live:  # one that is not here yet hears of it when its turn comes
                live.steer(demand)
        elif live:
            self.stop(live, demand)
        elif session := self._sessions.get(session_id):  # another process put it into the queue
            live = self.new(run_id, session_id)
            live.lease = session.lease
            self.stop(live, demand)

    async def _end_late(self, run_id: str, seconds: float) -> None:
        """See to it that a run ends in time whose owner does not know of it before its turn."""
        await asyncio.sleep(seconds)
        try:
            await self._stores.leases.send_signal(run_id, OUT_OF_TIME)
        except (StoreError, RunNotFound, RunLost) as error:
            _log.warning("run %s cannot be told that its time is over: %s", run_id, error)

    async def _keep(self, interval: float) -> None:
        """Renew the leases; what is held no more is let go of."""
        while True:
            await asyncio.sleep(interval)
            leases = [session.lease for session in self._sessions.values()]
            try:
                gone = await self._stores.leases.renew(leases) if leases else ()
            except StoreError as error:
                _log.warning("leases cannot be renewed now: %s", error)
                continue
            for lease in gone:
                await self._let_go(lease)

    async def _let_go(self, lease: Lease) -> None:
        session = self._sessions.get(lease.session_id)
        if session is None or session.lease != lease or session.task is None:
            return
        _log.warning("session %s is not owned here any more", lease.session_id)
        lost = [live for live in self._of(lease) if await self._stores.has_lost(live.run_id)]
        session.task.cancel()
        for live in lost:
            live.tell_lost()

    async def _seek(self) -> None:
        """Take up what has work and no owner."""
        while True:
            await asyncio.sleep(SEEK_SECONDS * random.uniform(0.8, 1.2))  # noqa: S311 - spreads
            if not self.is_seeking or len(self._live) >= self._charter.max_runs:
                continue
            try:
                for session_id in await self._stores.leases.unowned_sessions():
                    await self._claim(session_id)
            except StoreError as error:
                _log.warning("sessions without an owner cannot be looked for now: %s", error)

    async def _claim(self, session_id: str) -> None:
        if session_id in self._unreadable or not self.is_seeking:
            return
        leases, token = self._stores.leases, self._stores.clock.token()
        if lease := await leases.claim(session_id, token):
            _log.info("taking up session %s", session_id)
            self._own(lease)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
