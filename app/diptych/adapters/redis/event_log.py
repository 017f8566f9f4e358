"""The event log in Redis: one stream a run, whose ids are the records' seq.

Not here: who may write (`ownership`), what hears of it (`feed`).
"""

import asyncio
from collections.abc import Sequence

from diptych.adapters.redis import scripts
from diptych.adapters.redis.connection import Reply
from diptych.adapters.redis.encoding import dumps, pack_record, read_record
from diptych.adapters.redis.store_part import META, Part, expired, raise_if_refused
from diptych.errors import BlobMissing, IdempotencyMismatch, Overloaded, StoreError
from diptych.loop.codec import NOT_IN_MEMORY_VIEW, TERMINAL, Record
from diptych.ports.entries import IdempotencyKey, Lease, Opened, RunEntry
from diptych.ports.run_ids import epoch_of

KEPT_SECONDS = 60.0  # for which a blob that was there is taken to be there still
_MOST_KEPT = 1_000
_AT_ONCE = 2_000  # records, so that neither Redis nor this process is held up by a long run
_SESSIONS_AT_ONCE = 100


class LogPart(Part):
    """Fulfils `ports.EventLog`."""

    @property
    def epoch(self) -> str:
        return self._link.epoch

    async def open(
        self, first: Record, token: str, idempotency_key: IdempotencyKey | None = None
    ) -> Opened:
        reply = await self._link.run(
            scripts.OPEN,
            epoch_of(first.run_id),
            first.run_id,
            first.session_id,
            token,
            repr(first.timestamp),
            pack_record(first),
            int(first.event_type not in NOT_IN_MEMORY_VIEW),
            self._link.server.run_id,
            self._lease_ms,
            self._settings.most_waiting,
            idempotency_key.key if idempotency_key else "",
            idempotency_key.digest if idempotency_key else "",
        )
        match reply:
            case [b"ok", run_id, is_new, is_claimed, *meta]:
                lease = Lease(first.session_id, token) if is_claimed else None
                return Opened(self._entry_of(run_id.decode(), meta), lease, bool(is_new))
            case [b"other"]:
                raise IdempotencyMismatch
            case [b"full"]:
                raise Overloaded("too many runs of this session are waiting; try again later")
            case _:
                await self._link.refresh_epoch()
                raise StoreError("the store was emptied just now; try again")

    async def append(self, records: Sequence[Record], lease: Lease) -> None:
        last = records[-1]
        ends = last.event_type in TERMINAL
        offered = next((r for r in records if r.event_type == "offered"), None)
        reply = await self._link.run_patiently(
            scripts.APPEND_END if ends else scripts.APPEND,
            last.run_id,
            lease.session_id,
            lease.token,
            records[0].seq,
            last.event_type if ends else "running",
            repr(last.timestamp),
            "".join("01"[r.event_type not in NOT_IN_MEMORY_VIEW] for r in records),
            str(offered.content) if offered else "",
            self._blob_ms,
            dumps([lease.session_id, lease.token]),
            *map(pack_record, records),
        )
        raise_if_refused(reply)

    async def read(self, run_id: str, after: int = 0, limit: int | None = None) -> Sequence[Record]:
        records: list[Record] = []
        while True:
            count = _AT_ONCE if limit is None else min(_AT_ONCE, limit - len(records))
            session, found, there = await self._link.ask(
                ("HGET", self._key("run", run_id), "session"),
                ("XRANGE", self._key("log", run_id), f"{after + 1}-0", "+", "COUNT", count),
                ("EXISTS", self._key("log", run_id)),
            )
            if session is None:
                raise await self._absent(run_id)
            if not there:
                raise expired()
            session_id = session.decode()
            records += [read_record(fields[1], run_id, session_id) for _, fields in found]
            if len(found) < count or len(records) == limit:
                return records
            after = records[-1].seq

    async def entry(self, run_id: str) -> RunEntry:
        meta, there = await self._link.ask(
            ("HMGET", self._key("run", run_id), *META), ("EXISTS", self._key("log", run_id))
        )
        if meta[0] is None:
            raise await self._absent(run_id)
        if not there:
            raise expired()
        return self._entry_of(run_id, meta)

    async def entries(self, session_id: str | None = None) -> Sequence[RunEntry]:
        names: Sequence[Reply] = [session_id]
        if session_id is None:
            [names] = await self._link.ask(("ZRANGE", f"{self._settings.prefix}:sessions", 0, -1))
        rows: list[tuple[float, RunEntry]] = []
        for start in range(0, len(names), _SESSIONS_AT_ONCE):
            chunk = names[start : start + _SESSIONS_AT_ONCE]
            for order, run_id, *meta in await self._link.run(scripts.ENTRIES, *chunk):
                rows.append((float(order), self._entry_of(run_id.decode(), meta)))
        rows.sort(key=lambda row: row[0])
        return [entry for _, entry in rows]

    async def put_blob(self, key: str, blob: bytes) -> None:
        now, seen = asyncio.get_running_loop().time(), (self._link.server.run_id, key)
        if now - self._kept.get(seen, -KEPT_SECONDS) < KEPT_SECONDS:
            return
        await self._link.ask(("SET", self._key("blob", key), blob, "PX", self._blob_ms))
        if len(self._kept) >= _MOST_KEPT:
            self._kept.clear()
        self._kept[seen] = now

    async def get_blob(self, key: str) -> bytes:
        [blob] = await self._link.ask(("GET", self._key("blob", key)))
        if blob is None:
            raise BlobMissing(f"nothing is kept under {key}")
        return bytes(blob)
