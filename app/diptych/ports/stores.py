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
    Push,
    QueueHead,
    RunEntry,
    RunPage,
    SessionEntry,
)


@dataclass(frozen=True, slots=True)
class Notice:
    """A live message to subscribers that is not logged (loop.md §1)."""

    type: str
    fields: JSONObject = field(default_factory=dict)


Item: TypeAlias = Record | Notice


@dataclass(frozen=True, slots=True)
class Gap:
    """Marks a position in a feed where items may have been missed: read the log again."""


FeedItem: TypeAlias = Item | Gap


class EventLog(Protocol):
    """The append-only log of all runs, the single source of truth (loop.md §9).

    A run's records have `seq` 1, 2, 3 … without gaps. Every method raises `StoreError` if the
    store is unreachable, `RunNotFound` for a run that never existed, and `RunLost` for one whose
    log is gone.
    """

    @property
    def epoch(self) -> str:
        """An id that changes when the store is emptied; in every run id, to recognise lost runs."""
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
        """Log the first record of a run, and append the run to its session's queue.

        Atomically claims the session under `token` if it has no owner. Raises `Overloaded` if
        there is no room, `IdempotencyMismatch` if the key was used with another body, `SessionBusy`
        with `if_idle` if the session has an unfinished run, and `NotResumable` if `if_newest` is
        not the session's newest run.
        """
        ...

    async def append(
        self, records: Sequence[Record], lease: Lease, *, awaits_input: bool = False
    ) -> None:
        """Append the next records of one run, and publish them to other processes.

        `awaits_input`: the run waits for a decision after these.

        Waits while the store is down; the caller sets a limit. Records that are already stored are
        not added again. Raises `LeaseLost` if the lease is not the newest, and `LogTruncated` if
        the store has lost earlier records.
        """
        ...

    async def read(self, run_id: str, after: int = 0, limit: int | None = None) -> Sequence[Record]:
        """Return at most `limit` records of a run, with a `seq` greater than `after`."""
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
        """List the runs of one session, or all runs, most recently opened first.

        Returns at most `limit` runs with this `status`, opened before the run `before`. The cost
        grows with the number of runs returned, and skipped because of their status. Raises
        `RunNotFound` if `before` is not in the list.
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
        """List all runs with one of the statuses, most recently updated first.

        The list has the runs updated at `since` (Unix time in ms) or later. The page has the first
        `limit` of them after the position `before`: update time in ms, and run id.
        """
        ...

    async def put_blob(self, key: str, blob: bytes) -> None:
        """Store data shared by many runs, once, under its hash."""
        ...

    async def get_blob(self, key: str) -> bytes:
        """Return a stored blob. Raises `BlobMissing`."""
        ...


class Sessions(Protocol):
    """The conversations that runs continue: a view of the event log."""

    async def conversation(self, session_id: str) -> tuple[Message, ...]:
        """Return the messages of the session's ended runs, in order; empty if it is unknown."""
        ...

    async def session_exists(self, session_id: str) -> bool:
        """Whether the session has runs."""
        ...

    async def sessions(self, limit: int | None = None) -> Sequence[SessionEntry]:
        """List all sessions, or the `limit` most recently used, in order of creation."""
        ...

    async def count_sessions(self) -> int: ...

    async def count_events(self, session_id: str | None = None) -> int:
        """Count the events that `/memory/events` shows, of one session or of all."""
        ...

    async def delete(self, session_id: str) -> bool:
        """Delete a session and its runs; False if unknown. Raises `SessionBusy`."""
        ...

    async def delete_run(self, session_id: str, run_id: str, shown: int) -> bool:
        """Delete a run and its messages in the session; False if unknown.

        `shown` is the number of its events that `/memory/events` shows. Raises `SessionBusy` if
        the run has not ended.
        """
        ...


class SessionLeases(Protocol):
    """Ownership of sessions, and their queues of unfinished runs.

    A session has one owner, the holder of its lease, who executes the queued runs one by one, in
    order of arrival.
    """

    @property
    def lease_seconds(self) -> float | None:
        """Lifetime of a lease without renewal, in seconds; None if it ends with the process."""
        ...

    async def claim(self, session_id: str, token: str) -> Lease | None:
        """Claim a session with unfinished runs; None if it has an owner, or no such runs."""
        ...

    async def queue_head(self, session_id: str) -> QueueHead | None:
        """Return the first run in the queue, whoever owns the session."""
        ...

    async def next_run(self, lease: Lease) -> str | None:
        """Return the first run in the queue; if it is empty, release the lease and return None.

        Raises `LeaseLost`.
        """
        ...

    async def finish_run(self, run_id: str, said: Sequence[Message], lease: Lease) -> str | None:
        """Remove an ended run from the queue, and append its messages to the conversation.

        Atomically continues with `next_run`, and returns its result. A run that is not in the queue
        is ignored. Waits while the store is down. Raises `LeaseLost`, and `LogTruncated` if the
        store has lost the run's end.
        """
        ...

    async def renew(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        """Renew leases; return the lost ones."""
        ...

    async def release(self, lease: Lease, *, hand_over: bool = False) -> None:
        """Release a session with unfinished runs, so that another process can claim it.

        With `hand_over` other processes are notified at once.
        """
        ...

    async def unowned_sessions(self) -> Sequence[str]:
        """Return some of the sessions with unfinished runs and without an owner."""
        ...

    async def overdue_runs(self) -> Sequence[str]:
        """Return queued runs whose deadline has passed.

        Each is returned again some seconds later, until it has ended.
        """
        ...

    async def send_signal(self, run_id: str, signal: Signal) -> None:
        """Send a signal to a run's owner, or to its next owner if there is none now.

        Does nothing for a run that has ended. Raises `TooManyMessages`.
        """
        ...

    def drop_signal(self, run_id: str, signal: Signal) -> None:
        """Delete a signal that is now in the run's log, in the background; failures are ignored."""
        ...

    async def may_be_truncated(self, run_id: str) -> bool:
        """Whether the store was down during a run, and may have lost its newest records."""
        ...

    async def pending_signals(self, run_id: str) -> Sequence[Signal]:
        """Return the unhandled signals of a run, in order of arrival, for a new owner."""
        ...


class Feed(Protocol):
    """Live updates of runs between processes. Some may be lost, since readers can use the log.

    `EventLog.append` publishes records atomically; `publish_notice` publishes notices.
    """

    def publish_notice(self, run_id: str, notice: Notice) -> None:
        """Send a notice to subscribers in other processes. Never waits; the notice may be lost."""
        ...

    async def subscribe(self, run_id: str, put: Callable[[FeedItem], None]) -> Callable[[], None]:
        """Call `put` with every update of a run from now on; return the unsubscribe function."""
        ...

    def on_signal(self, callback: Callable[[str, str, Signal], None]) -> None:
        """Register a callback for signals to runs; it gets session, run and signal."""
        ...

    def on_hand_over(self, callback: Callable[[str], None]) -> None:
        """Register a callback for sessions that other processes hand over. Some may be lost."""
        ...


class Vault(Protocol):
    """Small secrets of an agent by key, for all its replicas; the caller encrypts them.

    Every method raises `StoreError` if the store is unreachable.
    """

    async def get(self, key: str) -> bytes | None:
        """Return a value; None if there is none, or its time is over."""
        ...

    async def put(self, key: str, value: bytes, seconds: float) -> None:
        """Store a value, in place of an earlier one, for so long."""
        ...

    async def take(self, key: str) -> bytes | None:
        """Return a value and delete it: only one caller gets it."""
        ...


class Pushes(Protocol):
    """The push notifications that callers want, deleted with their runs.

    The process that takes a push sends its notifications, and postpones it again and again until
    all are sent. If the process dies, the push becomes due, and another one takes it.
    """

    async def put_push(self, push: Push, seconds: float | None) -> None:
        """Store a push, in place of any with its ids; it is due in `seconds`, or never.

        Raises `RunNotFound` and `RunLost` as `EventLog` does.
        """
        ...

    async def pushes(self, run_id: str) -> Sequence[Push]:
        """Return the pushes of a run, in order of their ids; none for an unknown run."""
        ...

    async def delete_push(self, run_id: str, config_id: str) -> None:
        """Delete a push; an unknown one is ignored."""
        ...

    async def take_due_pushes(self, seconds: float) -> Sequence[Push]:
        """Return some of the pushes that are due, and postpone each by `seconds`."""
        ...

    async def advance_push(self, push: Push, seconds: float | None) -> bytes | None:
        """Set a push's `seq`, and when it is due; return its config now, None if it was deleted."""
        ...


class Clock(Protocol):
    """Wall-clock time and random ids."""

    def now(self) -> float:
        """Return the Unix time in seconds."""
        ...

    def token(self) -> str:
        """Return a new random token: 128 bits, lower-case hex."""
        ...


@dataclass(frozen=True, slots=True)
class Stores:
    """The store ports of an agent, and the clock for times and ids."""

    log: EventLog
    sessions: Sessions
    leases: SessionLeases
    feed: Feed
    clock: Clock

    async def has_lost(self, run_id: str) -> bool:
        """Whether the store has lost a run; False while the store is unreachable."""
        try:
            await self.log.entry(run_id)
        except (RunLost, RunNotFound):
            return True
        except StoreError:
            return False
        return False
