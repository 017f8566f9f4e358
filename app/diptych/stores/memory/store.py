"""The event log and the sessions in memory, bounded.

Run ids contain the process's epoch, which distinguishes runs of an earlier process from runs that
never existed. When a bound is reached, the oldest finished runs are dropped, with a log line.
"""

import logging
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from heapq import nlargest
from itertools import islice

import orjson

from diptych.core.codec import NOT_IN_MEMORY_VIEW, TERMINAL, Record
from diptych.core.errors import (
    BlobMissing,
    IdempotencyMismatch,
    NotResumable,
    Overloaded,
    RunLost,
    RunNotFound,
    SessionBusy,
)
from diptych.core.messages import Message
from diptych.ports.entries import (
    IdempotencyKey,
    Lease,
    Opened,
    Push,
    RunEntry,
    RunPage,
    SessionEntry,
)
from diptych.ports.ids import epoch_of
from diptych.stores.memory.leases import MemoryLeases

_RECORD_BYTES = 400  # rough size of a record without its content
_LOG_EVERY = 100  # dropped runs
_MAX_IDEMPOTENCY_KEYS = 10_000
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of the store. Unfinished runs are never dropped."""

    sessions: int = 1_000
    events: int = 200_000
    size: int = 64 * 2**20  # bytes


@dataclass(slots=True)
class _Run:
    """A run, its records and their size in bytes; `blob` is the key of its tools and agents."""

    session_id: str
    created: float
    records: list[Record] = field(default_factory=list)
    size: int = 0
    blob: str | None = None
    awaits_input: bool = False
    messages: tuple[Message, ...] = ()  # its part of the conversation
    pushes: dict[str, tuple[Push, float | None]] = field(default_factory=dict)  # with when due

    @property
    def is_finished(self) -> bool:
        return bool(self.records) and self.records[-1].event_type in TERMINAL

    @property
    def status(self) -> str:
        if self.is_finished:
            return self.records[-1].event_type
        if self.awaits_input:
            return "input-required"
        return "running" if len(self.records) > 1 else "queued"

    def entry(self, run_id: str) -> RunEntry:
        seq, updated = len(self.records), self.records[-1].timestamp
        return RunEntry(run_id, self.session_id, self.created, self.status, seq, updated)


@dataclass(slots=True)
class _Session:
    """A session and its runs, oldest first."""

    created: float
    updated: float
    runs: list[str] = field(default_factory=list)
    events: int = 0  # shown by `/memory/events`


LOST = "this run ended with the process that ran it; start it again"


class MemoryStore(MemoryLeases):
    """Implements all ports of `ports.stores` but the vault; no method blocks."""

    def __init__(self, epoch: str, bounds: Bounds | None = None, *, lost: str = LOST) -> None:
        super().__init__()
        self.epoch = epoch
        self._lost = lost  # said of a run of another epoch
        self.dropped = 0  # number of runs, for the metrics
        self._bounds = bounds or Bounds()
        self._runs: OrderedDict[str, _Run] = OrderedDict()
        self._sessions: dict[str, _Session] = {}
        self._blobs: dict[str, tuple[bytes, set[str]]] = {}
        self._dropped_ids: deque[str] = deque(maxlen=10_000)
        self._idempotency_keys: OrderedDict[str, tuple[str, str]] = OrderedDict()  # digest, run
        self._events = 0
        self._size = 0

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
        run_id, session_id, created = first.run_id, first.session_id, first.timestamp
        if idempotency_key and (earlier := self._earlier_run(idempotency_key)):
            return Opened(await self.entry(earlier), None, is_new=False)
        if if_newest and not self._is_newest(session_id, if_newest):
            raise NotResumable
        if if_idle and self._is_busy(session_id):
            raise SessionBusy
        self._make_room(sessions=0 if session_id in self._sessions else 1)
        self._runs[run_id] = run = _Run(session_id, created)
        self._sessions.setdefault(session_id, _Session(created, created)).runs.append(run_id)
        if idempotency_key:
            self._idempotency_keys[idempotency_key.key] = (idempotency_key.digest, run_id)
        self._add(run, [first])
        return Opened(run.entry(run_id), self._enqueue(session_id, run_id, token))

    async def append(
        self, records: Sequence[Record], lease: Lease, *, awaits_input: bool = False
    ) -> None:
        run = self._run(records[0].run_id)
        self._check(lease)
        run.awaits_input = awaits_input
        self._add(run, records)

    def _earlier_run(self, idempotency_key: IdempotencyKey) -> str | None:
        """Return the run that the original request opened, if it is still stored."""
        while len(self._idempotency_keys) > _MAX_IDEMPOTENCY_KEYS:
            self._idempotency_keys.popitem(last=False)
        digest, run_id = self._idempotency_keys.get(idempotency_key.key, ("", ""))
        if run_id not in self._runs:
            return None
        if digest != idempotency_key.digest:
            raise IdempotencyMismatch
        return run_id

    def _add(self, run: _Run, records: Sequence[Record]) -> None:
        session = self._sessions[run.session_id]
        session.updated = records[-1].timestamp
        for record in records:
            size = _size_of(record)
            run.records.append(record)
            run.size += size
            self._size += size
            self._events += 1
            session.events += record.event_type not in NOT_IN_MEMORY_VIEW
            if record.event_type == "offered":
                self._add_blob_user(run, record)

    async def read(self, run_id: str, after: int = 0, limit: int | None = None) -> Sequence[Record]:
        end = None if limit is None else after + limit
        return self._run(run_id).records[after:end]  # seq counts from 1, without gaps

    async def entry(self, run_id: str) -> RunEntry:
        return self._run(run_id).entry(run_id)

    async def entries(
        self,
        session_id: str | None = None,
        *,
        status: str | None = None,
        before: str | None = None,
        limit: int | None = None,
    ) -> Sequence[RunEntry]:
        ids: Iterable[str] = reversed(self._runs)
        if session_id is not None:
            session = self._sessions.get(session_id)
            ids = reversed(session.runs) if session else ()
        ids = iter(ids)
        if before is not None and before not in ids:  # `in` consumes the iterator up to `before`
            raise RunNotFound
        entries = (self._runs[run_id].entry(run_id) for run_id in ids)
        return list(islice((e for e in entries if status in {None, e.status}), limit))

    async def updated_entries(
        self,
        statuses: Sequence[str],
        limit: int,
        *,
        since: int = 0,
        before: tuple[int, str] | None = None,
    ) -> RunPage:
        positions = [
            position
            for run_id, run in self._runs.items()
            if run.status in statuses
            and (position := (int(run.records[-1].timestamp * 1000), run_id))[0] >= since
        ]
        page = nlargest(limit, (p for p in positions if before is None or p < before))
        return RunPage([self._runs[run_id].entry(run_id) for _, run_id in page], len(positions))

    async def put_blob(self, key: str, blob: bytes) -> None:
        if key not in self._blobs:
            self._blobs[key] = (blob, set())
            self._size += len(blob)

    async def get_blob(self, key: str) -> bytes:
        if key not in self._blobs:
            raise BlobMissing(f"there is no blob {key}")
        return self._blobs[key][0]

    # The sessions

    async def conversation(self, session_id: str) -> tuple[Message, ...]:
        session = self._sessions.get(session_id)
        return tuple(m for r in session.runs for m in self._runs[r].messages) if session else ()

    async def session_exists(self, session_id: str) -> bool:
        return session_id in self._sessions

    async def sessions(self, limit: int | None = None) -> Sequence[SessionEntry]:
        entries = [
            SessionEntry(name, len(each.runs), each.events, each.created, each.updated)
            for name, each in self._sessions.items()
        ]
        if limit is not None:
            entries = nlargest(limit, entries, key=lambda entry: entry.updated)
        return sorted(entries, key=lambda entry: entry.created)

    async def count_sessions(self) -> int:
        return len(self._sessions)

    async def count_events(self, session_id: str | None = None) -> int:
        if session_id is None:
            return sum(session.events for session in self._sessions.values())
        session = self._sessions.get(session_id)
        return session.events if session else 0

    async def delete(self, session_id: str) -> bool:
        session = self._sessions.get(session_id)
        if session is None:
            return False
        if not all(self._runs[run_id].is_finished for run_id in session.runs):
            raise SessionBusy
        for run_id in tuple(session.runs):
            self._remove(run_id)
        return True

    async def delete_run(self, session_id: str, run_id: str, shown: int) -> bool:
        del session_id, shown
        if (run := self._runs.get(run_id)) is None:
            return False
        if not run.is_finished:
            raise SessionBusy
        self._remove(run_id)
        return True

    def _is_busy(self, session_id: str) -> bool:
        """Whether a run is unfinished; finished ones stay queued until their use is counted."""
        queued = map(self._runs.get, self._queued(session_id))
        return any(run is not None and not run.is_finished for run in queued)

    def _is_newest(self, session_id: str, run_id: str) -> bool:
        session = self._sessions.get(session_id)
        return session is not None and session.runs[-1] == run_id

    def _add_messages(self, run_id: str, messages: Sequence[Message]) -> None:
        if run := self._runs.get(run_id):
            size = sum(len(message.content.encode()) for message in messages)
            run.messages = tuple(messages)
            run.size += size
            self._size += size

    # Push notifications

    async def put_push(self, push: Push, seconds: float | None) -> None:
        self._run(push.run_id).pushes[push.config_id] = push, _due(seconds)

    async def pushes(self, run_id: str) -> Sequence[Push]:
        run = self._runs.get(run_id)
        return [push for _, (push, _) in sorted(run.pushes.items())] if run else ()

    async def delete_push(self, run_id: str, config_id: str) -> None:
        if run := self._runs.get(run_id):
            run.pushes.pop(config_id, None)

    async def take_due_pushes(self, seconds: float) -> Sequence[Push]:
        now, found = time.monotonic(), list[Push]()
        for run in self._runs.values():
            for push, due in tuple(run.pushes.values()):
                if due is not None and due <= now:
                    run.pushes[push.config_id] = push, now + seconds
                    found.append(push)
        return found

    async def advance_push(self, push: Push, seconds: float | None) -> bytes | None:
        run = self._runs.get(push.run_id)
        if run is None or push.config_id not in run.pushes:
            return None
        config = run.pushes[push.config_id][0].config
        run.pushes[push.config_id] = replace(push, config=config), _due(seconds)
        return config

    # Bounds

    def _make_room(self, sessions: int) -> None:
        before = self.dropped
        while self._is_full(sessions):
            oldest = next((r for r, run in self._runs.items() if run.is_finished), None)
            if oldest is None:
                break
            self._remove(oldest)
            self._dropped_ids.append(oldest)
            self.dropped += 1
        if self.dropped > before and (
            not before or before % _LOG_EVERY > self.dropped % _LOG_EVERY
        ):
            _logger.warning("dropped the oldest finished runs to make room: %d", self.dropped)
        if self._is_full(sessions):
            raise Overloaded("this agent has too many unfinished runs; try again later")

    def _is_full(self, sessions: int) -> bool:
        return (
            len(self._sessions) + sessions > self._bounds.sessions
            or self._events > self._bounds.events
            or self._size > self._bounds.size
        )

    def _remove(self, run_id: str) -> None:
        run = self._runs.pop(run_id)
        self._events -= len(run.records)
        self._size -= run.size
        if run.blob is not None:
            self._remove_blob_user(run_id, run.blob)
        session = self._sessions[run.session_id]
        session.runs.remove(run_id)
        session.events -= sum(r.event_type not in NOT_IN_MEMORY_VIEW for r in run.records)
        if not session.runs:
            del self._sessions[run.session_id]

    def _add_blob_user(self, run: _Run, record: Record) -> None:
        key = str(record.content)
        if key in self._blobs:
            run.blob = key
            self._blobs[key][1].add(record.run_id)

    def _remove_blob_user(self, run_id: str, key: str) -> None:
        blob, users = self._blobs[key]
        users.discard(run_id)
        if not users:
            del self._blobs[key]
            self._size -= len(blob)

    def _run(self, run_id: str) -> _Run:
        if run := self._runs.get(run_id):
            return run
        if run_id in self._dropped_ids:
            raise RunLost("the record of this run is gone: the oldest finished runs are dropped")
        if epoch_of(run_id) not in ("", self.epoch):
            raise RunLost(self._lost)
        raise RunNotFound


def _due(seconds: float | None) -> float | None:
    return None if seconds is None else time.monotonic() + seconds


def _size_of(record: Record) -> int:
    """Estimate the size of a record, in bytes."""
    content = record.content
    text = content.encode() if isinstance(content, str) else orjson.dumps(content)
    metadata = len(orjson.dumps(record.metadata)) if record.metadata else 0
    return _RECORD_BYTES + len(text) + metadata
