"""One run's record at the process that owns it: its log, its writer, its local subscribers."""

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from diptych.core.approval_records import note_approvals, open_approvals
from diptych.core.codec import Record, decode, encode, is_terminal, record_chars
from diptych.core.errors import LeaseLost, LogTruncated, LoopError, OutOfMemory
from diptych.core.events import Event, Failed, RunRequested
from diptych.core.messages import Message
from diptych.core.reducer import apply_all, replay
from diptych.core.state import Run
from diptych.net.memory_budget import RUN_SIZE, MemoryBudget, Share, record_size
from diptych.ports import FeedItem, Gap, Item, Notice
from diptych.ports.entries import IdempotencyKey, Lease, Opened
from diptych.ports.stores import Stores
from diptych.runs.inbox import Inbox, TaskCrashed

PROGRESS = "progress"
"""The type of the notice that precedes a call (loop.md §5)."""
MAX_BUFFERED_ITEMS = 1_000
MAX_BUFFERED_CHARS = 2**18  # of records, in one buffer and in one batch
DEFERRED_SECONDS = 0.1  # for which a write is deferred that can be merged with the next
FIRST_DEFERRED_SECONDS = 0.025  # for a run's first write; until then it shows as queued
_LOOK_SECONDS = 0.1

Observer = Callable[[Item], None]
"""Told of every record and notice of every run that this process executes. Must not block."""


class UnreadableRecord(Exception):
    """A newer version wrote the run's record, and this version cannot read it."""


async def rebuild(
    records: Sequence[Record], stores: Stores, history: tuple[Message, ...] | None = None
) -> Run:
    """Rebuild a run: what its record does not show did not happen (loop.md §9).

    `history` is its session's conversation before it; None has it read. Raises `UnreadableRecord`
    and `StoreError`, of which `BlobMissing` is one.
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
            f"this version cannot read its record, and a newer one must ({error})"
        ) from error


@dataclass(slots=True)
class OwnedSession:
    """A session whose lease this process holds, and the task that executes its runs.

    After `owned_until`, by the event loop's clock, another process may have the session.
    """

    lease: Lease
    task: asyncio.Task[None]
    owned_until: float

    @property
    def is_surely_owned(self) -> bool:
        """Whether no other process can have it: one that stands still does not know."""
        return asyncio.get_running_loop().time() < self.owned_until


class SubscriberBuffer:
    """Items on their way to one subscriber.

    On overflow a `Gap` takes the place of its content: the subscriber must read the log. So a slow
    subscriber may miss notices, and never a record.
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
        """Nothing more will be put."""
        self._is_closed = True
        self._changed.set()

    async def take(self) -> Sequence[FeedItem]:
        """Wait for items and return all; none once the buffer is closed and empty."""
        await self._changed.wait()
        if not self._is_closed:
            self._changed.clear()
        items, self._items, self._chars = self._items, [], 0
        return items


class RunLog:
    """Appends events to the store, then tells the local subscribers and observers.

    The store publishes records to other processes; notices go there by the feed. `records` are
    those on record, as far as this process knows. Progress notices are kept, each with its place
    between records, so that a late subscriber sees the calls that were made. `share` is the memory
    that the run holds until `close`.
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
        self.was_loaded = False  # from the store: another process may have written it
        self.is_lost = False  # nobody can go on with the run
        self._stores = stores
        self._observers = observers
        self._buffers: dict[SubscriberBuffer, None] = {}  # one for each `Subscription` here
        self._open_approvals: set[str] = set()  # ids of the calls that wait for a decision
        self._progress: list[tuple[int, Notice]] = []  # each with the seq of the record before it
        self._is_closed = False

    async def open(
        self,
        asked: RunRequested,
        key: IdempotencyKey | None,
        *,
        if_idle: bool = False,
        if_newest: str | None = None,
    ) -> Opened:
        """Put the run on record with its first event, if there is memory for it.

        A session that nobody owns is claimed with it (`Opened.lease`). A run that resumes another
        follows that one in its session, or is not opened. Raises as `EventLog.open`.
        """
        (first,) = self._next_records([asked])
        self.share.admit(RUN_SIZE + record_size(first))
        token = self._stores.clock.token()
        opened = await self._stores.log.open(
            first, token, key, if_idle=if_idle, if_newest=if_newest or asked.resumes
        )
        if opened.is_new and not self.records:  # its turn may have come before this reply
            self._add(first, is_counted=True)
        return opened

    def load(self, records: Sequence[Record]) -> None:
        """Continue from the store's records."""
        self.records = list(records)
        self._open_approvals = {approval.call_id for approval in open_approvals(self.records)}
        self.was_loaded = True
        self.share.grow(RUN_SIZE)  # the record itself was counted before it was read

    async def append(self, items: Sequence[Event | Notice]) -> None:
        """Put the events on record; then tell them, with the notices between them.

        Raises `OutOfMemory` if the run has grown beyond what there is; its end is always recorded.
        """
        records = self._next_records([item for item in items if not isinstance(item, Notice)])
        if records:
            if self.share.is_beyond and not is_terminal(records[-1]):
                raise OutOfMemory("this run has grown beyond what its agent can hold")
            await self._append_to_store(records)
        recorded = iter(records)
        for item in items:
            if isinstance(item, Notice):
                self.notify(item)
            else:
                self._add(next(recorded))

    async def restore(self, truncated: LogTruncated) -> None:
        """Put back the records that the store has lost: readers have seen them."""
        if self.lease and (missing := self.after(truncated.seq)):
            is_asking = bool(self._open_approvals)
            await self._stores.log.append(missing, self.lease, awaits_input=is_asking)

    def notify(self, notice: Notice) -> None:
        """Send a notice to subscribers, here and at other processes."""
        if notice.type == PROGRESS:
            self._progress.append((self.seq, notice))
        self._tell(notice)
        self._stores.feed.publish_notice(self.run_id, notice)

    def take(self, session: OwnedSession) -> None:
        """Append under the lease of a session from now on."""
        self._session, self.lease = session, session.lease

    @property
    def is_surely_owned(self) -> bool:
        """Whether no other process can have the run."""
        return self._session is None or self._session.is_surely_owned

    async def wait_owned(self) -> None:
        """Wait until the run is surely owned, or this is cancelled, as another process has it."""
        while not self.is_surely_owned:  # noqa: ASYNC110 - the store is away, or we stood still
            await asyncio.sleep(_LOOK_SECONDS)

    def now(self) -> float:
        """Return the time, in seconds since the epoch."""
        return self._stores.clock.now()

    @property
    def seq(self) -> int:
        """The number of the newest record. One that others have overwritten is not in `records`."""
        return self.records[-1].seq if self.records else 0

    def after(self, seq: int, limit: int | None = None) -> Sequence[Record]:
        """Return the records after a seq."""
        start = bisect_right(self.records, seq, key=lambda record: record.seq)
        return self.records[start : None if limit is None else start + limit]

    def new_context_id(self) -> str:
        """Make a delegation's context: a UUID, since some agents take no other (LangGraph)."""
        return str(UUID(hex=self._stores.clock.token(), version=4))

    def subscribe(self, after: int) -> SubscriberBuffer:
        """Return a buffer with the items after a seq, which gets all that follow."""
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
        """Put the progress notices in their places among these records, which follow `after`."""
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
        """End the local subscribers' buffers: this process writes nothing more of the run."""
        self._is_closed = True
        self.share.release()
        for buffer in self._buffers:
            buffer.close()

    def report_lost(self) -> None:
        """Tell subscribers that the store has lost the record."""
        self.is_lost = True
        failed = Failed("store_lost", "the store has lost the record of this run")
        for record in self._next_records([failed]):
            self._tell(record)

    async def _append_to_store(self, records: Sequence[Record]) -> None:
        if self.lease is None:
            raise LeaseLost("this process does not own the run")
        try:
            await self._store(records, self.lease)
        except LogTruncated as truncated:
            await self.restore(truncated)
            await self._store(records, self.lease)

    async def _store(self, records: Sequence[Record], lease: Lease) -> None:
        """Append records, and note whether calls wait for a decision then."""
        open_ids = set(self._open_approvals)
        for record in records:
            note_approvals(open_ids, record)
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
        note_approvals(self._open_approvals, record)
        if is_terminal(record):  # notices are not replayed once a run has ended
            self._progress.clear()
        self._tell(record)

    def _tell(self, item: Item) -> None:
        for observe in self._observers:
            observe(item)
        for buffer in self._buffers:
            buffer.put(item)


class RunWriter:
    """Writes the events of one run in order: now, or with the next ones.

    `current` may be ahead of `recorded` by what is not written yet. `inbox` gets what a deferred
    write raises.
    """

    def __init__(self, run: Run, log: RunLog, inbox: Inbox) -> None:
        self.recorded = run
        self.current = run
        self.log = log
        self._inbox = inbox
        self._unwritten: list[Event | Notice] = []  # what happened between the two
        self._lock = asyncio.Lock()
        self._deferred: asyncio.Task[None] | None = None

    def add(self, *items: Event | Notice) -> None:
        """Put items before whatever is written next."""
        self._unwritten += items

    async def write(self, *items: Event | Notice) -> None:
        """Write the deferred items, and then these."""
        self._unwritten += items
        async with self._lock:
            due, run = list(self._unwritten), self.current
            if due:
                await self.log.append(due)
                del self._unwritten[: len(due)]
                self.recorded = run

    async def record(self, *events: Event) -> None:
        """Apply and write events without carrying out what follows from them."""
        self.current = apply_all(self.current, events)
        await self.write(*events)

    def write_later(self, items: Sequence[Event | Notice], seconds: float) -> None:
        """Defer a write that led to nothing but a question to the model.

        It is merged with the next write, or goes alone after `seconds`. So a slow store delays
        the first word of an answer once, and not at each step before it.
        """
        self._unwritten += items
        if self._deferred is None or self._deferred.done():
            self._deferred = asyncio.create_task(self._write_after(seconds))

    async def wait_written(self) -> None:
        """Wait for a write that is under way, so that `recorded` matches the log."""
        async with self._lock:
            pass

    def cancel(self) -> None:
        """Drop the deferred write, and what it would have recorded."""
        if self._deferred:
            self._deferred.cancel()
            self._deferred = None

    async def _write_after(self, seconds: float) -> None:
        try:
            while self._unwritten:  # also what was deferred during the write
                await asyncio.sleep(seconds)
                await self.write()
                seconds = DEFERRED_SECONDS
        except Exception as error:  # noqa: BLE001 - raised again where the run is driven
            self._inbox.put_nowait(TaskCrashed(error))
