"""The log of one run at its owner: store writes, the event writer, and local subscribers."""

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from diptych.core.codec import Record, decode, encode, is_terminal, record_chars
from diptych.core.errors import LeaseLost, LogTruncated, LoopError, OutOfMemory
from diptych.core.events import Event, Failed, RunRequested
from diptych.core.messages import Message
from diptych.core.reducer import apply_all, replay
from diptych.core.state import Run
from diptych.core.waits import note_waits, open_waits
from diptych.net.memory_budget import RUN_SIZE, MemoryBudget, Share, record_size
from diptych.ports import FeedItem, Gap, Item, Notice
from diptych.ports.entries import IdempotencyKey, Lease, Opened
from diptych.ports.stores import Stores
from diptych.runs.inbox import Inbox, TaskCrashed

PROGRESS = "progress"
"""Type of the notice that precedes a call (loop.md §5)."""
MAX_BUFFERED_ITEMS = 1_000
MAX_BUFFERED_CHARS = 2**18  # of records, in one buffer and in one batch
DEFERRED_SECONDS = 0.1  # to defer a write that can merge with the next
FIRST_DEFERRED_SECONDS = 0.025  # for a run's first write; until then it appears queued
_LOOK_SECONDS = 0.1

Observer = Callable[[Item], None]
"""Called with every record and notice of runs executed here; must not block."""


class UnreadableRecord(Exception):
    """A newer version wrote the run's log, and this version cannot read it."""


async def rebuild(
    records: Sequence[Record], stores: Stores, history: tuple[Message, ...] | None = None
) -> Run:
    """Rebuild a run from its log (loop.md §9).

    `history` is the session's conversation before it; if None, it is read. Raises
    `UnreadableRecord`, and `StoreError` such as `BlobMissing`.
    """
    if history is None:
        history = await stores.sessions.conversation(records[0].session_id)
    keys = [str(r.content) for r in records if r.event_type == "offered"]
    blobs = {key: await stores.log.get_blob(key) for key in keys}
    try:
        rows = ((r.event_type, r.content, r.metadata) for r in records)
        events = [decode(*row, blobs.__getitem__) for row in rows]
        return replay(events, history)
    except (LoopError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise UnreadableRecord(
            f"this version cannot read its log; a newer version wrote it ({error})"
        ) from error


@dataclass(slots=True)
class OwnedSession:
    """A session leased by this process, and the task that executes its runs.

    After `owned_until` (event loop time), another process may own the session.
    """

    lease: Lease
    task: asyncio.Task[None]
    owned_until: float

    @property
    def is_surely_owned(self) -> bool:
        """Whether the lease is certainly valid; after a freeze, it may have expired unnoticed."""
        return asyncio.get_running_loop().time() < self.owned_until


class SubscriberBuffer:
    """Items on their way to one subscriber.

    On overflow, a `Gap` replaces the content: the subscriber must read the log. So a slow
    subscriber may miss notices, but never a record.
    """

    def __init__(self) -> None:
        self._items: list[FeedItem] = []
        self._chars = 0
        self._changed = asyncio.Event()
        self._is_closed = False

    def put(self, item: FeedItem) -> None:
        if len(self._items) >= MAX_BUFFERED_ITEMS or self._chars > MAX_BUFFERED_CHARS:
            if isinstance(item, Notice):
                return
            self._items, self._chars = [Gap()], 0
        if isinstance(item, Record):
            self._chars += record_chars(item)
        self._items.append(item)
        self._changed.set()

    def close(self) -> None:
        """Signal the end of the items."""
        self._is_closed = True
        self._changed.set()

    async def take(self) -> Sequence[FeedItem]:
        """Wait for items and return all; empty once the buffer is closed and drained."""
        await self._changed.wait()
        if not self._is_closed:
            self._changed.clear()
        items, self._items, self._chars = self._items, [], 0
        return items


class RunLog:
    """Appends a run's events to the store, then notifies local subscribers and observers.

    Other processes get records from the store, and notices through the feed. `records` are the
    logged ones known here. Progress notices are kept with their positions, so that late subscribers
    see the calls. `share` is the run's reserved memory, until `close`.
    """

    def __init__(
        self,
        run_id: str,
        session_id: str,
        stores: Stores,
        observers: tuple[Observer, ...] = (),
        share: Share | None = None,
    ) -> None:
        self.share = share or MemoryBudget().share()
        self.run_id = run_id
        self.session_id = session_id
        self.records: list[Record] = []
        self.lease: Lease | None = None
        self._session: OwnedSession | None = None
        self.was_loaded = False  # from the store; may be another process's work
        self.is_lost = False  # nobody can continue the run
        self._stores = stores
        self._observers = observers
        self._buffers: dict[SubscriberBuffer, None] = {}  # one per local `Subscription`
        self._waiting: set[str] = set()  # call ids
        self._progress: list[tuple[int, Notice]] = []  # with the seq of the record before each
        self._is_closed = False

    async def open(
        self,
        asked: RunRequested,
        key: IdempotencyKey | None,
        *,
        if_idle: bool = False,
        if_newest: str | None = None,
    ) -> Opened:
        """Log the run's first event, if there is memory for the run.

        An unowned session is claimed in the same step (`Opened.lease`). A resuming run must follow
        the resumed one in its session. Raises as `EventLog.open`.
        """
        (first,) = self._next_records([asked])
        self.share.admit(RUN_SIZE + record_size(first))
        token = self._stores.clock.token()
        opened = await self._stores.log.open(
            first, token, key, if_idle=if_idle, if_newest=if_newest or asked.resumes
        )
        if opened.is_new and not self.records:  # it may have begun before this reply arrived
            self._add(first, is_counted=True)
        return opened

    def load(self, records: Sequence[Record]) -> None:
        """Continue from the store's records."""
        self.records = list(records)
        self._waiting = {wait.call_id for wait in open_waits(self.records)}
        self.was_loaded = True
        self.share.grow(RUN_SIZE)  # the records were counted before they were read

    async def append(self, items: Sequence[Event | Notice]) -> None:
        """Log events, then send them to subscribers with the notices in between.

        Raises `OutOfMemory` if the run exceeds the available memory; a terminal event is always
        logged.
        """
        records = self._next_records([item for item in items if not isinstance(item, Notice)])
        if records:
            if self.share.is_beyond and not is_terminal(records[-1]):
                raise OutOfMemory("this run exceeds its agent's memory")
            await self._append_to_store(records)
        recorded = iter(records)
        for item in items:
            if isinstance(item, Notice):
                self.notify(item)
            else:
                self._add(next(recorded))

    async def restore(self, truncated: LogTruncated) -> None:
        """Write records again that the store lost: subscribers have seen them."""
        if self.lease and (missing := self.after(truncated.seq)):
            is_asking = bool(self._waiting)
            await self._stores.log.append(missing, self.lease, awaits_input=is_asking)

    def notify(self, notice: Notice) -> None:
        """Send a notice to subscribers, at all processes."""
        if notice.type == PROGRESS:
            self._progress.append((self.seq, notice))
        self._publish(notice)
        self._stores.feed.publish_notice(self.run_id, notice)

    def take(self, session: OwnedSession) -> None:
        """Append under this session's lease from now on."""
        self._session, self.lease = session, session.lease

    @property
    def is_surely_owned(self) -> bool:
        """Whether no other process can own the run."""
        return self._session is None or self._session.is_surely_owned

    async def wait_owned(self) -> None:
        """Wait until the run is surely owned; if its lease is lost, this is cancelled."""
        while not self.is_surely_owned:  # noqa: ASYNC110 - rare: the store is away, or we were frozen
            await asyncio.sleep(_LOOK_SECONDS)

    def now(self) -> float:
        """Return the time in seconds since the epoch."""
        return self._stores.clock.now()

    @property
    def seq(self) -> int:
        """The number of the newest record known here."""
        return self.records[-1].seq if self.records else 0

    def after(self, seq: int, limit: int | None = None) -> Sequence[Record]:
        """Return the records after a seq."""
        start = bisect_right(self.records, seq, key=lambda record: record.seq)
        return self.records[start : None if limit is None else start + limit]

    def new_context_id(self) -> str:
        """Make a delegation's context id: a UUID, as some agents require (LangGraph)."""
        return str(UUID(hex=self._stores.clock.token(), version=4))

    def subscribe(self, after: int) -> SubscriberBuffer:
        """Return a buffer with all items after a seq, and all that follow."""
        buffer = SubscriberBuffer()
        for item in self.with_progress(self.after(after), after):
            buffer.put(item)
        for place, notice in self._progress:
            if place == self.seq:
                buffer.put(notice)
        if self._is_closed:
            buffer.close()
        self._buffers[buffer] = None
        return buffer

    def unsubscribe(self, buffer: SubscriberBuffer) -> None:
        self._buffers.pop(buffer, None)

    def with_progress(self, records: Sequence[Record], after: int) -> list[Item]:
        """Merge progress notices into these records, which follow `after`."""
        places = iter([p for p in self._progress if p[0] >= after])
        place = next(places, None)
        items: list[Item] = []
        for record in records:
            while place and place[0] < record.seq:
                items.append(place[1])
                place = next(places, None)
            items.append(record)
        return items

    def close(self) -> None:
        """End the local subscriptions: this process writes no more of the run."""
        self._is_closed = True
        self.share.release()
        for buffer in self._buffers:
            buffer.close()

    def report_lost(self) -> None:
        """Tell subscribers that the store lost the log."""
        self.is_lost = True
        failed = Failed("store_lost", "the store lost this run's log")
        for record in self._next_records([failed]):
            self._publish(record)

    async def _append_to_store(self, records: Sequence[Record]) -> None:
        if self.lease is None:
            raise LeaseLost("this process does not own the run")
        try:
            await self._store(records, self.lease)
        except LogTruncated as truncated:
            await self.restore(truncated)
            await self._store(records, self.lease)

    async def _store(self, records: Sequence[Record], lease: Lease) -> None:
        """Append records, with the flag whether the run then awaits input."""
        open_ids = set(self._waiting)
        for record in records:
            note_waits(open_ids, record.event_type, record.metadata)
        await self._stores.log.append(records, lease, awaits_input=bool(open_ids))

    def _next_records(self, events: Sequence[Event]) -> list[Record]:
        now = self._stores.clock.now()
        return [
            Record(self.run_id, self.session_id, seq, event_type, now, content, metadata)
            for seq, (event_type, content, metadata) in enumerate(map(encode, events), self.seq + 1)
        ]

    def _add(self, record: Record, *, is_counted: bool = False) -> None:
        self.records.append(record)
        if not (is_counted or self._is_closed):
            self.share.grow(record_size(record))
        note_waits(self._waiting, record.event_type, record.metadata)
        if is_terminal(record):  # notices are not replayed once a run has ended
            self._progress.clear()
        self._publish(record)

    def _publish(self, item: Item) -> None:
        for observe in self._observers:
            observe(item)
        for buffer in self._buffers:
            buffer.put(item)


class RunWriter:
    """Writes the events of one run in order, at once or merged with the next ones.

    `current` is ahead of `recorded` by the unwritten events. Errors of deferred writes go to
    `inbox`.
    """

    def __init__(self, run: Run, log: RunLog, inbox: Inbox) -> None:
        self.recorded = run
        self.current = run
        self.log = log
        self._inbox = inbox
        self._unwritten: list[Event | Notice] = []
        self._lock = asyncio.Lock()
        self._deferred: asyncio.Task[None] | None = None

    def add(self, *items: Event | Notice) -> None:
        """Queue items for the next write."""
        self._unwritten += items

    async def write(self, *items: Event | Notice) -> None:
        """Write the queued items, then these."""
        self._unwritten += items
        async with self._lock:
            due, run = list(self._unwritten), self.current
            if due:
                await self.log.append(due)
                del self._unwritten[: len(due)]
                self.recorded = run

    async def record(self, *events: Event) -> None:
        """Apply and write events, ignoring their commands."""
        self.current = apply_all(self.current, events)
        await self.write(*events)

    def write_later(self, items: Sequence[Event | Notice], seconds: float) -> None:
        """Defer a write whose only consequence was a model request.

        It merges with the next write, or follows after `seconds`. So a slow store delays an
        answer's first word once, not at every step before it.
        """
        self._unwritten += items
        if self._deferred is None or self._deferred.done():
            self._deferred = asyncio.create_task(self._write_after(seconds))

    async def wait_written(self) -> None:
        """Wait for a write in progress, so that `recorded` matches the log."""
        async with self._lock:
            pass

    def cancel(self) -> None:
        """Drop the deferred write and its items."""
        if self._deferred:
            self._deferred.cancel()
            self._deferred = None

    async def _write_after(self, seconds: float) -> None:
        try:
            while self._unwritten:  # including items added during the write
                await asyncio.sleep(seconds)
                await self.write()
                seconds = DEFERRED_SECONDS
        except Exception as error:  # noqa: BLE001 - raised again in `Runner.drive`
            self._inbox.put_nowait(TaskCrashed(error))
