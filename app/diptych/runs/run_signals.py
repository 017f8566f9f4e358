"""Sends signals to runs, wherever they execute: cancellations, messages and decisions.

A signal counts once it is logged, as its owner may die before. A message to a queued run counts
once the store has it (decision 47).
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar, cast

from diptych.core.codec import TERMINAL, Record, decode, event_of, is_terminal
from diptych.core.errors import LoopError, NotAnswered, RequestError, TooManyMessages
from diptych.core.events import (
    Aborted,
    ApprovalDecided,
    ApprovalRequested,
    InputReceived,
    InputRequested,
    MessageQueued,
    Offered,
    QueueCleared,
    QueueKind,
    Signal,
    Stop,
)
from diptych.core.queues import queued_messages
from diptych.core.text import well_formed
from diptych.core.waits import may_close_wait, open_waits
from diptych.ports import Agents
from diptych.ports.entries import RunEntry
from diptych.ports.stores import Stores
from diptych.runs.approvals import DecisionRequest, decision_event
from diptych.runs.inputs import InputReply, received_event
from diptych.runs.run_log import rebuild
from diptych.runs.scheduler import Scheduler
from diptych.runs.steering import (
    cleared_by,
    cleared_messages,
    is_among,
    is_of_queue,
    is_recorded,
    recorded_messages,
    still_queued,
)
from diptych.runs.waits import Reply, find_open, is_answered_by, is_below, reply_below

SIGNAL_SECONDS = 15.0  # for a signal to be logged, including a change of owner
RESEND_SECONDS = 2.0  # before a signal is sent again, in case the owner changed
QUEUED_SECONDS = 0.5  # after which a message to a queued run counts as stored
POLL_SECONDS = 0.2  # at most, between reads of the log
T = TypeVar("T")


class RunSignals:
    """Sends signals to the owners of runs, here or at other processes."""

    def __init__(self, stores: Stores, scheduler: Scheduler, agents: Agents) -> None:
        self._stores = stores
        self._scheduler = scheduler
        self._agents = agents
        self._is_closed = False

    def close(self) -> None:
        """Stop waiting for replies: this process is shutting down."""
        self._is_closed = True

    async def cancel(self, run_id: str, reason: str) -> RunEntry:
        """Abort a run and wait for its end; a run that has ended stays as it is.

        After 15 s, or if this process shuts down, the run is returned as it is.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(SIGNAL_SECONDS):
                await self._end(run_id, Aborted(reason))
        return await self._stores.log.entry(run_id)

    async def send_message(self, run_id: str, message: MessageQueued) -> RunEntry:
        """Add a message to a run's conversation, once per message id.

        When this returns, it is logged, or stored for a queued run. Raises `RunEnded`,
        `TooManyMessages`, `NotAnswered`, and `IdempotencyMismatch` if the id was used for another
        text.
        """
        message = replace(message, message=well_formed(message.message))
        is_sent = False

        async def attempt(records: Sequence[Record]) -> RunEntry | None:
            nonlocal is_sent
            entry = await self._stores.log.entry(run_id)
            if is_recorded(message, records):
                self._stores.leases.drop_signal(run_id, message)
                return entry
            is_queued = await self._waits_for_another(entry)
            if is_queued and is_sent:
                return entry
            if is_queued:
                is_among(message, await self._mailbox(entry))
            await self._send_to_queue(message, entry, is_queued=is_queued)
            is_sent = True
            return None

        return await self._repeat(
            run_id,
            attempt,
            "the run's owner does not respond, but may still take the message: send it again "
            "with the same Idempotency-Key, or check the run's queue and log first",
        )

    async def clear(
        self, run_id: str, subject: str, only: QueueKind | None
    ) -> Sequence[MessageQueued]:
        """Drop a run's queued messages, all or of one kind, and return them.

        Raises `RunEnded`, `NotAnswered`.
        """
        asked = QueueCleared(self._stores.clock.token(), subject=subject, only=only)

        async def attempt(records: Sequence[Record]) -> Sequence[MessageQueued] | None:
            cleared = cleared_messages(asked.clear_id, records)
            if cleared is not None:
                return cleared
            entry = await self._stores.log.entry(run_id)
            kept = await self._mailbox(entry)
            if asked in kept:
                return cleared_by(asked, kept)
            is_queued = await self._waits_for_another(entry)
            await self._send_to_queue(asked, entry, is_queued=is_queued)
            return None

        problem = "the run's owner does not respond; read its queue, or try again"
        return await self._repeat(run_id, attempt, problem)

    async def queued_messages(self, run_id: str) -> Sequence[MessageQueued]:
        """Return a run's queued messages in the order in which they would join.

        Raises `UnreadableRecord`.
        """
        active = self._scheduler.find(run_id)
        if active and active.run:
            return queued_messages(active.run)
        records = await self._stores.log.read(run_id)
        if is_terminal(records[-1]):
            return ()
        if not any(record.event_type == "offered" for record in records):
            kept = await self._mailbox(await self._stores.log.entry(run_id))
            return still_queued([*recorded_messages(records), *kept])
        if not any(map(is_of_queue, records)):
            return ()
        return queued_messages(await rebuild(records, self._stores))

    async def answer(self, run_id: str, call_id: str, reply: Reply) -> Sequence[Record]:
        """Decide on a waiting call, or answer its question; return the run's records.

        Answers for a child run go to the delegation's agent, and each agent on the way checks its
        caller. Raises as `find_open`, `InvalidRequest`, `NotAnswered`; for a child also
        `DecisionRefused` or the child's `RequestError`.
        """
        records = await self._stores.log.read(run_id)
        asked = find_open(records, call_id, reply.kind).requested
        if is_below(asked):
            return await self._reply_below(asked, reply)
        answer = await self._answer_event(records, asked, reply)

        async def attempt(records: Sequence[Record]) -> Sequence[Record] | None:
            if is_answered_by(records, asked, answer.answer_id):
                return records
            await self._send(run_id, answer, len(records), RESEND_SECONDS, may_close_wait)
            return None

        problem = "the run's owner does not respond; read the run, or try again"
        try:
            records = await self._repeat(run_id, attempt, problem)
        except RequestError:
            self._stores.leases.drop_signal(run_id, answer)
            raise
        self._stores.leases.drop_signal(run_id, answer)
        return records

    async def _reply_below(self, asked: Record, reply: Reply) -> Sequence[Record]:
        """Forward an answer, and wait until it is logged here; it counts even if that fails."""
        await self._agents.reply(reply_below(asked, reply))

        async def attempt(records: Sequence[Record]) -> Sequence[Record] | None:
            if all(wait.requested.seq != asked.seq for wait in open_waits(records)):
                return records
            await asyncio.sleep(POLL_SECONDS)
            return None

        problem = "the child agent took it, but it is not logged here yet; read the run again"
        try:
            return await self._repeat(asked.run_id, attempt, problem)
        except NotAnswered:
            if self._is_closed:
                raise
            return await self._stores.log.read(asked.run_id)

    async def _answer_event(
        self, records: Sequence[Record], asked: Record, reply: Reply
    ) -> ApprovalDecided | InputReceived:
        """Make the event of an answer. Raises `InvalidRequest` with the invalid path."""
        answer_id = self._stores.clock.token()
        match event_of(asked), reply:
            case ApprovalRequested() as approval, DecisionRequest():
                offered = next(r for r in records if r.event_type == "offered")
                blob = await self._stores.log.get_blob(str(offered.content))
                catalog = cast(
                    "Offered", decode("offered", offered.content, offered.metadata, lambda _: blob)
                ).catalog
                return decision_event(approval, reply, catalog, answer_id)
            case InputRequested() as question, InputReply():
                return received_event(question, asked.seq, reply, answer_id)
            case _:
                raise LoopError(f"{asked.event_type} takes no {type(reply).__name__}")

    async def _repeat(
        self,
        run_id: str,
        attempt: Callable[[Sequence[Record]], Awaitable[T | None]],
        unanswered: str,
    ) -> T:
        """Call `attempt` with the run's records until it returns a value.

        Raises `NotAnswered` after 15 s, or after one last attempt when this process shuts down.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(SIGNAL_SECONDS):
                is_last = False
                while not is_last:
                    is_last = self._is_closed
                    found = await attempt(await self._stores.log.read(run_id))
                    if found is not None:
                        return found
        raise NotAnswered(unanswered)

    async def _end(self, run_id: str, stop: Stop) -> None:
        """End a run: signal its owner repeatedly until the run has ended.

        A process that shuts down signals once; the store keeps it for the next owner.
        """
        while True:
            if active := self._scheduler.find(run_id):
                self._scheduler.stop(active, stop)
                await active.released.wait()
            entry = await self._stores.log.entry(run_id)
            if entry.status in TERMINAL:
                return
            await self._stores.leases.send_signal(run_id, stop)
            if self._is_closed:
                return
            await self._wait_for(run_id, entry.seq, RESEND_SECONDS, is_terminal)

    async def _mailbox(self, entry: RunEntry) -> Sequence[Signal]:
        """Return the signals stored for a run that has not begun."""
        if active := self._scheduler.find(entry.run_id):
            return active.mailbox.items
        if entry.status != "queued":
            return ()
        return await self._stores.leases.pending_signals(entry.run_id)

    async def _waits_for_another(self, entry: RunEntry) -> bool:
        """Whether a run waits for an earlier one of its session, and reads its signals then."""
        if entry.status != "queued":
            return False
        entries = await self._stores.log.entries(entry.session_id)
        first = next((e for e in reversed(entries) if e.status not in TERMINAL), entry)
        return first.run_id != entry.run_id

    async def _send_to_queue(
        self, item: MessageQueued | QueueCleared, entry: RunEntry, *, is_queued: bool
    ) -> None:
        seconds = QUEUED_SECONDS if is_queued else RESEND_SECONDS
        await self._send(entry.run_id, item, entry.seq, seconds, is_of_queue)

    async def _send(
        self,
        run_id: str,
        signal: Signal,
        after: int,
        seconds: float,
        is_due: Callable[[Record], bool],
    ) -> None:
        """Send a signal to the run's owner, then wait a while for a record that is due."""
        await self._stores.leases.send_signal(run_id, signal)
        active = self._scheduler.find(run_id)  # faster than the store's delivery
        if active and not active.signal(signal):
            raise TooManyMessages
        await self._wait_for(run_id, after, seconds, is_due)

    async def _wait_for(
        self, run_id: str, after: int, seconds: float, is_due: Callable[[Record], bool]
    ) -> None:
        """Wait up to `seconds` for a record that is due, or for the run's end."""
        loop, pause = asyncio.get_running_loop(), 0.01
        until = loop.time() + seconds
        while loop.time() < until and not self._is_closed:
            await asyncio.sleep(pause)
            pause = min(2 * pause, POLL_SECONDS)
            fresh = await self._stores.log.read(run_id, after)
            if any(is_due(record) or is_terminal(record) for record in fresh):
                return
