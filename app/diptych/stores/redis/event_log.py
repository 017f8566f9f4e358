"""The event log in Redis: one stream per run, with the records' seqs as ids.

Each write is one script (`scripts/runs.lua`), which also publishes the records to the feed. Lists
are read in pages, so that none blocks Redis for long.
"""

import asyncio
import math
from collections.abc import Sequence

from diptych.core.codec import NOT_IN_MEMORY_VIEW, TERMINAL, Record
from diptych.core.errors import (
    BlobMissing,
    IdempotencyMismatch,
    NotResumable,
    Overloaded,
    RunNotFound,
    SessionBusy,
    StoreError,
)
from diptych.core.messages import Message
from diptych.net.backoff import Backoff
from diptych.ports.entries import IdempotencyKey, Lease, Opened, RunEntry, RunPage, SessionEntry
from diptych.ports.ids import epoch_of
from diptych.stores.encoding import decode_messages, decode_record, dumps, encode_record
from diptych.stores.redis.client import StoreClient, expired_run, raise_if_refused
from diptych.stores.redis.connection import RedisConnection
from diptych.stores.redis.scripts import RUNS, RUNS_WHEN_FULL
from diptych.stores.redis.server import Reply
from diptych.stores.redis.settings import RedisSettings

_RECORDS_PER_READ = 2_000  # so that a long run does not block Redis or this process
_SESSIONS_PER_CALL = 100
_RUNS_PER_CALL = 1_000
_MAX_EXPIRED_PAGES = 100  # pages with expired runs to purge before returning a short page
_BLOB_CACHE_SECONDS, _MAX_CACHED_BLOBS = 60.0, 1_000  # a stored blob is not written again
_ENDING_SECONDS = 1.0  # to wait for the owner of an ended run to count its use


class RedisEventLog(StoreClient):
    """Implements `EventLog` and `Sessions` of `ports.stores`."""

    def __init__(self, settings: RedisSettings, connection: RedisConnection) -> None:
        super().__init__(settings, connection)
        self._blobs: dict[tuple[int, str], float] = {}  # cache expiry by loss count and key

    @property
    def epoch(self) -> str:
        return self._connection.epoch

    async def open(
        self,
        first: Record,
        token: str,
        idempotency_key: IdempotencyKey | None = None,
        *,
        if_idle: bool = False,
        if_newest: str | None = None,
    ) -> Opened:
        seconds = first.metadata.get("seconds")  # until the caller's deadline
        reply = await self._connection.run(
            RUNS,
            "open",
            epoch_of(first.run_id),
            first.run_id,
            first.session_id,
            token,
            repr(first.timestamp),
            encode_record(first),
            _shown([first]),
            self._lease_ms,
            self._settings.max_queued_runs,
            idempotency_key.key if idempotency_key else "",
            idempotency_key.digest if idempotency_key else "",
            int(if_idle),
            if_newest or "",
            self._retention_ms,
            self._blob_ms,
            max(0, round(seconds * 1000)) if isinstance(seconds, int | float) else "",
        )
        match reply:
            case [b"ok", is_new, is_owner, entry]:
                lease = Lease(first.session_id, token) if is_owner else None
                return Opened(_entry(entry), lease, bool(is_new))
            case [b"other"]:
                raise IdempotencyMismatch
            case [b"busy"]:
                raise SessionBusy
            case [b"newer"]:
                raise NotResumable
            case [b"full"]:
                raise Overloaded("too many runs of this session are waiting; try again later")
            case _:
                await self._connection.refresh_epoch()
                raise StoreError("the store was emptied just now; try again")

    async def append(
        self, records: Sequence[Record], lease: Lease, *, awaits_input: bool = False
    ) -> None:
        last = records[-1]
        is_end = last.event_type in TERMINAL
        status = "input-required" if awaits_input else "running"
        offered = next((r for r in records if r.event_type == "offered"), None)
        reply = await self._connection.run_when_available(
            RUNS_WHEN_FULL if is_end else RUNS,
            "append",
            last.run_id,
            lease.session_id,
            lease.token,
            records[0].seq,
            last.event_type if is_end else status,
            repr(last.timestamp),
            _shown(records),
            str(offered.content) if offered else "",
            self._blob_ms,
            dumps([lease.session_id, lease.token]),
            *map(encode_record, records),
        )
        raise_if_refused(reply)

    async def read(self, run_id: str, after: int = 0, limit: int | None = None) -> Sequence[Record]:
        records: list[Record] = []
        while True:
            rest = _RECORDS_PER_READ if limit is None else limit - len(records)
            count = min(_RECORDS_PER_READ, rest)
            session, found, exists = await self._connection.execute(
                ("HGET", self._key("run", run_id), "session"),
                ("XRANGE", self._key("log", run_id), f"{after + 1}-0", "+", "COUNT", count),
                ("EXISTS", self._key("log", run_id)),
            )
            if session is None:
                raise await self._missing_run(run_id)
            if not exists:
                raise expired_run()
            records += [
                decode_record(fields[b"r"], run_id, session.decode()) for _, fields in found
            ]
            if len(found) < count or len(records) == limit:
                return records
            after = records[-1].seq

    async def entry(self, run_id: str) -> RunEntry:
        found = await self._connection.run(RUNS_WHEN_FULL, "entry", run_id)
        if found is None:
            raise await self._missing_run(run_id)
        if found == b"expired":
            raise expired_run()
        return _entry(found)

    async def entries(
        self,
        session_id: str | None = None,
        *,
        status: str | None = None,
        before: str | None = None,
        limit: int | None = None,
    ) -> Sequence[RunEntry]:
        if before == "":  # no run has this id, and the script takes it for no `before`
            raise RunNotFound
        found: list[RunEntry] = []
        session = () if session_id is None else (session_id,)
        after = b""
        while limit is None or len(found) < limit:
            count = _RUNS_PER_CALL if limit is None else min(limit - len(found), _RUNS_PER_CALL)
            reply = await self._connection.run(
                RUNS_WHEN_FULL, "list", before or "", after, count, status or "", *session
            )
            if reply[0] == b"unknown":
                raise RunNotFound
            found += map(_entry, reply[2])
            after = reply[1]
            if not after:
                break
        return found

    async def updated_entries(
        self,
        statuses: Sequence[str],
        limit: int,
        *,
        since: int = 0,
        before: tuple[int, str] | None = None,
    ) -> RunPage:
        for _ in range(_MAX_EXPIRED_PAGES):
            total, expired, rows = await self._connection.run(
                RUNS_WHEN_FULL, "updated", since, *(before or ("", "")), limit, *statuses
            )
            if not expired:
                break
        return RunPage([_entry(row) for row in rows], total - expired)

    async def put_blob(self, key: str, blob: bytes) -> None:
        now = asyncio.get_running_loop().time()
        stored = (self._connection.losses, key)
        if now < self._blobs.get(stored, -math.inf):
            return
        await self._connection.execute(("SET", self._key("blob", key), blob, "PX", self._blob_ms))
        if len(self._blobs) >= _MAX_CACHED_BLOBS:
            self._blobs.clear()
        self._blobs[stored] = now + _BLOB_CACHE_SECONDS

    async def get_blob(self, key: str) -> bytes:
        [blob] = await self._connection.execute(("GET", self._key("blob", key)))
        if blob is None:
            raise BlobMissing(f"there is no blob {key}")
        return bytes(blob)

    # The sessions

    async def conversation(self, session_id: str) -> tuple[Message, ...]:
        [rows] = await self._connection.execute(
            ("LRANGE", self._key("messages", session_id), 0, -1)
        )
        # Each row starts with the run's id.
        return tuple(m for row in rows for m in decode_messages(row.partition(b" ")[2]))

    async def session_exists(self, session_id: str) -> bool:
        [exists] = await self._connection.execute(("EXISTS", self._key("session", session_id)))
        return bool(exists)

    async def sessions(self, limit: int | None = None) -> Sequence[SessionEntry]:
        last = -1 if limit is None else limit - 1
        [names] = await self._connection.execute(
            ("ZREVRANGE", f"{self._settings.prefix}:sessions", 0, last)
        )
        entries: list[SessionEntry] = []
        for start in range(0, len(names), _SESSIONS_PER_CALL):
            for name, runs, events, created, updated in await self._connection.run(
                RUNS_WHEN_FULL, "sessions", *names[start : start + _SESSIONS_PER_CALL]
            ):
                entries.append(
                    SessionEntry(name.decode(), runs, int(events), float(created), float(updated))
                )
        return sorted(entries, key=lambda entry: entry.created)

    async def count_sessions(self) -> int:
        count = await self._connection.run(RUNS_WHEN_FULL, "count_sessions", self._retention_ms)
        return int(count)

    async def count_events(self, session_id: str | None = None) -> int:
        if session_id is None:
            return sum(entry.events for entry in await self.sessions())
        [count] = await self._connection.execute(
            ("HGET", self._key("session", session_id), "events")
        )
        return int(count or 0)

    async def delete(self, session_id: str) -> bool:
        return await self._delete(session_id)

    async def delete_run(self, session_id: str, run_id: str, shown: int) -> bool:
        return await self._delete(session_id, run_id, shown)

    async def _delete(self, *what: str | int) -> bool:
        backoff = Backoff(0.005, 0.1, budget=_ENDING_SECONDS)
        while True:
            reply = await self._connection.run(RUNS_WHEN_FULL, "delete", *what)
            if reply != b"ending" or backoff.is_exhausted:
                break
            await asyncio.sleep(backoff.next_delay())
        if reply in {b"busy", b"ending"}:
            raise SessionBusy
        return bool(reply == b"deleted")


def _shown(records: Sequence[Record]) -> str:
    """Return '1' for each record that `/memory/events` shows, '0' for each other."""
    return "".join("01"[r.event_type not in NOT_IN_MEMORY_VIEW] for r in records)


def _entry(row: Sequence[Reply]) -> RunEntry:
    run_id, session_id, created, status, seq, updated, may_be_truncated = row
    return RunEntry(
        run_id.decode(),
        session_id.decode(),
        float(created),
        status.decode(),
        int(seq),
        float(updated),
        bool(may_be_truncated),
    )
