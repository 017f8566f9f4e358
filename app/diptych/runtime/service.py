"""Runs as everybody outside sees them: start one, subscribe to it, signal it, read it.

A run does not belong to the connection that asked for it, nor to the process: whoever wants to
see it subscribes, here or at another replica.

Not here: how a run proceeds (`loop.reducer`, `runner`), whose turn it is (`scheduler`), what a
request looks like (`http`).
"""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing, suppress
from dataclasses import replace

from diptych.errors import (
    InvalidRequest,
    Overloaded,
    StoreError,
    TooManyMessages,
)
from diptych.loop.codec import TERMINAL, Record
from diptych.loop.events import Aborted, Asked, Origin, Steered, Stop
from diptych.loop.text import well_formed
from diptych.ports.entries import IdempotencyKey, RunEntry, RunPage
from diptych.ports.run_ids import run_id_of
from diptych.ports.session_ids import owned_session
from diptych.runtime.active_run import Stage
from diptych.runtime.answers import whole_answer
from diptych.runtime.buffer import is_terminal
from diptych.runtime.definition import AgentDefinition
from diptych.runtime.effects import Backends
from diptych.runtime.lease_keeper import LeaseKeeper
from diptych.runtime.request import (
    RunRequest,
    continues_answer,
    first_event,
    owned_key,
    requested_session,
)
from diptych.runtime.resuming import find_resumable, resume_key, resuming_event
from diptych.runtime.run_log import Observer
from diptych.runtime.scheduler import Scheduler
from diptych.runtime.steering import is_message, is_recorded
from diptych.runtime.stores import Stores
from diptych.runtime.subscription import Subscription, Subscriptions

CANCEL_SECONDS = 15.0  # in which a run's end must be on record: its owner may have to change
STEER_SECONDS = 15.0  # in which a message must be on record
POLL_SECONDS = 0.2  # at most, between two looks for a message in the record
RESEND_SECONDS = 2.0  # after which a signal is sent again: the owner may have changed
QUEUED_SECONDS = 0.5  # after which a waiting run is taken to keep the message it was sent


class RunService:
    """All runs of one agent: those of this process, and those in its store."""

    def __init__(
        self,
        definition: AgentDefinition,
        backends: Backends,
        stores: Stores,
        observers: Sequence[Observer] = (),
    ) -> None:
        self._max_runs = definition.max_runs
        self._max_steps = definition.settings.max_steps
        self._stores = stores
        self._scheduler = Scheduler(definition, backends, stores, observers)
        self._lease_keeper = LeaseKeeper(self._scheduler, stores)
        self._subscriptions = Subscriptions(stores, self._scheduler.find)
        self._is_closing = False

    @property
    def is_closing(self) -> bool:
        """Whether no new runs are taken any more."""
        return self._is_closing

    @property
    def active_count(self) -> int:
        """How many runs wait or execute in this process."""
        return self._scheduler.active_count

    def unfinished_of(self, owner: str) -> int:
        """How many unfinished runs an owner has in this process."""
        return self._scheduler.count_in(owned_session(owner, ""))

    def open(self) -> None:
        """Begin to keep leases and to take sessions over, where a store is shared. Needed once."""
        self._lease_keeper.start()

    async def start(self, request: RunRequest) -> RunEntry:
        """Accept a run: it is on record when this returns, and goes on whoever listens.

        Raises `InvalidRequest` for a request that makes no sense, `Overloaded` while there is no
        room or the process is about to end, `StoreError`.
        """
        self._admit()
        stores = self._stores
        requested = requested_session(request)
        is_known = requested is not None and await stores.sessions.session_exists(requested)
        last_answer = None
        if requested and is_known and continues_answer(request):
            last_answer = await self._last_answer(requested)
        first = first_event(request, is_known=is_known, last_answer=last_answer)
        return await self._open(first, requested, owned_key(request), owner=request.owner)

    async def resume(
        self,
        run_id: str,
        origin: Origin | None = None,
        max_steps: int | None = None,
        subject: str = "",
    ) -> RunEntry:
        """Take up a run that failed or was aborted, with a new run of its session.

        A run is resumed once: asked again, this gives the same new run. Raises `NotResumable`,
        `InvalidRequest` for too many steps, and as `start` and `entry` do.
        """
        self._admit()
        if max_steps is not None and max_steps > self._max_steps:
            message = f"max_steps: this agent's runs have at most {self._max_steps}"
            raise InvalidRequest(message, param="max_steps", code="invalid_value")
        records, resumed = await find_resumable(self._stores.log, run_id)
        if resumed:
            return resumed
        first = resuming_event(records, origin or Origin(), max_steps)
        first = replace(first, subject=subject)
        return await self._open(first, records[0].session_id, resume_key(run_id))

    async def _open(
        self,
        first: Asked,
        requested: str | None,
        key: IdempotencyKey | None,
        *,
        owner: str = "",
    ) -> RunEntry:
        """Put a run on record in the session that was requested, or in a new one of `owner`."""
        stores, scheduler = self._stores, self._scheduler
        session_id = requested or owned_session(owner, f"session-{stores.clock.token()}")
        run_id = run_id_of(stores.log.epoch, stores.clock.token())
        active = scheduler.add(run_id, session_id, is_new_session=requested is None)
        try:
            opened = await active.log.open(first, key)
        except BaseException:
            if active.stage is Stage.WAITING:  # its turn may have come before the lost reply
                scheduler.remove(active)
            raise
        if opened.is_new:
            scheduler.schedule(active, opened.lease, first.origin.seconds)
        else:
            scheduler.remove(active)
        return opened.entry

    async def _last_answer(self, session_id: str) -> str | None:
        """Give the answer of a session's newest run, if it has one, as it was told."""
        log = self._stores.log
        newest = await log.entries(session_id, limit=1)
        return whole_answer(await log.read(newest[0].run_id)) if newest else None

    def subscribe(self, run_id: str, after: int = 0) -> Subscription:
        """Subscribe to a run's items after a seq. Use it with `contextlib.aclosing`."""
        return self._subscriptions.subscribe(run_id, after)

    def has_subscribers(self, run_id: str) -> bool:
        """Whether somebody is subscribed to a run at this process."""
        return self._subscriptions.has_subscribers(run_id)

    async def cancel(self, run_id: str, reason: str = "cancelled by request") -> RunEntry:
        """Abort a run and wait until its end is on record; one that has ended stays as it is.

        The end may take longer where the owner has just died: then the run as it is.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(CANCEL_SECONDS):
                await self._end(run_id, Aborted(reason))
        return await self._stores.log.entry(run_id)

    async def steer(self, run_id: str, message: Steered) -> RunEntry:
        """Add a message to a run's conversation, wherever it runs; one sent again is added once.

        When this returns the message is on record, or is kept for a run that waits for its turn.
        Raises `RunEnded` if the run ended first, `IdempotencyMismatch` if the message's id came
        with another text, `TooManyMessages`, and `StoreError` if the owner does not answer.
        """
        message = replace(message, message=well_formed(message.message))
        with suppress(TimeoutError):
            async with asyncio.timeout(STEER_SECONDS):
                is_sent = False
                while not self._subscriptions.is_closed:
                    records = await self._stores.log.read(run_id)
                    entry = await self._stores.log.entry(run_id)
                    is_queued = await self._waits_for_another(entry)
                    if is_recorded(message, records) or (is_queued and is_sent):
                        return entry
                    await self._send_message(
                        message, entry, QUEUED_SECONDS if is_queued else RESEND_SECONDS
                    )
                    is_sent = True
        raise StoreError("the run's owner does not answer now; send the message again")

    async def entry(self, run_id: str) -> RunEntry:
        return await self._stores.log.entry(run_id)

    async def entries(
        self,
        session_id: str | None = None,
        *,
        status: str | None = None,
        before: str | None = None,
        limit: int | None = None,
    ) -> Sequence[RunEntry]:
        """List runs, the newest first; see `EventLog.entries`."""
        return await self._stores.log.entries(session_id, status=status, before=before, limit=limit)

    async def updated_entries(
        self,
        statuses: Sequence[str],
        limit: int,
        *,
        since: int = 0,
        before: tuple[int, str] | None = None,
    ) -> RunPage:
        """List runs by the time of their last record; see `EventLog.updated_entries`."""
        return await self._stores.log.updated_entries(statuses, limit, since=since, before=before)

    async def records(self, run_id: str, after: int = 0) -> Sequence[Record]:
        return await self._stores.log.read(run_id, after)

    def stop_admitting(self) -> None:
        """Refuse new runs and take no session over any more; active runs go on."""
        self._is_closing = True
        self._lease_keeper.takes_over = False

    async def close(self, seconds: float = 0.0) -> None:
        """Let active runs end within `seconds`; those that are left are handed over, or aborted.

        In a store that ends with the process there is nobody to hand them over to.
        """
        self.stop_admitting()
        await self._scheduler.wait_idle(seconds)
        self._subscriptions.close()
        await self._scheduler.shut_down(Aborted("the agent is shutting down"))
        await self._lease_keeper.close()

    def _admit(self) -> None:
        if self._is_closing:
            raise Overloaded("this agent is shutting down; try again later", retry_after=5)
        if self.active_count >= self._max_runs:
            raise Overloaded(
                f"this agent has {self.active_count} unfinished runs, and takes no more at once"
            )

    async def _end(self, run_id: str, stop: Stop) -> None:
        """End a run, wherever it runs: its owner is asked again until the run has ended."""
        while not self._subscriptions.is_closed:
            if active := self._scheduler.find(run_id):
                self._scheduler.stop(active, stop)
                await active.released.wait()
            entry = await self._stores.log.entry(run_id)
            if entry.status in TERMINAL:
                return
            await self._stores.leases.send_signal(run_id, stop)
            with suppress(TimeoutError):
                async with (
                    asyncio.timeout(RESEND_SECONDS),
                    aclosing(self.subscribe(run_id, entry.seq)) as batches,
                ):
                    async for _ in batches:
                        pass

    async def _waits_for_another(self, entry: RunEntry) -> bool:
        """Whether a run waits for another of its session: it reads its signals at its turn."""
        if entry.status != "queued":
            return False
        entries = await self._stores.log.entries(entry.session_id)
        first = next((e for e in reversed(entries) if e.status not in TERMINAL), entry)
        return first.run_id != entry.run_id

    async def _send_message(self, message: Steered, entry: RunEntry, seconds: float) -> None:
        """Send a message to the run's owner, and look for it in the record for a while."""
        active = self._scheduler.find(entry.run_id)
        if active and not active.steer(message):
            raise TooManyMessages
        await self._stores.leases.send_signal(entry.run_id, message)
        loop, pause = asyncio.get_running_loop(), 0.01
        until = loop.time() + seconds
        while loop.time() < until:
            await asyncio.sleep(pause)
            pause = min(2 * pause, POLL_SECONDS)
            fresh = await self._stores.log.read(entry.run_id, entry.seq)
            if any(is_message(record) or is_terminal(record) for record in fresh):
                return
