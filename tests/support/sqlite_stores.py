"""Stores in SQLite for simulations: in virtual time, and without waiting for a disk.

`MirroredStore` takes each step of the shared store in SQLite, too, and compares the outcomes.
"""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from support.shared_store import SharedStore, StoredSession

from diptych.core.codec import Record
from diptych.core.errors import DiptychError
from diptych.core.events import Signal
from diptych.core.messages import Message
from diptych.ports.entries import IdempotencyKey, Lease, Opened, QueueHead, RunEntry
from diptych.stores.sqlite import SqliteStore, event_log, leases


class AtOnce(Executor):
    """Takes each step when it is submitted: a thread would make the order of things random."""

    def submit(self, step: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(step(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - the caller raises it
            future.set_exception(error)
        return future


def simulated_store(path: Path, now: Callable[[], float]) -> SqliteStore:
    store = SqliteStore(path, now, AtOnce())
    store._database.connection.execute("PRAGMA synchronous = OFF")
    return store


class MirroredStore(SharedStore):
    """The shared store of one process at a time, whose leases end when that dies."""

    def __init__(self) -> None:
        super().__init__()
        self._is_within_step = False
        self.folder = TemporaryDirectory()
        self._path = Path(self.folder.name) / "p.sqlite"
        self.mirror = simulated_store(self._path, self.now)
        self.epoch = self.mirror.epoch

    def process_died(self) -> None:
        """Open the file anew, as the next process does."""
        for session in self.sessions.values():
            session.lease_until = 0.0
        self.mirror._database.connection.close()
        self.mirror = simulated_store(self._path, self.now)
        self._mirrored(leases.begin)
        for name, session in self.sessions.items():
            if session.queue:
                assert self._mirrored("queue_head", name).deaths == self._deaths(session)

    def close(self) -> None:
        self.mirror._database.connection.close()
        self.folder.cleanup()

    def _deaths(self, session: StoredSession) -> int:
        return self.runs[session.queue[0]].deaths + self._has_died(session)

    def _extend(self, session: StoredSession, token: str) -> None:
        session.owner, session.lease_until = token, math.inf

    def _mirrored(self, step: Callable[..., Any] | str, *args: Any, **kwargs: Any) -> Any:
        """Take a step, or the one of the store's method of this name."""
        database = self.mirror._database
        if isinstance(step, str):
            step = partial(getattr(SqliteStore, step).__wrapped__, self.mirror)
        return database._transact(lambda: step(database.connection, *args, **kwargs))

    def _both(
        self,
        expected: Callable[[], Any],
        step: Callable[..., Any] | str,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Take a step in both stores. Raises `AssertionError` if its outcomes differ."""
        if self._is_within_step:  # the shared store's steps take others of its own
            return expected()
        outcomes: list[Any] = []
        self._is_within_step = True
        for take in (expected, lambda: self._mirrored(step, *args, **kwargs)):
            try:
                outcomes.append(take())
            except DiptychError as error:
                outcomes.append(error)
            finally:
                self._is_within_step = False
        mine, theirs = outcomes
        if isinstance(mine, DiptychError):
            assert type(mine) is type(theirs), (step, mine, theirs)
            raise mine
        assert mine == theirs, (step, mine, theirs)
        return mine

    def open(
        self,
        actor: str,
        first: Record,
        token: str,
        idempotency_key: IdempotencyKey | None,
        **conditions: Any,
    ) -> Opened:
        expected = super().open
        return self._both(
            lambda: expected(actor, first, token, idempotency_key, **conditions),
            self.mirror._open,
            first,
            token,
            idempotency_key,
            **{"if_idle": False, "if_newest": None, **conditions},
        )

    def append(
        self, actor: str, records: Sequence[Record], lease: Lease, awaits_input: bool
    ) -> None:
        expected = super().append
        self._both(
            lambda: expected(actor, records, lease, awaits_input),
            self.mirror._append,
            records,
            lease,
            awaits_input=awaits_input,
        )

    def read(self, run_id: str, after: int, limit: int | None = None) -> Sequence[Record]:
        expected = super().read
        return self._both(lambda: expected(run_id, after, limit), "read", run_id, after, limit)

    def entry(self, run_id: str) -> RunEntry:
        expected = super().entry
        return self._both(lambda: expected(run_id), "entry", run_id)

    def conversation(self, session_id: str) -> tuple[Message, ...]:
        said = super().conversation(session_id)  # in the order in which runs ended
        theirs = self._mirrored("conversation", session_id)
        assert sorted(map(repr, said)) == sorted(map(repr, theirs))
        return said

    def claim(self, actor: str, session_id: str, token: str) -> Lease | None:
        lease = super().claim(actor, session_id, token)
        assert self._mirrored("claim", session_id, token) == lease
        return lease

    def queue_head(self, session_id: str) -> QueueHead | None:
        head = super().queue_head(session_id)
        theirs = self._mirrored("queue_head", session_id)
        assert (head and (head.run_id, head.deaths)) == (theirs and (theirs.run_id, theirs.deaths))
        return head

    def next_run(self, lease: Lease) -> str | None:
        expected = super().next_run
        return self._both(lambda: expected(lease), "next_run", lease)

    def finish_run(self, run_id: str, said: Sequence[Message], lease: Lease) -> str | None:
        expected = super().finish_run
        return self._both(lambda: expected(run_id, said, lease), "finish_run", run_id, said, lease)

    def renew(self, leases_: Sequence[Lease]) -> list[Lease]:
        expected = super().renew
        return self._both(lambda: expected(leases_), "renew", leases_)

    def release(self, lease: Lease, *, hand_over: bool = False) -> None:
        super().release(lease, hand_over=hand_over)
        self._mirrored(event_log.release, lease)

    def unowned_sessions(self) -> list[str]:
        sessions = super().unowned_sessions()
        assert sorted(self._mirrored(leases._unowned_sessions, ())) == sorted(sessions)
        return sessions

    def send_signal(self, run_id: str, demand: Signal) -> None:
        expected = super().send_signal
        self._both(
            lambda: expected(run_id, demand),
            lambda *args: self.mirror._send_signal(*args) and None,
            run_id,
            demand,
        )

    def drop_signal(self, run_id: str, demand: Signal) -> None:
        super().drop_signal(run_id, demand)
        self._mirrored(leases._drop_signal, run_id, demand)

    def pending_signals(self, run_id: str) -> Sequence[Signal]:
        run = self.runs.get(run_id)
        is_queued = run is not None and run_id in self.sessions[run.session_id].queue
        expected = super().pending_signals(run_id)
        if is_queued:  # those of a finished run nobody asks for
            assert list(expected) == list(self._mirrored("pending_signals", run_id))
        return expected
