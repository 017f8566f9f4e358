"""The leases of sessions in SQLite. They do not expire: only the process with the file can write.

What a dead process owned is released when the next one opens the file.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from sqlite3 import Connection

from diptych.core.errors import LogTruncated, StoreError, TooManyMessages
from diptych.core.events import Signal
from diptych.core.messages import Message
from diptych.ports.entries import Lease, QueueHead
from diptych.stores.encoding import MOST_SIGNALS, decode_signal, encode_messages, encode_signal
from diptych.stores.sqlite.database import step
from diptych.stores.sqlite.event_log import (
    UNFINISHED,
    check_owner,
    own,
    prune,
    queue,
    release,
    rows_of,
)
from diptych.stores.sqlite.pushes import SqlitePushes

_MAX_UNOWNED, _MAX_OVERDUE = 50, 100  # in one reply
_PRUNE_SECONDS = 3600.0


class SqliteLeases(SqlitePushes):
    """Fulfils `ports.SessionLeases` beside the event log."""

    _prune_at = 0.0

    @property
    def lease_seconds(self) -> float | None:
        """A quarter of it is the time between two looks for overdue runs."""
        return 10.0

    @step
    def claim(self, db: Connection, session_id: str, token: str) -> Lease | None:
        is_claimed = bool(queue(db, session_id)) and own(db, session_id, token)
        return Lease(session_id, token) if is_claimed else None

    @step
    def queue_head(self, db: Connection, session_id: str) -> QueueHead | None:
        rows = rows_of(
            db,
            "SELECT id, coalesce((SELECT sum(length(record)) FROM records WHERE run = number), 0) "
            "+ coalesce((SELECT sum(length(signal)) FROM signals WHERE run = runs.number), 0) + "
            "coalesce((SELECT sum(length(said)) FROM runs WHERE session = ?1), 0), deaths "
            "FROM runs WHERE session = ?1 AND is_queued ORDER BY number LIMIT 1",
            session_id,
        )
        return QueueHead(*rows[0]) if rows else None

    @step
    def next_run(self, db: Connection, lease: Lease) -> str | None:
        return _next_run(db, lease)

    @step
    def finish_run(
        self, db: Connection, run_id: str, said: Sequence[Message], lease: Lease
    ) -> str | None:
        check_owner(db, lease)
        for number, status, seq in rows_of(
            db, "SELECT number, status, seq FROM runs WHERE id = ? AND is_queued", run_id
        ):
            if status in UNFINISHED:
                raise LogTruncated(seq)
            db.execute(
                "UPDATE runs SET is_queued = 0, said = ? WHERE number = ?",
                (encode_messages(said) or None, number),
            )
            db.execute("DELETE FROM signals WHERE run = ?", (number,))
        return _next_run(db, lease)

    @step
    def renew(self, db: Connection, leases: Sequence[Lease]) -> Sequence[Lease]:
        """Return the leases under which others own sessions, or nobody though runs wait."""
        lost = []
        for lease in leases:
            rows = rows_of(db, "SELECT owner FROM sessions WHERE id = ?", lease.session_id)
            is_over = rows == [(None,)] and not queue(db, lease.session_id)
            if rows != [(lease.token,)] and not is_over:
                lost.append(lease)
        return lost

    async def release(self, lease: Lease, *, hand_over: bool = False) -> None:
        del hand_over  # there is no other process
        try:
            await self._database.run(release, lease)
        except StoreError:
            self._unreleased.append(lease)
            raise

    async def unowned_sessions(self) -> Sequence[str]:
        unreleased, now = tuple(self._unreleased), self._now()
        sessions = await self._database.run(_unowned_sessions, unreleased)
        self._unreleased = [lease for lease in self._unreleased if lease not in unreleased]
        if now >= self._prune_at:
            has_more = await self._database.run(prune, now)
            self._prune_at = 0.0 if has_more else now + _PRUNE_SECONDS
        return sessions

    @step
    def overdue_runs(self, db: Connection) -> Sequence[str]:
        rows = rows_of(
            db,
            "SELECT id FROM runs WHERE status = 'queued' AND due <= ? LIMIT ?",
            self._now(),
            _MAX_OVERDUE,
        )
        return [run_id for (run_id,) in rows]

    async def send_signal(self, run_id: str, signal: Signal) -> None:
        session_id = await self._database.run(self._send_signal, run_id, signal)
        if session_id is not None:
            self.publish_signal(session_id, run_id, signal)

    def _send_signal(self, db: Connection, run_id: str, signal: Signal) -> str | None:
        """Store a signal once; return the run's session, None if the run has ended."""
        number, session_id, status = self._run(db, run_id, "number, session, status")
        if status not in UNFINISHED:
            return None
        encoded, most = encode_signal(signal), MOST_SIGNALS.get(type(signal))
        signals = rows_of(db, "SELECT signal FROM signals WHERE run = ?", number)
        if (encoded,) not in signals:
            if most is not None:
                self._database.check_room()
                if len(signals) >= most:
                    raise TooManyMessages
            db.execute("INSERT INTO signals (run, signal) VALUES (?, ?)", (number, encoded))
        return str(session_id)

    def drop_signal(self, run_id: str, signal: Signal) -> None:
        with suppress(StoreError):
            self._database.submit(_drop_signal, run_id, signal).add_done_callback(_ignore)

    @step
    def pending_signals(self, db: Connection, run_id: str) -> Sequence[Signal]:
        [number] = self._run(db, run_id)
        rows = rows_of(db, "SELECT signal FROM signals WHERE run = ? ORDER BY number", number)
        return [signal for (encoded,) in rows if (signal := decode_signal(encoded))]

    async def may_be_truncated(self, run_id: str) -> bool:
        del run_id
        return False  # a commit is on the disk before anybody hears of it


def begin(db: Connection) -> None:
    """Release what a dead process owned, and count its death with the runs whose turn it was."""
    db.execute(
        "UPDATE runs SET deaths = deaths + 1 WHERE number IN (SELECT min(number) FROM runs "
        "JOIN sessions ON sessions.id = session WHERE is_queued AND owner IS NOT NULL "
        "GROUP BY session)"
    )
    end(db)
    db.execute(
        "DELETE FROM blobs WHERE NOT EXISTS (SELECT 1 FROM runs WHERE runs.blob = blobs.key)"
    )


def end(db: Connection) -> None:
    """Release all sessions."""
    db.execute(
        "UPDATE sessions SET owner = NULL WHERE id IN (SELECT session FROM runs WHERE is_queued)"
    )


def _next_run(db: Connection, lease: Lease) -> str | None:
    check_owner(db, lease)
    if waiting := queue(db, lease.session_id):
        return waiting[0]
    release(db, lease)
    return None


def _unowned_sessions(db: Connection, unreleased: Sequence[Lease]) -> list[str]:
    for lease in unreleased:
        release(db, lease)
    rows = rows_of(
        db,
        "SELECT DISTINCT session FROM runs JOIN sessions ON sessions.id = session "
        "WHERE is_queued AND owner IS NULL LIMIT ?",
        _MAX_UNOWNED,
    )
    return [session_id for (session_id,) in rows]


def _drop_signal(db: Connection, run_id: str, signal: Signal) -> None:
    db.execute(
        "DELETE FROM signals WHERE signal = ? AND run = (SELECT number FROM runs WHERE id = ?)",
        (encode_signal(signal), run_id),
    )


def _ignore(future: "asyncio.Future[None]") -> None:
    """Take note of a failure, so that nobody logs it."""
    if not future.cancelled():
        future.exception()
