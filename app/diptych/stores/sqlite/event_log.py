"""The event log and its sessions in SQLite: one transaction for each step."""

import asyncio
from collections.abc import Callable, Sequence
from sqlite3 import Connection
from typing import Any, TypeVar

from diptych.core.codec import NOT_IN_MEMORY_VIEW, TERMINAL, Record
from diptych.core.errors import (
    BlobMissing,
    IdempotencyMismatch,
    LeaseLost,
    LogTruncated,
    NotResumable,
    Overloaded,
    RequestError,
    RunLost,
    RunNotFound,
    SessionBusy,
)
from diptych.core.messages import Message
from diptych.net.backoff import Backoff
from diptych.ports.entries import IdempotencyKey, Lease, Opened, RunEntry, RunPage, SessionEntry
from diptych.ports.ids import epoch_of
from diptych.stores.encoding import decode_messages, decode_record, encode_record
from diptych.stores.sqlite.database import Damaged, Database, step
from diptych.stores.sqlite.feed import LocalFeed

MAX_QUEUED_RUNS = 1_000  # of one session
KEY_SECONDS = 24 * 3600.0  # for which an idempotency key holds
_ENDING_SECONDS = 1.0  # for which the owner of a run that has ended may count it
KEPT_SECONDS = 30 * 24 * 3600.0  # for which a session is kept after its last record
_PRUNED_AT_ONCE = 100  # sessions, lest others wait
_ENTRY = "SELECT id, session, created, status, seq, updated FROM runs"
UNFINISHED = ("queued", "running", "input-required")
_MAX_INTEGER = 2**63 - 1
T = TypeVar("T")


class SqliteEventLog(LocalFeed):
    """Fulfils `EventLog`, `Sessions` and `Feed` of `ports.stores`."""

    def __init__(self, database: Database, now: Callable[[], float]) -> None:
        super().__init__()
        self._database = database
        self._now = now
        self._blobs: set[str] = set()  # that are stored for certain
        self._unreleased: list[Lease] = []  # of openers that have gone, and where that failed

    @property
    def epoch(self) -> str:
        return self._database.epoch

    # The event log

    async def open(
        self,
        first: Record,
        token: str,
        idempotency_key: IdempotencyKey | None = None,
        *,
        if_idle: bool = False,
        if_newest: str | None = None,
    ) -> Opened:
        opening = self._database.submit(
            self._open, first, token, idempotency_key, if_idle=if_idle, if_newest=if_newest
        )
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(self._abandon)
            raise

    def _open(  # noqa: PLR0913 - as `open`
        self,
        db: Connection,
        first: Record,
        token: str,
        key: IdempotencyKey | None,
        *,
        if_idle: bool,
        if_newest: str | None,
    ) -> Opened:
        session_id, now = first.session_id, first.timestamp
        if key and (earlier := _earlier_run(db, key, self._now() - KEY_SECONDS)):
            return Opened(_entry_of(db, earlier), None, is_new=False)
        if if_newest and _newest_run(db, session_id) != if_newest:
            raise NotResumable
        if if_idle and _is_busy(db, session_id):
            raise SessionBusy
        if len(queue(db, session_id)) >= MAX_QUEUED_RUNS:
            raise Overloaded("too many runs of this session are waiting; try again later")
        self._database.check_room()
        db.execute(
            "INSERT INTO sessions (id, created, updated) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
            (session_id, now, now),
        )
        seconds = first.metadata.get("seconds")  # until its caller's deadline
        due = now + seconds if isinstance(seconds, int | float) else None
        row = (first.run_id, session_id, now, now, _ms(now), due)
        db.execute(
            "INSERT INTO runs (id, session, created, updated, updated_ms, due, status, seq) "
            "VALUES (?, ?, ?, ?, ?, ?, 'queued', 0)",
            row,
        )
        [(number,)] = rows_of(db, "SELECT last_insert_rowid()")
        _add(db, number, [first], "queued")
        if key:
            db.execute(
                "INSERT OR REPLACE INTO idempotency_keys VALUES (?, ?, ?, ?)",
                (key.key, key.digest, first.run_id, self._now()),
            )
        is_owner = own(db, session_id, token)
        lease = Lease(session_id, token) if is_owner else None
        return Opened(_entry_of(db, first.run_id), lease)

    def _abandon(self, opening: "asyncio.Future[Opened]") -> None:
        """Release the session of a run whose opener has gone, for a takeover."""
        if (
            not opening.cancelled()
            and not opening.exception()
            and (lease := opening.result().lease)
        ):
            self._unreleased.append(lease)

    async def append(
        self, records: Sequence[Record], lease: Lease, *, awaits_input: bool = False
    ) -> None:
        try:
            await self._database.run(self._append, records, lease, awaits_input=awaits_input)
        except asyncio.CancelledError:
            self.report_gap(records[0].run_id)
            raise
        self.publish(records[0].run_id, records)

    def _append(
        self, db: Connection, records: Sequence[Record], lease: Lease, *, awaits_input: bool
    ) -> None:
        last = records[-1]
        if last.event_type not in TERMINAL:
            self._database.check_room()
        number, seq = self._run(db, last.run_id, "number, seq")
        check_owner(db, lease)
        if records[0].seq > seq + 1:
            raise LogTruncated(seq)
        stored = [r for r in records if r.seq <= seq]
        rows = db.execute(
            "SELECT record FROM records WHERE run = ? AND seq >= ? ORDER BY seq LIMIT ?",
            (number, records[0].seq, len(stored)),
        ).fetchall()
        if [record for (record,) in rows] != [encode_record(record) for record in stored]:
            raise LogTruncated(seq)
        if added := records[len(stored) :]:
            running = "input-required" if awaits_input else "running"
            _add(db, number, added, last.event_type if last.event_type in TERMINAL else running)

    @step
    def read(
        self, db: Connection, run_id: str, after: int = 0, limit: int | None = None
    ) -> Sequence[Record]:
        number, session_id = self._run(db, run_id, "number, session")
        rows = db.execute(
            "SELECT record FROM records WHERE run = ? AND seq > ? ORDER BY seq LIMIT ?",
            (number, min(after, _MAX_INTEGER), -1 if limit is None else limit),
        )
        return _decoded(lambda: [decode_record(row, run_id, session_id) for (row,) in rows])

    @step
    def entry(self, db: Connection, run_id: str) -> RunEntry:
        self._run(db, run_id)
        return _entry_of(db, run_id)

    @step
    def entries(
        self,
        db: Connection,
        session_id: str | None = None,
        *,
        status: str | None = None,
        before: str | None = None,
        limit: int | None = None,
    ) -> Sequence[RunEntry]:
        number = _MAX_INTEGER
        if before is not None:
            found = rows_of(
                db,
                "SELECT number FROM runs WHERE id = ?1 AND (?2 IS NULL OR session = ?2)",
                before,
                session_id,
            )
            if not found:
                raise RunNotFound
            [(number,)] = found
        wanted = {"session": session_id, "status": status}
        given = {name: value for name, value in wanted.items() if value is not None}
        where = "".join(f" AND {name} = ?" for name in given)
        rows = rows_of(
            db,
            f"{_ENTRY} WHERE number < ?{where} ORDER BY number DESC LIMIT ?",
            number,
            *given.values(),
            -1 if limit is None else limit,
        )
        return [RunEntry(*row) for row in rows]

    @step
    def updated_entries(
        self,
        db: Connection,
        statuses: Sequence[str],
        limit: int,
        *,
        since: int = 0,
        before: tuple[int, str] | None = None,
    ) -> RunPage:
        names = ", ".join("?" * len(statuses))
        listed = f"status IN ({names}) AND updated_ms >= ?"
        given = (*statuses, min(since, _MAX_INTEGER))
        [(total,)] = rows_of(db, f"SELECT count(*) FROM runs WHERE {listed}", *given)  # noqa: S608 - no values
        ms, run_id = before or (_MAX_INTEGER, "")
        rows = rows_of(
            db,
            f"{_ENTRY} WHERE {listed} AND (updated_ms, id) < (?, ?) "
            "ORDER BY updated_ms DESC, id DESC LIMIT ?",
            *given,
            min(ms, _MAX_INTEGER),
            run_id,
            limit,
        )
        return RunPage([RunEntry(*row) for row in rows], total)

    async def put_blob(self, key: str, blob: bytes) -> None:
        if key in self._blobs:
            return
        await self._database.run(self._put_blob, key, blob)
        self._blobs.add(key)

    def _put_blob(self, db: Connection, key: str, blob: bytes) -> None:
        self._database.check_room()
        db.execute("INSERT OR IGNORE INTO blobs VALUES (?, ?)", (key, blob))

    @step
    def get_blob(self, db: Connection, key: str) -> bytes:
        for (blob,) in rows_of(db, "SELECT blob FROM blobs WHERE key = ?", key):
            return bytes(blob)
        raise BlobMissing(f"there is no blob {key}")

    # The sessions

    @step
    def conversation(self, db: Connection, session_id: str) -> tuple[Message, ...]:
        rows = rows_of(
            db,
            "SELECT said FROM runs WHERE session = ? AND said IS NOT NULL ORDER BY number",
            session_id,
        )
        return _decoded(lambda: tuple(m for (said,) in rows for m in decode_messages(said)))

    @step
    def session_exists(self, db: Connection, session_id: str) -> bool:
        return bool(rows_of(db, "SELECT 1 FROM sessions WHERE id = ?", session_id))

    @step
    def sessions(self, db: Connection, limit: int | None = None) -> Sequence[SessionEntry]:
        rows = rows_of(
            db,
            "SELECT id, (SELECT count(*) FROM runs WHERE session = sessions.id), events, created, "
            "updated FROM sessions ORDER BY updated DESC LIMIT ?",
            -1 if limit is None else limit,
        )
        return sorted((SessionEntry(*row) for row in rows), key=lambda entry: entry.created)

    @step
    def count_sessions(self, db: Connection) -> int:
        [(count,)] = rows_of(db, "SELECT count(*) FROM sessions")
        return int(count)

    @step
    def count_events(self, db: Connection, session_id: str | None = None) -> int:
        [(count,)] = rows_of(
            db,
            "SELECT coalesce(sum(events), 0) FROM sessions WHERE ?1 IS NULL OR id = ?1",
            session_id,
        )
        return int(count)

    async def delete(self, session_id: str) -> bool:
        return await self._once_ended(delete_session, session_id)

    async def delete_run(self, session_id: str, run_id: str, shown: int) -> bool:
        return await self._once_ended(_delete_run, session_id, run_id, shown)

    async def _once_ended(self, step: Callable[..., bool | None], *args: Any) -> bool:  # noqa: ANN401 - the step's own
        """Take a step that returns None while the owner of an ended run is to count it."""
        backoff = Backoff(0.005, 0.1, budget=_ENDING_SECONDS)
        while (outcome := await self._database.run(step, *args)) is None:
            if backoff.is_exhausted:
                raise SessionBusy
            await asyncio.sleep(backoff.next_delay())
        return outcome

    def _run(self, db: Connection, run_id: str, columns: str = "number") -> Any:  # noqa: ANN401 - a row
        """Return columns of a run's row. Raises `RunNotFound` or `RunLost`."""
        row = db.execute(f"SELECT {columns} FROM runs WHERE id = ?", (run_id,)).fetchone()  # noqa: S608 - a constant
        if row is None:
            raise self._missing(run_id)
        return row

    def _missing(self, run_id: str) -> RequestError:
        if epoch_of(run_id) in {"", self.epoch}:
            return RunNotFound()
        return RunLost("the record of this run is in another file, or gone; start it again")


# Steps, and parts of them


def queue(db: Connection, session_id: str) -> list[str]:
    """Return the ids of a session's runs that are not finished, in the order of their turns."""
    rows = db.execute(
        "SELECT id FROM runs WHERE session = ? AND is_queued ORDER BY number", (session_id,)
    )
    return [run_id for (run_id,) in rows]


def own(db: Connection, session_id: str, token: str) -> bool:
    """Claim a session for a token, if nobody owns it."""
    changed = db.execute(
        "UPDATE sessions SET owner = ? WHERE id = ? AND owner IS NULL", (token, session_id)
    )
    return changed.rowcount > 0


def release(db: Connection, lease: Lease) -> None:
    """Release a session, if the lease is its newest."""
    db.execute(
        "UPDATE sessions SET owner = NULL WHERE id = ? AND owner = ?",
        (lease.session_id, lease.token),
    )


def check_owner(db: Connection, lease: Lease) -> None:
    """Raise `LeaseLost` if a session is not owned under this lease."""
    if rows_of(db, "SELECT owner FROM sessions WHERE id = ?", lease.session_id) != [(lease.token,)]:
        raise LeaseLost("this session is owned under another lease")


def prune(db: Connection, now: float) -> bool:
    """Delete what has been kept for its time; whether there may be more."""
    old = rows_of(
        db,
        "SELECT id FROM sessions WHERE updated < ? AND id NOT IN "
        "(SELECT session FROM runs WHERE is_queued) ORDER BY updated LIMIT ?",
        now - KEPT_SECONDS,
        _PRUNED_AT_ONCE,
    )
    for (session_id,) in old:
        delete_session(db, session_id)
    db.execute("DELETE FROM idempotency_keys WHERE at < ?", (now - KEY_SECONDS,))
    for table in ("accounts", "counted"):
        db.execute(f"DELETE FROM {table} WHERE until < ?", (now,))  # noqa: S608 - constants
    return len(old) == _PRUNED_AT_ONCE


def delete_session(db: Connection, session_id: str) -> bool | None:
    """Delete a session and its runs; False if unknown, None if one is still to be counted."""
    if not rows_of(db, "SELECT 1 FROM sessions WHERE id = ?", session_id):
        return False
    if queue(db, session_id):
        _refuse_if_busy(db, session_id)
        return None
    for (number,) in rows_of(db, "SELECT number FROM runs WHERE session = ?", session_id):
        _delete_records(db, number)
    db.execute("DELETE FROM sessions WHERE id = ?", (session_id,))
    return True


def _delete_run(db: Connection, session_id: str, run_id: str, shown: int) -> bool | None:
    rows = rows_of(
        db, "SELECT number, is_queued FROM runs WHERE id = ? AND session = ?", run_id, session_id
    )
    for number, is_queued in rows:
        if is_queued:
            _refuse_if_busy(db, session_id)
            return None
        _delete_records(db, number)
        db.execute("UPDATE sessions SET events = events - ? WHERE id = ?", (shown, session_id))
        if _newest_run(db, session_id) is None:
            db.execute("DELETE FROM sessions WHERE id = ?", (session_id,))
    return bool(rows)


def _delete_records(db: Connection, number: int) -> None:
    for statement in (
        "DELETE FROM records WHERE run = ?",
        "DELETE FROM signals WHERE run = ?",
        "DELETE FROM pushes WHERE run = ?",
        "DELETE FROM runs WHERE number = ?",
    ):
        db.execute(statement, (number,))


def _refuse_if_busy(db: Connection, session_id: str) -> None:
    if _is_busy(db, session_id):
        raise SessionBusy


def _is_busy(db: Connection, session_id: str) -> bool:
    """Whether a run has not ended; one that has is queued until its use is counted."""
    statuses = rows_of(db, "SELECT status FROM runs WHERE session = ? AND is_queued", session_id)
    return any(status in UNFINISHED for (status,) in statuses)


def _newest_run(db: Connection, session_id: str) -> str | None:
    rows = rows_of(
        db, "SELECT id FROM runs WHERE session = ? ORDER BY number DESC LIMIT 1", session_id
    )
    return rows[0][0] if rows else None


def _earlier_run(db: Connection, key: IdempotencyKey, since: float) -> str | None:
    """Return the run that a request opened when it came first, if it is still stored."""
    rows = rows_of(
        db,
        "SELECT run, digest FROM idempotency_keys JOIN runs ON runs.id = run "
        "WHERE key = ? AND at > ?",
        key.key,
        since,
    )
    for run_id, digest in rows:
        if digest != key.digest:
            raise IdempotencyMismatch
        return str(run_id)
    return None


def _add(db: Connection, number: int, records: Sequence[Record], status: str) -> None:
    """Add records that follow those of a run, and note what they change."""
    db.executemany(
        "INSERT INTO records VALUES (?, ?, ?)",
        [(number, record.seq, encode_record(record)) for record in records],
    )
    last = records[-1]
    offered = next((str(r.content) for r in records if r.event_type == "offered"), None)
    db.execute(
        "UPDATE runs SET status = ?, seq = ?, updated = ?, updated_ms = ?, "
        "blob = coalesce(?, blob) WHERE number = ?",
        (status, last.seq, last.timestamp, _ms(last.timestamp), offered, number),
    )
    shown = sum(record.event_type not in NOT_IN_MEMORY_VIEW for record in records)
    db.execute(
        "UPDATE sessions SET updated = ?, events = events + ? WHERE id = ?",
        (last.timestamp, shown, last.session_id),
    )


def _entry_of(db: Connection, run_id: str) -> RunEntry:
    [row] = rows_of(db, f"{_ENTRY} WHERE id = ?", run_id)
    return RunEntry(*row)


def rows_of(db: Connection, statement: str, *values: Any) -> list[Any]:  # noqa: ANN401 - SQL's
    """Return the rows of a query."""
    return db.execute(statement, values).fetchall()


def _decoded(decode: Callable[[], T]) -> T:
    try:
        return decode()
    except (ValueError, KeyError, TypeError) as error:
        raise Damaged(f"{type(error).__name__}: {error}") from error


def _ms(seconds: float) -> int:
    return int(seconds * 1000)
