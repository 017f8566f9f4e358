"""A store that several processes share, in one event loop and in virtual time.

Each method does in one step what a script of the Redis adapter does in one step. Each way in which
the store can fail is a method or a field. `replicas.Replica` is how one process uses it.

What the guarantees are checked against is written to `history` (see `support.history`).
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from diptych.core.codec import NOT_IN_MEMORY_VIEW, TERMINAL, Record
from diptych.core.errors import (
    BlobMissing,
    IdempotencyMismatch,
    LeaseLost,
    LogTruncated,
    NotResumable,
    Overloaded,
    RunLost,
    RunNotFound,
    SessionBusy,
    StoreFull,
    TooManyMessages,
)
from diptych.core.events import MessageQueued, Signal
from diptych.core.messages import Message
from diptych.core.state import MAX_MESSAGES_PER_RUN
from diptych.ports.entries import IdempotencyKey, Lease, Opened, QueueHead, RunEntry, SessionEntry

LEASE_SECONDS = 10.0
MAX_QUEUED_RUNS = 1_000


@dataclass(slots=True)
class StoredRun:
    session_id: str
    created: float
    server: int
    records: list[Record] = field(default_factory=list)
    status: str = "queued"
    signals: list[Signal] = field(default_factory=list)
    dropped: list[tuple[int, Signal]] = field(default_factory=list)  # after so many records
    lost_at: int | None = None  # how many records were left when the server changed
    deaths: int = 0  # of its owners
    size: int = 0  # that it says it has, in bytes


@dataclass(slots=True)
class StoredSession:
    created: float
    runs: list[str] = field(default_factory=list)
    queue: list[str] = field(default_factory=list)
    messages: list[tuple[Message, ...]] = field(default_factory=list)
    owner: str | None = None
    lease_until: float = 0.0
    fence: str | None = None


class SharedStore:
    """The store itself. `on_publish`, `on_signal` and `on_gap` hold what its feed calls."""

    def __init__(self, lease_seconds: float = LEASE_SECONDS) -> None:
        self.lease_seconds = lease_seconds
        self.epoch = "0000000a"
        self.server = 1  # changes with each restart
        self.is_away = False
        self.is_full = False
        self.runs: OrderedDict[str, StoredRun] = OrderedDict()
        self.sessions: dict[str, StoredSession] = {}
        self.blobs: dict[str, bytes] = {}
        self.idempotency_keys: dict[str, tuple[str, str]] = {}
        self.on_publish: list[Callable[[str, str | None, Sequence[Any]], None]] = []
        self.on_signal: list[Callable[[str, str, Signal], None]] = []
        self.on_released: list[Callable[[str], None]] = []
        self.on_gap: list[Callable[[], None]] = []
        self.history: list[dict[str, Any]] = []
        self._tokens = 0

    # The clock of all who use the store

    def now(self) -> float:
        return 1_000_000.0 + asyncio.get_running_loop().time()

    def token(self) -> str:
        self._tokens += 1
        return f"{self._tokens:032x}"

    def note(self, actor: str, kind: str, **fields: Any) -> None:
        t = asyncio.get_running_loop().time()
        self.history.append({"t": t, "actor": actor, "kind": kind, **fields})

    # Faults

    def go_away(self, seconds: float) -> None:
        """Be unreachable for some seconds."""
        loop = asyncio.get_running_loop()
        self.is_away = True
        loop.call_later(seconds, self._return)
        self.note("store", "trouble", what="away", until=loop.time() + seconds)

    def _return(self) -> None:
        self.is_away = False
        self._report_gap()

    def lose_tail(self, run_id: str, count: int) -> None:
        """Restart without the newest records of an unfinished run."""
        self.server += 1
        run = self.runs[run_id]
        assert run_id in self.sessions[run.session_id].queue
        del run.records[len(run.records) - count :]
        left = len(run.records)  # what came after the record of a signal is lost with that
        run.signals = [signal for at, signal in run.dropped if at > left] + run.signals
        run.dropped = [each for each in run.dropped if each[0] <= left]
        run.status = "running" if len(run.records) > 1 else "queued"
        self._report_gap()

    def flush(self) -> None:
        """Lose everything."""
        self.epoch = f"{int(self.epoch, 16) + 1:08x}"
        for stored in (self.runs, self.sessions, self.blobs, self.idempotency_keys):
            stored.clear()
        self._report_gap()

    def _report_gap(self) -> None:
        for report in self.on_gap:
            report()

    # The event log

    def open(
        self,
        actor: str,
        first: Record,
        token: str,
        idempotency_key: IdempotencyKey | None,
        **conditions: Any,
    ) -> Opened:
        run_id, session_id = first.run_id, first.session_id
        if (
            run_id not in self.runs
            and idempotency_key
            and idempotency_key.key in self.idempotency_keys
        ):
            digest, earlier = self.idempotency_keys[idempotency_key.key]
            if digest != idempotency_key.digest:
                raise IdempotencyMismatch
            return Opened(self.entry(earlier), None, is_new=False)
        if run_id in self.runs:  # sent again: its reply was lost
            is_owner = self.sessions[session_id].owner == token
        else:
            self._check(session_id, **conditions)
            self._create(first)
            if idempotency_key:
                self.idempotency_keys[idempotency_key.key] = (idempotency_key.digest, run_id)
            is_owner = self._claim(actor, session_id, token)
        return Opened(self.entry(run_id), Lease(session_id, token) if is_owner else None)

    def _check(
        self, session_id: str, *, if_idle: bool = False, if_newest: str | None = None
    ) -> None:
        session = self.sessions.get(session_id)
        queue = session.queue if session else ()
        if if_newest and (session is None or session.runs[-1] != if_newest):
            raise NotResumable
        if if_idle and any(self.runs[run_id].status not in TERMINAL for run_id in queue):
            raise SessionBusy

    def _create(self, first: Record) -> None:
        if self.is_full:
            raise StoreFull("the store is full; try again later")
        session = self.sessions.setdefault(first.session_id, StoredSession(first.timestamp))
        self._note_death(session)
        if len(session.queue) >= MAX_QUEUED_RUNS:
            raise Overloaded("too many runs of this session are waiting; try again later")
        run = StoredRun(first.session_id, first.timestamp, self.server, [as_stored(first)])
        self.runs[first.run_id] = run
        session.runs.append(first.run_id)
        session.queue.append(first.run_id)

    def append(
        self, actor: str, records: Sequence[Record], lease: Lease, awaits_input: bool
    ) -> None:
        self.check(lease)
        records = [as_stored(record) for record in records]
        run, last = self._run(records[0].run_id), records[-1]
        if self.is_full and last.event_type not in TERMINAL:
            raise StoreFull("the store is full; try again later")
        added = self._missing(run, records)
        if not added:
            return
        run.records += added
        status = "input-required" if awaits_input else "running"
        run.status = last.event_type if last.event_type in TERMINAL else status
        written = {"run": last.run_id, "session": run.session_id, "token": lease.token}
        self.note(actor, "write_accepted", **written, seqs=[r.seq for r in added])
        self.publish_notice(last.run_id, lease.token, added)

    def _missing(self, run: StoredRun, records: Sequence[Record]) -> Sequence[Record]:
        """Give the records that are not stored yet."""
        seq = len(run.records)
        if records[0].seq > seq + 1:
            raise LogTruncated(seq)
        for record in records:
            if record.seq <= seq and run.records[record.seq - 1] != record:
                raise LogTruncated(seq)
        return [record for record in records if record.seq > seq]

    def read(self, run_id: str, after: int, limit: int | None = None) -> Sequence[Record]:
        return self._run(run_id).records[after:][:limit]

    def entry(self, run_id: str) -> RunEntry:
        run = self._run(run_id)
        return RunEntry(
            run_id,
            run.session_id,
            run.created,
            run.status,
            len(run.records),
            run.records[-1].timestamp,
            run.server != self.server or run.lost_at is not None,
        )

    def get_blob(self, key: str) -> bytes:
        if key not in self.blobs:
            raise BlobMissing(f"there is no blob {key}")
        return self.blobs[key]

    def put_blob(self, key: str, blob: bytes) -> None:
        if self.is_full and key not in self.blobs:
            raise StoreFull("the store is full; try again later")
        self.blobs[key] = blob

    # The sessions

    def conversation(self, session_id: str) -> tuple[Message, ...]:
        session = self.sessions.get(session_id)
        return tuple(m for each in session.messages for m in each) if session else ()

    def listed(self) -> list[SessionEntry]:
        return [
            SessionEntry(
                name,
                len(session.runs),
                sum(r.event_type not in NOT_IN_MEMORY_VIEW for r in self._records(session)),
                session.created,
                max(record.timestamp for record in self._records(session)),
            )
            for name, session in self.sessions.items()
        ]

    def delete(self, session_id: str) -> bool:
        session = self.sessions.get(session_id)
        if session and session.queue:
            raise SessionBusy
        for run_id in session.runs if session else ():
            del self.runs[run_id]
        return self.sessions.pop(session_id, None) is not None

    def _records(self, session: StoredSession) -> list[Record]:
        return [record for run_id in session.runs for record in self.runs[run_id].records]

    # Leases

    def claim(self, actor: str, session_id: str, token: str) -> Lease | None:
        session = self.sessions.get(session_id)
        if session is None or not session.queue:
            return None
        self._note_death(session)
        if not self._claim(actor, session_id, token):
            return None
        return Lease(session_id, token)

    def queue_head(self, session_id: str) -> QueueHead | None:
        session = self.sessions.get(session_id)
        if session is None or not session.queue:
            return None
        run = self.runs[session.queue[0]]
        return QueueHead(session.queue[0], run.size, run.deaths + self._has_died(session))

    def next_run(self, lease: Lease) -> str | None:
        self.check(lease)
        session = self.sessions[lease.session_id]
        if not session.queue:
            self._release(session, lease.token)
            return None
        self._drive(session)
        self._extend(session, lease.token)
        return session.queue[0]

    def finish_run(self, run_id: str, said: Sequence[Message], lease: Lease) -> str | None:
        self.check(lease)
        session = self.sessions[lease.session_id]
        if run_id in session.queue:
            run = self.runs[run_id]
            if run.status not in TERMINAL:
                raise LogTruncated(len(run.records))
            session.queue.remove(run_id)
            session.messages.append(tuple(said))
        return self.next_run(lease)

    def renew(self, leases: Sequence[Lease]) -> list[Lease]:
        lost = []
        for lease in leases:
            session = self.sessions.get(lease.session_id)
            if session is None or session.fence != lease.token:
                lost.append(lease)
            elif session.queue:
                self._extend(session, lease.token)
        return lost

    def release(self, lease: Lease, *, hand_over: bool = False) -> None:
        session = self.sessions.get(lease.session_id)
        if session and session.fence == lease.token:
            self._release(session, lease.token)
            session.fence = f"-{lease.token}"
            if hand_over:
                for released in self.on_released:
                    released(lease.session_id)

    def unowned_sessions(self) -> list[str]:
        return [n for n, s in self.sessions.items() if s.queue and self._is_free(s)]

    def overdue_runs(self) -> list[str]:
        found = []
        for run_id, run in self.runs.items():
            seconds = run.records[0].metadata.get("seconds")
            is_over = seconds is not None and self.now() >= run.created + seconds
            if is_over and run.status == "queued":
                found.append(run_id)
        return found

    def send_signal(self, run_id: str, demand: Signal) -> None:
        run = self._run(run_id)
        if run.status not in TERMINAL:
            if demand not in run.signals:
                if isinstance(demand, MessageQueued) and len(run.signals) >= MAX_MESSAGES_PER_RUN:
                    raise TooManyMessages
                run.signals.append(demand)
            for receive in self.on_signal:
                receive(run.session_id, run_id, demand)

    def drop_signal(self, run_id: str, demand: Signal) -> None:
        if (run := self.runs.get(run_id)) and demand in run.signals:
            run.signals.remove(demand)
            run.dropped.append((len(run.records), demand))

    def pending_signals(self, run_id: str) -> Sequence[Signal]:
        return self._run(run_id).signals

    def may_be_truncated(self, run_id: str) -> bool:
        run = self._run(run_id)
        return run.server != self.server or run.lost_at == len(run.records)

    def check(self, lease: Lease) -> None:
        session = self.sessions.get(lease.session_id)
        if session is None:
            raise RunLost("the store has lost this run; start it again")
        if session.fence != lease.token:
            raise LeaseLost("another process has taken this session over")

    def _claim(self, actor: str, session_id: str, token: str) -> bool:
        session = self.sessions[session_id]
        if self._is_free(session):
            session.fence = token
            self._extend(session, token)
            self._drive(session)
            self.note(actor, "claimed", session=session_id, token=token, head=session.queue[0])
        return session.owner == token

    def _has_died(self, session: StoredSession) -> bool:
        """Whether the last owner has gone without releasing the session."""
        return bool(session.fence) and session.fence[0] != "-" and self._is_free(session)

    def _note_death(self, session: StoredSession) -> None:
        if session.queue and self._has_died(session):
            self.runs[session.queue[0]].deaths += 1

    def _drive(self, session: StoredSession) -> None:
        run = self.runs[session.queue[0]]
        if run.server != self.server:
            run.server, run.lost_at = self.server, len(run.records)

    def _extend(self, session: StoredSession, token: str) -> None:
        until = asyncio.get_running_loop().time() + self.lease_seconds
        session.owner, session.lease_until = token, until

    def _release(self, session: StoredSession, token: str) -> None:
        if session.owner == token:
            session.owner = None

    def _is_free(self, session: StoredSession) -> bool:
        loop = asyncio.get_running_loop()
        return session.owner is None or session.lease_until <= loop.time()

    def publish_notice(self, run_id: str, token: str | None, items: Sequence[Any]) -> None:
        for receive in self.on_publish:
            receive(run_id, token, items)

    def _run(self, run_id: str) -> StoredRun:
        if run := self.runs.get(run_id):
            return run
        if run_id.startswith("run-") and run_id.split("-")[1] != self.epoch:
            raise RunLost("the store of this run was emptied; start it again")
        raise RunNotFound


def as_stored(record: Record) -> Record:
    """Give a record as it comes back from a store: through JSON."""
    content, metadata = orjson.loads(orjson.dumps([record.content, dict(record.metadata)]))
    return replace(record, content=content, metadata=metadata)
