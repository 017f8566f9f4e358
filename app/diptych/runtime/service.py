"""Runs, as everybody outside sees them: start one, follow it, steer it, end it, read it.

A run does not belong to the connection that asked for it, nor to the process: whoever wants to
see one follows it, here or at another replica.

Not here: how a run proceeds (`loop`, `runner`), whose turn it is (`turns`), how it is followed
(`following`), what a request looks like (`http`).
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import replace

from diptych.errors import IdempotencyMismatch, Overloaded, RunEnded, StoreError, TooManyMessages
from diptych.loop.codec import TERMINAL, Record
from diptych.loop.events import Aborted, Steered, Stop
from diptych.loop.state import MAX_MESSAGES_PER_RUN
from diptych.loop.text import well_formed
from diptych.ports import Item
from diptych.ports.entries import RunEntry
from diptych.ports.run_ids import run_id_of
from diptych.runtime.active_run import Observer, Stores, is_last
from diptych.runtime.definition import AgentDefinition
from diptych.runtime.effects import Backends
from diptych.runtime.request import RunRequest, asked, session_of
from diptych.runtime.scheduler import Scheduler
from diptych.runtime.subscription import Subscriptions

CANCEL_SECONDS = 15.0  # for which a cancelled run's end is waited for: its owner may have to change
STEER_SECONDS = 15.0  # for which a message is waited for to be on record
LOOK_SECONDS = 0.2  # at most, between two looks for a message in the record
ASK_SECONDS = 2.0  # after which its owner is asked again: it may have changed, or not have heard
JOIN_SECONDS = 0.5  # after which one that waits for its turn is taken to keep what it was sent


class RunService:
    """All runs of one agent: those of this process, and those in its store."""

    def __init__(
        self,
        charter: AgentDefinition,
        outside: Backends,
        stores: Stores,
        observers: Sequence[Observer] = (),
    ) -> None:
        self._charter = charter
        self._stores = stores
        self._turns = Scheduler(charter, outside, stores, observers)
        self._following = Subscriptions(stores, self._turns.find)
        self._is_closing = False

    @property
    def is_closing(self) -> bool:
        """Whether no new runs are taken any more."""
        return self._is_closing

    @property
    def active_count(self) -> int:
        """How many runs are queued or running here."""
        return len(self._turns)

    def open(self) -> None:
        """Take part in the ownership of sessions; needed once, where a store is shared."""
        self._turns.start()

    async def start(self, ask: RunRequest) -> RunEntry:
        """Accept a run: it is on record when this returns, and goes on whoever listens.

        Raises `InvalidRequest` for a request that makes no sense, `Overloaded` while there is no
        room or the process is about to end, `StoreError`.
        """
        self._admit()
        stores = self._stores
        session_id = session_of(ask) or f"session-{stores.clock.token()}"
        is_known = ask.session_id is not None and await stores.sessions.session_exists(session_id)
        first = asked(ask, is_known=is_known)
        live = self._turns.new(run_id_of(stores.log.epoch, stores.clock.token()), session_id)
        live.is_first = ask.session_id is None
        try:
            opened = await live.open(first, ask.idempotency_key)
        except BaseException:
            if not live.has_begun:  # its turn may have come before the reply that was lost
                self._turns.drop(live)
            raise
        if opened.is_new:
            self._turns.take(live, opened.lease, first.origin.seconds)
        else:
            self._turns.drop(live)
        return opened.entry

    def subscribe(self, run_id: str, after: int = 0) -> AsyncGenerator[Sequence[Item]]:
        """Follow a run from after a seq; see `Subscriptions.subscribe`."""
        return self._following.subscribe(run_id, after)

    def has_subscribers(self, run_id: str) -> bool:
        """Say whether somebody follows a run at this process."""
        return self._following.has_subscribers(run_id)

    async def cancel(self, run_id: str, reason: str = "cancelled by request") -> RunEntry:
        """Abort a run and wait until its end is on record; one that has ended stays as it is.

        Where its owner has just died the end may be longer in coming: then the run as it is.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(CANCEL_SECONDS):
                await self._end(run_id, Aborted(reason))
        return await self._stores.log.entry(run_id)

    async def steer(self, run_id: str, message: Steered) -> RunEntry:
        """Have a message join a run, wherever that is; one that is sent again joins once.

        It is on record when this returns, or is kept with a run that waits for its turn. Raises
        `RunEnded` if the run ended before it could, `IdempotencyMismatch` if its id came with other
        words, `TooManyMessages` if it takes no more, `StoreError` if its owner does not answer.
        """
        message = replace(message, message=well_formed(message.message))
        with suppress(TimeoutError):
            async with asyncio.timeout(STEER_SECONDS):
                is_passed_on = False
                while not self._following.has_closed:
                    records = await self._stores.log.read(run_id)
                    entry = await self._stores.log.entry(run_id)
                    waits = await self._waits(entry)
                    if _has_heard(records, message) or (waits and is_passed_on):
                        return entry
                    await self._pass_on(message, entry, JOIN_SECONDS if waits else ASK_SECONDS)
                    is_passed_on = True
        raise StoreError("the run's owner does not answer now; send the message again")

    async def entry(self, run_id: str) -> RunEntry:
        return await self._stores.log.entry(run_id)

    async def entries(self, session_id: str | None = None) -> Sequence[RunEntry]:
        return await self._stores.log.entries(session_id)

    async def records(self, run_id: str, after: int = 0) -> Sequence[Record]:
        return await self._stores.log.read(run_id, after)

    def stop_admitting(self) -> None:
        """Refuse new runs from now on; those that are there go on."""
        self._is_closing = True
        self._turns.is_seeking = False

    async def close(self, seconds: float = 0.0) -> None:
        """Let the runs here end within `seconds`; those that are left are handed over, or aborted.

        In a store that ends with the process there is nobody to hand them to.
        """
        self.stop_admitting()
        await self._turns.idle(seconds)
        self._following.close()
        await self._turns.leave(Aborted("the agent is shutting down"))

    def _admit(self) -> None:
        if self._is_closing:
            raise Overloaded("this agent is shutting down; try again later", retry_after=5)
        if self.active_count >= self._charter.max_runs:
            raise Overloaded(
                f"this agent has {self.active_count} unfinished runs, and takes no more at once"
            )

    async def _end(self, run_id: str, stop: Stop) -> None:
        """Have a run end, wherever it is; whoever owns it is asked until it has."""
        while not self._following.has_closed:
            if live := self._turns.find(run_id):
                self._turns.stop(live, stop)
                await live.ended.wait()
            entry = await self._stores.log.entry(run_id)
            if entry.status in TERMINAL:
                return
            await self._stores.leases.send_signal(run_id, stop)
            with suppress(TimeoutError):
                async with asyncio.timeout(ASK_SECONDS):
                    async for _ in self.subscribe(run_id, entry.seq):
                        pass

    async def _waits(self, entry: RunEntry) -> bool:
        """Say whether a run waits for another: it looks for what was asked of it at its turn."""
        if entry.status != "queued":
            return False
        entries = await self._stores.log.entries(entry.session_id)
        first = next((e for e in entries if e.status not in TERMINAL), entry)
        return first.run_id != entry.run_id

    async def _pass_on(self, message: Steered, entry: RunEntry, seconds: float) -> None:
        """Give a message to its run's owner, and look for news a while."""
        live = self._turns.find(entry.run_id)
        if live and not live.steer(message):
            raise TooManyMessages
        await self._stores.leases.send_signal(entry.run_id, message)
        loop, pause = asyncio.get_running_loop(), 0.01
        until = loop.time() + seconds
        while loop.time() < until:
            await asyncio.sleep(pause)
            pause = min(2 * pause, LOOK_SECONDS)
            fresh = await self._stores.log.read(entry.run_id, entry.seq)
            if any(_is_message(record) or is_last(record) for record in fresh):
                return


def _has_heard(records: Sequence[Record], message: Steered) -> bool:
    """Say whether a message is on record. Raises as `RunService.steer` does."""
    heard = {r.metadata["message_id"]: r.content for r in records if _is_message(r)}
    if message.message_id in heard:
        if heard[message.message_id] != message.message:
            raise IdempotencyMismatch
        return True
    if is_last(records[-1]):
        raise RunEnded
    if len(heard) >= MAX_MESSAGES_PER_RUN:
        raise TooManyMessages
    return False


def _is_message(record: Record) -> bool:
    return "message_id" in record.metadata
