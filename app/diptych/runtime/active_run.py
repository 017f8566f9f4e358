"""A run that is queued or running here: the sink of its runner, the source of its readers.

Not here: which run goes when (`turns`), what happens in one (`runner`), following a run that
another process owns (`following`).
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from diptych.errors import LeaseLost, LogTruncated, RunLost, RunNotFound, StoreError
from diptych.loop.codec import TERMINAL, Record, encode
from diptych.loop.events import Asked, Event, Failed, Signal, Steered, Stop
from diptych.loop.reducer import apply_all, closing_events
from diptych.loop.state import MAX_MESSAGES_PER_RUN, Phase, Run
from diptych.ports import Clock, EventLog, Feed, FeedItem, Item, Notice, SessionLeases, Sessions
from diptych.ports.entries import IdempotencyKey, Lease, Opened
from diptych.runtime.runner import Runner

MAX_BUFFERED_ITEMS = 1_000  # items that are kept for a slow reader
MAX_BUFFERED_CHARS = 2**18  # characters of records that are kept for one, or given to it at once

Observer = Callable[[Item], None]
"""Hears every record and notice of every run that is taken to its end here. Must not block."""


@dataclass(frozen=True, slots=True)
class Stores:
    """Where runs are kept and who owns them, and what names and dates them."""

    log: EventLog
    sessions: Sessions
    leases: SessionLeases
    feed: Feed
    clock: Clock

    async def has_lost(self, run_id: str) -> bool:
        """Say whether the store has lost a run; one that cannot say so now has not."""
        try:
            await self.log.entry(run_id)
        except (RunLost, RunNotFound):
            return True
        except StoreError:
            return False
        return False


class SubscriberBuffer:
    """What one follower of a run has not read yet, as far as that is kept for it.

    Of one that has fallen behind the rest is forgotten, with a `None` in its place: the records
    are to be read again from where they are. So it misses notices, and never a record.
    """

    def __init__(self) -> None:
        self._items: list[FeedItem] = []
        self._size = 0
        self._arrived = asyncio.Event()
        self._is_ended = False

    def put(self, item: FeedItem) -> None:
        if len(self._items) >= MAX_BUFFERED_ITEMS or self._size > MAX_BUFFERED_CHARS:
            if isinstance(item, Notice):
                return
            self._items, self._size = [None], 0
        if isinstance(item, Record):
            self._size += size_of(item)
        self._items.append(item)
        self._arrived.set()

    def end(self) -> None:
        """Nothing comes any more from where this reader listens."""
        self._is_ended = True
        self._arrived.set()

    async def next(self) -> Sequence[FeedItem]:
        """Wait for something, and give all that there is; nothing once it has ended."""
        await self._arrived.wait()
        if not self._is_ended:
            self._arrived.clear()
        items, self._items, self._size = self._items, [], 0
        return items


class ActiveRun:
    """A run in the queue of a session that this process owns.

    `lease` is that of its session. `stopped` is how it was asked to end, if it was; `has_begun` is
    set once its turn has come, or it is being ended before.
    """

    def __init__(
        self, run_id: str, session_id: str, stores: Stores, observers: tuple[Observer, ...]
    ) -> None:
        self.run_id = run_id
        self.session_id = session_id
        self.lease: Lease | None = None
        self.runner: Runner | None = None
        self.stopped: Stop | None = None
        self._spoken: dict[str, Steered] = {}  # what no runner has heard yet
        self.has_begun = False
        self.was_resumed = False  # its record was read from the store
        self.is_first = False  # of a session that nobody else can know yet
        self.ended = asyncio.Event()
        self.late: asyncio.TimerHandle | None = None  # ends it before its turn
        self.records: list[Record] = []
        self._is_left = False
        self._stores = stores
        self._observers = observers
        self._readers: set[SubscriberBuffer] = set()
        self._asked_at = asyncio.get_running_loop().time()

    @property
    def run(self) -> Run | None:
        return self.runner.run if self.runner else None

    @property
    def age(self) -> float:
        """For how many seconds the run has been there."""
        return asyncio.get_running_loop().time() - self._asked_at

    async def open(self, asked: Asked, idempotency_key: IdempotencyKey | None) -> Opened:
        """Put the run on record, with its first event. Raises as `EventLog.open` does."""
        (first,) = self._next_records([asked])
        opened = await self._stores.log.open(first, self._stores.clock.token(), idempotency_key)
        if opened.is_new and not self.records:  # its turn may have come before this reply
            self._told(first)
        return opened

    def resume(self, records: Sequence[Record]) -> None:
        """Go on from what is on record."""
        self.records = list(records)
        self.was_resumed = True
        self._asked_at -= max(0.0, self._stores.clock.now() - records[0].timestamp)

    async def record(self, items: Sequence[Event | Notice]) -> None:
        """Put events on record, then tell them and the notices between; fulfils `runner.Sink`."""
        records = self._next_records([item for item in items if not isinstance(item, Notice)])
        if records:
            await self._append(records)
        new = iter(records)
        for item in items:
            if isinstance(item, Notice):
                self.notice(item)
            else:
                self._told(next(new))

    async def _append(self, records: Sequence[Record]) -> None:
        if self.lease is None:
            raise LeaseLost("this run has no owner here")
        try:
            await self._stores.log.append(records, self.lease)
        except LogTruncated as lost:
            await self.restore(lost)
            await self._stores.log.append(records, self.lease)

    async def restore(self, lost: LogTruncated) -> None:
        """Put back what the store has lost: whoever has read it must find it again."""
        if self.lease and (missing := self.records[lost.seq :]):
            await self._stores.log.append(missing, self.lease)

    def notice(self, notice: Notice) -> None:
        self._tell(notice)
        self._stores.feed.publish(self.run_id, notice)

    def stop(self, stop: Stop) -> bool:
        """End the run; the first reason counts. Says whether it is to be ended before its turn."""
        if self.stopped is not None:
            return False
        self.stopped = stop
        if self.runner:
            self.runner.end(stop)
        return not self.has_begun

    def send_signal(self, demand: Signal) -> None:
        """Do to the run what was asked of it elsewhere."""
        if isinstance(demand, Steered):
            self.steer(demand)
        else:
            self.stop(demand)

    def steer(self, message: Steered) -> bool:
        """Have a message join the run's conversation, once; False if there are too many."""
        if self.runner:
            self.runner.steer(message)
        elif message.message_id in self._spoken or len(self._spoken) < MAX_MESSAGES_PER_RUN:
            self._spoken[message.message_id] = message
        else:
            return False
        return True

    def spoken(self) -> Sequence[Steered]:
        """Take the messages that came before the run had a runner."""
        spoken, self._spoken = self._spoken, {}
        return tuple(spoken.values())

    def hand_over(self) -> None:
        """Leave the run as it is, for another process to take up."""
        self._is_left = True
        if self.runner:
            self.runner.leave()

    def drive_by(self, runner: Runner) -> None:
        """Have a runner from here on, which hears of what was asked before."""
        self.runner = runner
        for message in self.spoken():
            runner.steer(message)
        if self.stopped:
            runner.end(self.stopped)
        if self._is_left:
            runner.leave()

    async def finish(self, run: Run, stop: Stop) -> Run:
        """Put an end on record that no runner can."""
        if run.phase is Phase.DONE:
            return run
        events: list[Event] = [m for m in self.spoken() if m.message_id not in run.message_ids]
        events += closing_events(apply_all(run, events), stop)
        await self.record(events)
        return apply_all(run, events)

    def new_context_id(self) -> str:
        return f"context-{self._stores.clock.token()}"

    def join(self, after: int) -> SubscriberBuffer:
        """Give a reader that has all records after `after` waiting, and hears what comes."""
        reader = SubscriberBuffer()
        for record in self.records[after:]:
            reader.put(record)
        if self.ended.is_set():
            reader.end()
        self._readers.add(reader)
        return reader

    def leave(self, reader: SubscriberBuffer) -> None:
        self._readers.discard(reader)

    def release(self) -> None:
        """Let go of the readers: what still happens to the run does not happen here."""
        self.ended.set()
        if self.late:
            self.late.cancel()
        for reader in self._readers:
            reader.end()

    def tell_lost(self) -> None:
        """Tell those who follow that the record is gone. It cannot be put on record."""
        failed = Failed("store_lost", "the store has lost the record of this run")
        for record in self._next_records([failed]):
            self._tell(record)

    def _next_records(self, events: Sequence[Event]) -> list[Record]:
        now = self._stores.clock.now()
        seqs = range(len(self.records) + 1, len(self.records) + 1 + len(events))
        return [self._record(seq, event, now) for seq, event in zip(seqs, events, strict=True)]

    def _record(self, seq: int, event: Event, now: float) -> Record:
        event_type, content, metadata = encode(event)
        return Record(self.run_id, self.session_id, seq, event_type, now, content, metadata)

    def _told(self, record: Record) -> None:
        self.records.append(record)
        self._tell(record)

    def _tell(self, item: Item) -> None:
        for observe in self._observers:
            observe(item)
        for reader in self._readers:
            reader.put(item)


def is_last(item: FeedItem) -> bool:
    """Say whether nothing of a run comes after this."""
    return isinstance(item, Record) and item.event_type in TERMINAL


def size_of(record: Record) -> int:
    """Say roughly how much a record holds, in characters: what is large in one is its text."""
    return len(record.content) if isinstance(record.content, str) else 0
