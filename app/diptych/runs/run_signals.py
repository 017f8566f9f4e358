"""Signals to runs, wherever they run: sent, sent again, and looked for in the record.

A signal is taken once it is on record, and its sender is told so only then: an owner may die with
what it has not recorded. A message to a queued run is taken once the store keeps it (decision 47).
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import TypeVar

from diptych.core.approval_events import ApprovalDecided, ApprovalRequested
from diptych.core.approval_records import may_close_approval
from diptych.core.codec import TERMINAL, Record, decode, is_terminal
from diptych.core.errors import LoopError, NotAnswered, RequestError, TooManyMessages
from diptych.core.events import Aborted, Offered, Signal, Stop
from diptych.core.queue_events import MessageQueued, QueueCleared
from diptych.core.queues import queued_messages
from diptych.core.text import well_formed
from diptych.ports.entries import RunEntry
from diptych.runs.approvals import (
    DecisionRequest,
    decision_event,
    find_approval,
    is_decided_by,
)
from diptych.runs.mailbox import cleared_by, still_queued
from diptych.runs.rebuilding import rebuild
from diptych.runs.run_log import RunLog
from diptych.runs.scheduler import Scheduler
from diptych.runs.steering import (
    cleared_messages,
    is_among,
    is_of_queue,
    is_recorded,
    recorded_messages,
)
from diptych.runs.stores import Stores
from diptych.runs.subscription import Subscriptions

CANCEL_SECONDS = 15.0  # in which a run's end must be on record: its owner may have to change
DECIDE_SECONDS = 15.0  # in which a decision must be on record
MESSAGE_SECONDS = 15.0  # in which a message must be on record
POLL_SECONDS = 0.2  # at most, between two looks for a message in the record
RESEND_SECONDS = 2.0  # after which a signal is sent again: the owner may have changed
QUEUED_SECONDS = 0.5  # after which a queued run is taken to keep the message it was sent


class RunSignals:
    """Sends signals to the runs of a store: to their owner, here or at another process."""

    def __init__(self, stores: Stores, scheduler: Scheduler, subscriptions: Subscriptions) -> None:
        self._stores = stores
        self._scheduler = scheduler
        self._subscriptions = subscriptions

    async def cancel(self, run_id: str, reason: str) -> RunEntry:
        """Abort a run and wait until its end is on record; one that has ended stays as it is.

        The end may take longer where the owner has just died, or this process leaves: then the run
        as it is.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(CANCEL_SECONDS):
                await self._end(run_id, Aborted(reason))
        return await self._stores.log.entry(run_id)

    async def send_message(self, run_id: str, message: MessageQueued) -> RunEntry:
        """Add a message to a run's conversation, wherever it runs; one sent again is added once.

        When this returns the message is on record, or is kept for a run that waits for its turn.
        Raises `RunEnded` if the run ended first, `IdempotencyMismatch` if the message's id came
        with another text, `TooManyMessages`, and `NotAnswered` if the owner does not answer.
        """
        message = replace(message, message=well_formed(message.message))
        with suppress(TimeoutError):
            async with asyncio.timeout(MESSAGE_SECONDS):
                is_sent = False
                while not self._subscriptions.is_closed:
                    records = await self._stores.log.read(run_id)
                    entry = await self._stores.log.entry(run_id)
                    if is_recorded(message, records):
                        self._stores.leases.drop_signal(run_id, message)
                        return entry
                    is_queued = await self._waits_for_another(entry)
                    if is_queued and is_sent:
                        return entry
                    if is_queued:
                        is_among(message, await self._mailbox(run_id))
                    await self._send_message(
                        message, entry, QUEUED_SECONDS if is_queued else RESEND_SECONDS
                    )
                    is_sent = True
        raise NotAnswered(
            "the run's owner does not answer now, and may still take the message: send it again "
            "with the same Idempotency-Key, or look into the run's queue and record first"
        )

    async def clear(self, run_id: str, subject: str) -> Sequence[MessageQueued]:
        """Drop the messages that wait in a run, wherever it runs; gives them.

        Raises `RunEnded`, and `NotAnswered` if the owner does not answer.
        """
        asked = QueueCleared(self._stores.clock.token(), subject=subject)
        with suppress(TimeoutError):
            async with asyncio.timeout(MESSAGE_SECONDS):
                while not self._subscriptions.is_closed:
                    records = await self._stores.log.read(run_id)
                    cleared = cleared_messages(asked.clear_id, records)
                    if cleared is not None:
                        return cleared
                    kept = await self._mailbox(run_id)
                    if asked in kept:  # it is kept, for a run that waits for its turn
                        return cleared_by(kept, asked.clear_id)
                    entry = await self._stores.log.entry(run_id)
                    is_queued = await self._waits_for_another(entry)
                    await self._send_message(
                        asked, entry, QUEUED_SECONDS if is_queued else RESEND_SECONDS
                    )
        raise NotAnswered("the run's owner does not answer now; read its queue, or try again")

    async def queued_messages(self, run_id: str) -> Sequence[MessageQueued]:
        """Give the messages that wait in a run, in the order in which they would join.

        Raises `UnreadableRecord` if only a newer version can say.
        """
        active = self._scheduler.find(run_id)
        if active and active.run:
            return queued_messages(active.run)
        records = await self._stores.log.read(run_id)
        if is_terminal(records[-1]):
            return ()
        if not any(record.event_type == "offered" for record in records):
            return still_queued([*recorded_messages(records), *await self._mailbox(run_id)])
        if not any(map(is_of_queue, records)):
            return ()
        log = RunLog(run_id, records[0].session_id, self._stores)
        log.load(records)
        return queued_messages(await rebuild(log, self._stores))

    async def _mailbox(self, run_id: str) -> Sequence[Signal]:
        """Give the signals that are kept for a run that has not begun."""
        if active := self._scheduler.find(run_id):
            return active.mailbox
        entry = await self._stores.log.entry(run_id)
        is_queued = entry.status == "queued"
        return await self._stores.leases.pending_signals(run_id) if is_queued else ()

    async def decide(self, run_id: str, call_id: str, request: DecisionRequest) -> Sequence[Record]:
        """Decide on a call that waits, wherever its run is; gives the run's records then.

        Raises `ApprovalNotFound`, `AlreadyDecided`, `RunEnded`, `InvalidRequest` with the path of
        what is wrong, and `NotAnswered` if the owner does not answer.
        """
        records = await self._stores.log.read(run_id)
        asked = find_approval(records, call_id).requested
        offered = next(r for r in records if r.event_type == "offered")
        blob = await self._stores.log.get_blob(str(offered.content))
        catalog = _decoded(offered, blob, Offered).catalog
        decision_id = self._stores.clock.token()
        event = _decoded(asked, b"", ApprovalRequested)
        decided = decision_event(event, request, catalog, decision_id)
        is_known = False
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(DECIDE_SECONDS):
                    while not (is_known := is_decided_by(records, decided)):
                        if self._subscriptions.is_closed:
                            break
                        await self._send_decision(run_id, decided, len(records))
                        records = await self._stores.log.read(run_id)
        except RequestError:  # another one counts
            self._stores.leases.drop_signal(run_id, decided)
            raise
        if not is_known:
            raise NotAnswered(
                "the run's owner does not answer now; see what was decided, or try again"
            )
        self._stores.leases.drop_signal(run_id, decided)
        return records

    async def _send_decision(self, run_id: str, decided: ApprovalDecided, after: int) -> None:
        """Send a decision to the run's owner, and look for anything new for a while."""
        await self._stores.leases.send_signal(run_id, decided)
        if active := self._scheduler.find(run_id):  # it hears of it by the store, too, and later
            active.decide(decided)
        await self._wait_for(run_id, after, RESEND_SECONDS, may_close_approval)

    async def _end(self, run_id: str, stop: Stop) -> None:
        """End a run, wherever it runs: its owner is asked again until the run has ended.

        A process that leaves asks once: the store keeps that for the next owner.
        """
        while True:
            if active := self._scheduler.find(run_id):
                self._scheduler.stop(active, stop)
                await active.released.wait()
            entry = await self._stores.log.entry(run_id)
            if entry.status in TERMINAL:
                return
            await self._stores.leases.send_signal(run_id, stop)
            if self._subscriptions.is_closed:
                return
            with suppress(TimeoutError):
                async with (
                    asyncio.timeout(RESEND_SECONDS),
                    aclosing(self._subscriptions.subscribe(run_id, entry.seq)) as batches,
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

    async def _send_message(
        self, message: MessageQueued | QueueCleared, entry: RunEntry, seconds: float
    ) -> None:
        """Send a message to the run's owner, and look for it in the record for a while."""
        await self._stores.leases.send_signal(entry.run_id, message)
        active = self._scheduler.find(entry.run_id)
        if active and not active.queue(message):
            raise TooManyMessages
        await self._wait_for(entry.run_id, entry.seq, seconds, is_of_queue)

    async def _wait_for(
        self, run_id: str, after: int, seconds: float, is_due: Callable[[Record], bool]
    ) -> None:
        """Look for a record that is due, or for the run's end, at most so long."""
        loop, pause = asyncio.get_running_loop(), 0.01
        until = loop.time() + seconds
        while loop.time() < until:
            await asyncio.sleep(pause)
            pause = min(2 * pause, POLL_SECONDS)
            fresh = await self._stores.log.read(run_id, after)
            if any(is_due(record) or is_terminal(record) for record in fresh):
                return


Decoded = TypeVar("Decoded")


def _decoded(record: Record, blob: bytes, kind: type[Decoded]) -> Decoded:
    event = decode(record.event_type, record.content, record.metadata, lambda _: blob)
    if not isinstance(event, kind):
        raise LoopError(f"{record.event_type} is no {kind.__name__}")
    return event
