"""The event log in Redis: a stream for each run, whose ids are the seqs of the records.

`append.lua` adds records and publishes them in one step; `feed` receives them.
"""

import asyncio
import logging
import math
from collections.abc import Iterator, Sequence

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
from diptych.ports.entries import IdempotencyKey, Lease, Opened, RunEntry
from diptych.ports.ids import epoch_of
from diptych.stores.redis import scripts
from diptych.stores.redis.client import (
    RUN_FIELDS,
    expired_run,
    raise_if_refused,
)
from diptych.stores.redis.connection import MultiplexedConnection
from diptych.stores.redis.encoding import decode_record, dumps, encode_record
from diptych.stores.redis.lists import RedisLists
from diptych.stores.redis.pipeline import Reply
from diptych.stores.redis.settings import RedisSettings

BLOB_CACHE_SECONDS = 60.0  # for which a blob that was stored is taken to be stored still
_MAX_CACHED_BLOBS = 1_000
_RECORDS_PER_READ = 2_000  # lest a long run holds up Redis or this process

_logger = logging.getLogger(__name__)


class RedisEventLog(RedisLists):
    """Fulfils `ports.event_log.EventLog`."""

    def __init__(self, settings: RedisSettings, connection: MultiplexedConnection) -> None:
        super().__init__(settings, connection)
        self._blobs_stored_at: dict[tuple[str, str], float] = {}  # by server and key
        connection.on_new_epoch(self._blobs_stored_at.clear)

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
        seconds = first.metadata.get("seconds")  # until its caller's deadline
        reply = await self._connection.run_script(
            scripts.OPEN,
            epoch_of(first.run_id),
            first.run_id,
            first.session_id,
            token,
            repr(first.timestamp),
            encode_record(first),
            int(first.event_type not in NOT_IN_MEMORY_VIEW),
            self._connection.server.instance_id,
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
            case [b"ok", run_id, is_new, is_claimed, *fields]:
                lease = Lease(first.session_id, token) if is_claimed else None
                return Opened(self._entry(run_id.decode(), fields), lease, bool(is_new))
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
        reply = await self._connection.run_script_when_available(
            scripts.APPEND_END if is_end else scripts.APPEND,
            last.run_id,
            lease.session_id,
            lease.token,
            records[0].seq,
            last.event_type if is_end else status,
            repr(last.timestamp),
            "".join("01"[r.event_type not in NOT_IN_MEMORY_VIEW] for r in records),
            str(offered.content) if offered else "",
            self._blob_ms,
            dumps([lease.session_id, lease.token]),
            *map(encode_record, records),
        )
        raise_if_refused(reply)
        match reply:
            case [b"ok", int(removed)] if removed:
                _logger.warning(
                    "run %s: %d rows that are not ours stood in its way, and are removed",
                    last.run_id,
                    removed,
                )

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
            records += _own_records(found, run_id, session.decode())
            if len(found) < count or len(records) == limit:
                return records
            after = int(found[-1][0].partition(b"-")[0])

    async def entry(self, run_id: str) -> RunEntry:
        fields, exists = await self._connection.execute(
            ("HMGET", self._key("run", run_id), *RUN_FIELDS), ("EXISTS", self._key("log", run_id))
        )
        if fields[0] is None:
            raise await self._missing_run(run_id)
        if not exists:
            raise expired_run()
        entries = self._entries([(run_id.encode(), *fields)])
        if not entries:
            raise RunNotFound
        return entries[0]

    async def put_blob(self, key: str, blob: bytes) -> None:
        now = asyncio.get_running_loop().time()
        seen = (self._connection.server.instance_id, key)
        if now - self._blobs_stored_at.get(seen, -math.inf) < BLOB_CACHE_SECONDS:
            return
        await self._connection.execute(("SET", self._key("blob", key), blob, "PX", self._blob_ms))
        if len(self._blobs_stored_at) >= _MAX_CACHED_BLOBS:
            self._blobs_stored_at.clear()
        self._blobs_stored_at[seen] = now

    async def get_blob(self, key: str) -> bytes:
        [blob] = await self._connection.execute(("GET", self._key("blob", key)))
        if blob is None:
            raise BlobMissing(f"there is no blob {key}")
        return bytes(blob)


def _own_records(found: Sequence[Reply], run_id: str, session_id: str) -> Iterator[Record]:
    """Decode entries of a run's stream; leave out, and say, what nobody of ours has written."""
    unreadable = 0
    for entry_id, fields in found:
        try:
            record = decode_record(fields[1], run_id, session_id)
        except (ValueError, IndexError):
            unreadable += 1
            continue
        if entry_id == f"{record.seq}-0".encode():
            yield record
        else:
            unreadable += 1
    if unreadable:
        _logger.warning("run %s: %d rows are not ours, and are left out", run_id, unreadable)
