"""The contracts of the stores: the log, its sessions, their leases, the feed, and the clock."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from diptych.core.codec import Record
from diptych.core.errors import RunLost, RunNotFound, StoreError
from diptych.core.events import Signal
from diptych.core.messages import JSONObject, Message
from diptych.ports.entries import (
    IdempotencyKey,
    Lease,
    Opened,
    QueueHead,
    RunEntry,
    RunPage,
    SessionEntry,
)


@dataclass(frozen=True, slots=True)
class Notice:
    """A live message to subscribers that is not recorded (loop.md §1)."""

    type: str
    fields: JSONObject = field(default_factory=dict)


Item: TypeAlias = Record | Notice


@dataclass(frozen=True, slots=True)
class Gap:
    """Stands in a feed where items may have been missed: read the log again."""


FeedItem: TypeAlias = Item | Gap


class EventLog(Protocol):
    """The record of all runs: append-only, the only truth (loop.md §9).

    A run's records have `seq` 1, 2, 3 … without gaps. Every method raises `StoreError` when the
    store cannot be reached; `RunNotFound` for a run that never was, `RunLost` for one whose record
    is gone.
    """

    @property
    def epoch(self) -> str:
        """Name this store's life: part of every run id, so that *lost* and *never was* differ."""
        ...

    async def open(
        self,
        first: Record,
        token: str,
        idempotency_key: IdempotencyKey | None = None,
        *,
        if_idle: bool = False,
        if_newest: str | None = None,
    ) -> Opened:
        """Begin a run with its first record, at the end of its session's queue.

        In the same step the session is claimed under `token`, if nobody holds it. Raises
        `Overloaded` if there is no room, `IdempotencyMismatch` if the key came with another body,
        with `if_idle` `SessionBusy` if a run of the session has not ended, and `NotResumable` if
        `if_newest` is not the session's newest run.
        """
        ...

    async def append(
        self, records: Sequence[Record], lease: Lease, *, awaits_input: bool = False
    ) -> None:
        """Add the next records of one run, and publish them to other processes.

        They are on record when this returns. `awaits_input`: the run waits for a decision then.

        A store that is away is waited for: the caller sets the limit. What is on record already
        is not added again. Raises `LeaseLost` if the lease is not the newest, `LogTruncated` if the
        store has lost records that came before these.
        """
        ...

    async def read(self, run_id: str, after: int = 0, limit: int | None = None) -> Sequence[Record]:
        """Return the records of a run whose `seq` is greater than `after`, the first `limit`."""
        ...

    async def entry(self, run_id: str) -> RunEntry: ...

    async def entries(
        self,
        session_id: str | None = None,
        *,
        status: str | None = None,
        before: str | None = None,
        limit: int | None = None,
    ) -> Sequence[RunEntry]:
        """List runs, of one session or of all, by when they were opened, the newest first.

        At most `limit` of those with this `status` that were opened before the run `before`; what
        that costs depends on how many are given, or with a rare `status` are passed over. Raises
        `RunNotFound` if `before` is none of the session's runs, or of all.
        """
        ...

    async def updated_entries(
        self,
        statuses: Sequence[str],
        limit: int,
        *,
        since: int = 0,
        before: tuple[int, str] | None = None,
    ) -> RunPage:
        """List all runs with one of the statuses, by the time of their last record, newest first.

        The list has the runs whose last record is of `since` or later, in ms since the epoch. The
        page has the first `limit` of them after the position `before`: ms and run id of a run.
        """
        ...

    async def put_blob(self, key: str, blob: bytes) -> None:
        """Store what many runs share, once, under its content's hash."""
        ...

    async def get_blob(self, key: str) -> bytes:
        """Return what `put_blob` stored. Raises `BlobMissing` if it is not there."""
        ...


class Sessions(Protocol):
    """The conversations that runs continue: a view of the event log."""

    async def conversation(self, session_id: str) -> tuple[Message, ...]:
        """Return what the session's ended runs said, in order; nothing for an unknown session."""
        ...

    async def session_exists(self, session_id: str) -> bool:
        """Whether the session has runs."""
        ...

    async def sessions(self, limit: int | None = None) -> Sequence[SessionEntry]:
        """List the `limit` sessions that were used last, or all, by when they were created."""
        ...

    async def count_sessions(self) -> int: ...

    async def count_events(self, session_id: str | None = None) -> int:
        """Count the events of a session, or of all, that `/memory/events` shows."""
        ...

    async def delete(self, session_id: str) -> bool:
        """Forget a session and its runs; False if unknown. Raises `InvalidRequest` if busy."""
        ...

    async def delete_run(self, session_id: str, run_id: str, shown: int) -> bool:
        """Delete a run and its messages in the session; False if unknown.

        `shown` is how many of its events `/memory/events` shows. Raises `InvalidRequest` if the run
        has not ended.
        """
        ...


class SessionLeases(Protocol):
    """Ownership of sessions: one owner each, and the queue of its runs in order of arrival.

    A session with unfinished runs has a queue of them; the holder of its lease executes them one
    by one.
    """

    @property
    def lease_seconds(self) -> float | None:
        """How long a lease holds without renewal; None if it ends with the process."""
        ...

    async def claim(self, session_id: str, token: str) -> Lease | None:
        """Own a session with unfinished runs and no owner; None if that fails."""
        ...

    async def queue_head(self, session_id: str) -> QueueHead | None:
        """Return the run whose turn it is, whoever owns the session."""
        ...

    async def next_run(self, lease: Lease) -> str | None:
        """Return the run whose turn it is. None if none is left: then the lease is released.

        Raises `LeaseLost`.
        """
        ...

    async def finish_run(self, run_id: str, said: Sequence[Message], lease: Lease) -> str | None:
        """Remove an ended run from the queue, and append its messages to the conversation.

        In the same step returns what `next_run` would. Does nothing for a run that is not in the
        queue. Waits for a store that is away. Raises `LeaseLost`, and `LogTruncated` if the store
        has lost the run's end.
        """
        ...

    async def renew(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        """Renew leases; returns those that are lost."""
        ...

    async def release(self, lease: Lease, *, hand_over: bool = False) -> None:
        """Release a session whose runs have not ended, so that another process can claim it.

        With `hand_over` other processes learn of it at once.
        """
        ...

    async def unowned_sessions(self) -> Sequence[str]:
        """Some sessions that have unfinished runs and no owner."""
        ...

    async def overdue_runs(self) -> Sequence[str]:
        """Runs that still wait for their turn, beyond their deadline.

        Each is given again some seconds later, until it has ended.
        """
        ...

    async def send_signal(self, run_id: str, signal: Signal) -> None:
        """Send a signal to a run's owner, or to the next one if there is none now.

        Does nothing for a run that has ended. Raises `TooManyMessages`.
        """
        ...

    def drop_signal(self, run_id: str, signal: Signal) -> None:
        """Forget a signal that is on the run's record. It may fail, and nobody waits for it."""
        ...

    async def may_be_truncated(self, run_id: str) -> bool:
        """Whether the store may have lost the newest records of a run: it was down meanwhile."""
        ...

    async def pending_signals(self, run_id: str) -> Sequence[Signal]:
        """The signals that were sent to a run, in order of arrival, for a new owner."""
        ...


class Feed(Protocol):
    """Live updates of runs between processes; some may be lost, for the log is the truth.

    Records are published by `EventLog.append`, in the same step; notices by `publish_notice`.
    """

    def publish_notice(self, run_id: str, notice: Notice) -> None:
        """Send a notice to subscribers at other processes. Never waits; may lose it."""
        ...

    async def subscribe(self, run_id: str, put: Callable[[FeedItem], None]) -> Callable[[], None]:
        """Call `put` with every update of a run from now on; the result ends that."""
        ...

    def on_signal(self, callback: Callable[[str, str, Signal], None]) -> None:
        """Call back with session, run and signal whenever a run is sent a signal."""
        ...

    def on_hand_over(self, callback: Callable[[str], None]) -> None:
        """Call back with the session whenever another process hands one over. May be lost."""
        ...


class Clock(Protocol):
    """Wall-clock time and random ids."""

    def now(self) -> float:
        """Seconds since the epoch."""
        ...

    def token(self) -> str:
        """A new random token: 128 bits, lower-case hex."""
        ...


@dataclass(frozen=True, slots=True)
class Stores:
    """The log of runs, their sessions, leases and feed, and the clock that dates and names them."""

    log: EventLog
    sessions: Sessions
    leases: SessionLeases
    feed: Feed
    clock: Clock

    async def has_lost(self, run_id: str) -> bool:
        """Whether the store has lost a run; False while the store cannot be asked."""
        try:
            await self.log.entry(run_id)
        except (RunLost, RunNotFound):
            return True
        except StoreError:
            return False
        return False
