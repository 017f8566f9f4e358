"""The contracts of the event log, and of the sessions that are a view of it."""

from collections.abc import Sequence
from typing import Protocol

from diptych.core.codec import Record
from diptych.core.messages import Message
from diptych.ports.entries import IdempotencyKey, Lease, Opened, RunEntry, RunPage, SessionEntry


class EventLog(Protocol):
    """The record of all runs: append-only, the only truth (loop.md §9).

    It is `adapters.redis.event_log` where a store is configured, else `adapters.in_memory.store`.

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

        They are on record when this returns. With them the run waits for a decision of somebody,
        or does not (`awaits_input`).

        A store that is away is waited for: the caller sets the limit. What is on record already
        is not added again. Raises `LeaseLost` if the lease is not the newest, `LogTruncated` if the
        store has lost records that came before these.
        """
        ...

    async def read(self, run_id: str, after: int = 0, limit: int | None = None) -> Sequence[Record]:
        """Give the records of a run whose `seq` is greater than `after`, the first `limit`."""
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
        """Give back what `put_blob` stored. Raises `BlobMissing` if it is not there."""
        ...


class Sessions(Protocol):
    """The conversations that runs continue: a view of the event log."""

    async def conversation(self, session_id: str) -> tuple[Message, ...]:
        """Give what the session's ended runs said, in order; nothing for an unknown session."""
        ...

    async def session_exists(self, session_id: str) -> bool:
        """Say whether the session has runs."""
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
        """Forget one run, and what it said in its session; False if unknown.

        `shown` is how many of its events `/memory/events` shows. Raises `InvalidRequest` if the run
        has not ended.
        """
        ...
