"""A run that is queued or running here: the sink of its runner, the source of its readers.

Not here: which run goes when (`runs`), what happens in one (`runner`).
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from diptych.events import Aborted, Asked, Event, Failed
from diptych.loop import Phase, Run, ending
from diptych.ports import Clock, EventLog, Notice, RunEntry, Sessions
from diptych.record import TERMINAL, Record, to_row
from diptych.runner import OUT_OF_TIME, Runner

MAX_WAITING = 1_000  # items that a slow reader has not read, after which it is told no notices

Item = Record | Notice
Observer = Callable[[Item], None]
"""Hears every record and notice of every run, as it happens. Must not block."""


@dataclass(frozen=True, slots=True)
class Stores:
    """Where runs are kept, and what names and dates them."""

    log: EventLog
    sessions: Sessions
    clock: Clock


class Reader:
    """What one follower of a run has not read yet."""

    def __init__(self) -> None:
        self.is_ended = False
        self._items: list[Item] = []
        self._arrived = asyncio.Event()

    def put(self, item: Item) -> None:
        if isinstance(item, Notice) and len(self._items) >= MAX_WAITING:
            return  # a reader this slow misses notices; records it never misses
        self._items.append(item)
        self._arrived.set()

    def end(self) -> None:
        """Nothing comes any more."""
        self.is_ended = True
        self._arrived.set()

    async def next(self) -> Sequence[Item]:
        """Wait for something, and give all that there is; nothing once the run has ended."""
        await self._arrived.wait()
        if not self.is_ended:
            self._arrived.clear()
        items, self._items = self._items, []
        return items


class LiveRun:
    """A run that is queued or running here: the sink of its runner, the source of its readers."""

    def __init__(
        self, run_id: str, session_id: str, stores: Stores, observers: tuple[Observer, ...]
    ) -> None:
        self.run_id = run_id
        self.session_id = session_id
        self.task: asyncio.Task[None] | None = None
        self.runner: Runner | None = None
        self.abort_asked: Aborted | None = None
        self.late_at: float | None = None  # the deadline, by the event loop's clock
        self.is_waiting = False  # for its session's turn: the only time when `task` is cancelled
        self._stores = stores
        self._observers = observers
        self._readers: set[Reader] = set()
        self._is_over = False
        self._seq = 0

    @property
    def run(self) -> Run | None:
        return self.runner.run if self.runner else None

    async def open(self, asked: Asked) -> RunEntry:
        """Put the run on record, with its first event. Raises `Overloaded` or `StoreError`."""
        first = self._next_record(asked)
        entry = await self._stores.log.open(first)
        self._told(first)
        return entry

    async def record(self, event: Event) -> None:
        """Put an event on record, then tell it; fulfils `runner.Sink`."""
        record = self._next_record(event)
        await self._stores.log.append([record])
        self._told(record)

    def notice(self, notice: Notice) -> None:
        self._tell(notice)

    async def await_turn(self, turn: asyncio.Lock) -> Aborted | Failed | None:
        """Wait for the session's turn, and hold it; or say why the run ends before that."""
        if self.abort_asked:
            return self.abort_asked
        self.is_waiting = True
        try:
            async with asyncio.timeout_at(self.late_at):
                await turn.acquire()
        except TimeoutError:
            return OUT_OF_TIME
        except asyncio.CancelledError:
            if self.abort_asked is None:
                raise
            return self.abort_asked
        finally:
            self.is_waiting = False
        return None

    def abort(self, reason: str) -> None:
        """End the run, wherever it is; the first reason counts."""
        if self.abort_asked is not None:
            return
        self.abort_asked = Aborted(reason)
        if self.runner:
            self.runner.abort(reason)
        elif self.task and self.is_waiting:
            self.task.cancel()

    def drive_by(self, runner: Runner) -> None:
        """Have a runner from here on, which hears of an abort that came before it."""
        self.runner = runner
        if self.abort_asked:
            runner.abort(self.abort_asked.reason)

    async def finish(self, run: Run, end: Aborted | Failed) -> None:
        """Put an end on record that no runner can."""
        if run.phase is not Phase.DONE:
            for event in ending(run, end):
                await self.record(event)

    def new_context_id(self) -> str:
        return f"context-{self._stores.clock.token()}"

    def join(self) -> Reader:
        reader = Reader()
        if self._is_over:
            reader.end()
        self._readers.add(reader)
        return reader

    def release(self) -> None:
        """Let go of the readers: the run is over, even if nothing could be put on record."""
        self._is_over = True
        for reader in self._readers:
            reader.end()

    def leave(self, reader: Reader) -> None:
        self._readers.discard(reader)

    def _next_record(self, event: Event) -> Record:
        now = self._stores.clock.now()
        event_type, content, metadata = to_row(event)
        seq = self._seq + 1
        return Record(self.run_id, self.session_id, seq, event_type, now, content, metadata)

    def _told(self, record: Record) -> None:
        self._seq = record.seq
        self._is_over = record.event_type in TERMINAL
        self._tell(record)

    def _tell(self, item: Item) -> None:
        for observe in self._observers:
            observe(item)
        for reader in self._readers:
            reader.put(item)
