"""Subscriptions to a run: its log from a position on, then live items, at any process.

A subscriber may be arbitrarily slow: if it falls behind, it reads from the log until it has caught
up.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Self

from diptych.core.codec import TERMINAL, Record, is_terminal, record_chars, shown
from diptych.core.errors import RunLost, StoreError
from diptych.core.messages import JSON
from diptych.ports import FeedItem, Gap, Item, Notice
from diptych.ports.stores import Stores
from diptych.runs.active_run import ActiveRun
from diptych.runs.run_log import MAX_BUFFERED_CHARS, RunLog, SubscriberBuffer

HANDED_OVER = "handed_over"
"""Type of the last notice at shutdown: the run continues; subscribe again elsewhere."""
STORE_WAIT_SECONDS = 10.0  # to wait for an unreachable store, once something was read
FIRST_BATCH = 50  # records per read, until their size is known
MAX_BATCH = 500
_RETRY_SECONDS = 0.2


class Subscriptions:
    """Creates subscriptions and counts them by run; `find` returns a locally active run."""

    def __init__(self, stores: Stores, find: Callable[[str], ActiveRun | None]) -> None:
        self.stores = stores
        self.find = find
        self.remote_buffers: dict[SubscriberBuffer, None] = {}  # of runs owned elsewhere
        self.is_closed = False
        self._counts: Counter[str] = Counter()

    def subscribe(self, run_id: str, after: int = 0) -> "Subscription":
        """Subscribe to a run's items after a seq; see `Subscription`."""
        return Subscription(self, run_id, after)

    def has_subscribers(self, run_id: str) -> bool:
        return run_id in self._counts

    def close(self) -> None:
        """End subscriptions to other processes' runs, present and future."""
        self.is_closed = True
        for buffer in tuple(self.remote_buffers):
            buffer.close()

    def count(self, run_id: str, change: int) -> None:
        self._counts[run_id] += change
        if not self._counts[run_id]:
            del self._counts[run_id]


class Position:
    """A subscriber's position in a log: it has seen everything up to `seq`.

    After a loss in the store, other records reuse the lost numbers. So the newest record is
    remembered by type and time, as are restarts: the records that follow a loss.
    """

    def __init__(self, seq: int) -> None:
        self.seq = seq
        self.is_at_end = False
        self._newest: tuple[str, float] | None = None  # None if the subscriber gave only a number
        self._restarts: list[Record] = []

    @property
    def is_number_only(self) -> bool:
        return self._newest is None

    def is_at(self, record: Record) -> bool:
        """Whether this is the newest record that was seen."""
        return self._newest == _mark(record)

    def is_new_restart(self, record: Record) -> bool:
        """Whether this record restarts the run after a loss unknown to the subscriber."""
        return _is_restart(record) and record not in self._restarts

    def advance_past(self, records: Sequence[Record]) -> None:
        if records:
            self.move_to(records[-1])
            self._restarts += filter(_is_restart, records)

    def move_to(self, record: Record | None) -> None:
        """Move behind this record; None is the beginning."""
        self.seq = record.seq if record else 0
        self._newest = _mark(record) if record else None
        self.is_at_end = record is not None and is_terminal(record)

    def move_before(self, record: Record) -> None:
        self.seq = record.seq - 1


def _mark(record: Record) -> tuple[str, float]:
    return record.event_type, record.timestamp


def _is_restart(record: Record) -> bool:
    return record.event_type == "owner_changed" and bool(record.metadata.get("lost_tail"))


class RecordReader:
    """Reads a run's records for one subscriber, from the local log or the store.

    Raises as `EventLog.read`. `may_wait` says whether to wait for an unreachable store. `limit` is
    the number of records per read.
    """

    def __init__(self, stores: Stores, run_id: str, may_wait: Callable[[], bool]) -> None:
        self.limit = FIRST_BATCH
        self._stores = stores
        self._run_id = run_id
        self._may_wait = may_wait
        self._store_wait = 0.0  # a new subscriber gets the error at once

    async def read(self, log: RunLog | None, after: int, limit: int) -> Sequence[Record]:
        """Read the records after a seq."""
        found = log.after(after, limit) if log else await self._read_store(after, limit)
        self._store_wait = STORE_WAIT_SECONDS
        return found

    def fitting(self, records: Sequence[Record], *, has_more: bool) -> Sequence[Record]:
        """Return as many records as fit a batch, at least one, and adapt `limit`."""
        chars = 0
        for n, record in enumerate(records):
            chars += record_chars(record)
            if n and chars > MAX_BUFFERED_CHARS:
                self.limit = n
                return records[:n]
        if has_more:
            self.limit = min(2 * self.limit, MAX_BATCH)
        return records

    async def _read_store(self, after: int, limit: int) -> Sequence[Record]:
        """Read from the store, retrying for a while if it is unreachable."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._store_wait
        while True:
            try:
                return await self._stores.log.read(self._run_id, after, limit)
            except StoreError:
                if loop.time() >= until or not self._may_wait():
                    raise
            await asyncio.sleep(_RETRY_SECONDS)


class _Stage(Enum):
    NEW = "new"
    READING = "reading"  # from the log, until it has caught up
    ATTACHING = "attaching"  # caught up, without a source of live items
    LIVE = "live"
    ENDED = "ended"  # delivered everything
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class _Source:
    """A source of live items, and the way to detach from it."""

    buffer: SubscriberBuffer
    detach: Callable[[], None]
    is_local: bool


class Subscription(AsyncIterator[Sequence[Item]]):
    """Batches of items: logged ones after `after`, then live ones, to the terminal record.

    Notices are live only. The notice `reset` means that the store lost records the subscriber has
    seen; `handed_over` is the last one at shutdown. Use with `contextlib.aclosing`. Iterating
    raises `RunNotFound`, `RunLost` or `StoreError`.
    """

    def __init__(self, subscriptions: Subscriptions, run_id: str, after: int) -> None:
        self._subscriptions = subscriptions
        self._stores = subscriptions.stores
        self._run_id = run_id
        self._stage = _Stage.NEW
        self._position = Position(after)
        self._reader = RecordReader(self._stores, run_id, lambda: not subscriptions.is_closed)
        self._source: _Source | None = None
        self._unread: deque[FeedItem] = deque()  # taken from the source, not processed yet

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Sequence[Item]:
        if self._stage is _Stage.NEW:
            self._stage = _Stage.READING
            self._subscriptions.count(self._run_id, 1)
        try:
            while self._stage not in {_Stage.ENDED, _Stage.CLOSED}:
                if batch := await self._advance():
                    return [shown(item) if isinstance(item, Record) else item for item in batch]
        except BaseException:
            await self.aclose()
            raise
        await self.aclose()
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """End the subscription."""
        if self._stage not in {_Stage.NEW, _Stage.CLOSED}:
            self._detach()
            self._subscriptions.count(self._run_id, -1)
        self._stage = _Stage.CLOSED

    async def _advance(self) -> list[Item]:
        match self._stage, self._source:
            case _Stage.READING, _:
                batch = await self._read_batch()
            case _Stage.LIVE, _Source() as source:
                batch = await self._take_live(source)
            case _:
                await self._attach()
                return []
        if self._position.is_at_end:
            self._stage = _Stage.ENDED
        return batch

    # The log

    async def _read_batch(self) -> list[Item]:
        """Return the next logged items, or a reset.

        If the store lost records that were delivered, the subscriber is reset to the newest one
        that still exists. To detect this, the newest delivered record is read again.
        """
        position, reader = self._position, self._reader
        overlap = 1 if position.seq else 0
        limit = reader.limit + overlap
        active = self._local_run()
        log = active.log if active else None
        found = await reader.read(log, position.seq - overlap, limit)
        has_more = len(found) == limit
        seen = [record for record in found[:overlap] if record.seq == position.seq]
        if overlap and not (seen and await self._is_same(seen[0], log)):
            held = await self._newest_still_held(log)
            if held is None or held.seq < position.seq:
                position.move_to(held)
                return [self._reset_notice()]
        after = position.seq
        new = reader.fitting(found[len(seen) :], has_more=has_more)
        has_more = has_more or len(new) < len(found) - len(seen)
        position.advance_past([*seen, *new])
        if not has_more and not (self._source and not new and await self._must_read_on()):
            self._stage = _Stage.LIVE if self._source else _Stage.ATTACHING
        return log.with_progress(new, after) if log else [*new]

    async def _must_read_on(self) -> bool:
        """Whether the run has ended since the last read, which found nothing.

        Raises `RunLost` if its end is missing: somebody deleted rows in the store.
        """
        log = self._stores.log
        try:
            entry = await log.entry(self._run_id)
            if entry.status not in TERMINAL:
                return False
            if await log.read(self._run_id, self._position.seq, 1):
                return True
            if (await log.entry(self._run_id)).seq < entry.seq:
                return False  # the store has just lost its newest records
        except StoreError:  # the feed reports when the store is back
            return False
        raise RunLost("the end of this run is missing: its log was changed by hand")

    async def _is_same(self, found: Record, log: RunLog | None) -> bool:
        """Whether a record is the one that the subscriber saw under its seq, as far as known."""
        if not self._position.is_number_only:
            return self._position.is_at(found)
        if log:
            return not log.was_loaded
        return not (await self._stores.log.entry(self._run_id)).may_be_truncated

    async def _newest_still_held(self, log: RunLog | None) -> Record | None:
        """Return the newest record that the subscriber has seen and the store still has.

        After a loss, other records have the same numbers; a terminal record is another one if the
        subscriber has seen later ones.
        """
        position, held = self._position, None
        while True:
            found = await self._reader.read(log, held.seq if held else 0, self._reader.limit)
            for record in found:
                is_other = is_terminal(record) and record.seq < position.seq
                if record.seq > position.seq or is_other or position.is_new_restart(record):
                    return held
                held = record
            if len(found) < self._reader.limit:
                return held

    def _local_run(self) -> ActiveRun | None:
        """Return the run if it is active here, unless this process is a stale owner.

        A subscriber to another process may know more than the local log.
        """
        active = None if self._source else self._subscriptions.find(self._run_id)
        return active if active and active.log.seq >= self._position.seq else None

    # Live

    async def _attach(self) -> None:
        """Listen to the local log if the run is active here, else to the feed."""
        if active := self._local_run():
            log, buffer = active.log, active.log.subscribe(self._position.seq)
            self._source = _Source(buffer, lambda: log.unsubscribe(buffer), is_local=True)
            self._stage = _Stage.LIVE
            return
        buffer, remote_buffers = SubscriberBuffer(), self._subscriptions.remote_buffers
        unsubscribe = await self._stores.feed.subscribe(self._run_id, buffer.put)
        remote_buffers[buffer] = None

        def detach() -> None:
            remote_buffers.pop(buffer, None)
            unsubscribe()

        self._source = _Source(buffer, detach, is_local=False)
        self._stage = _Stage.READING  # everything before the feed subscription
        if self._subscriptions.is_closed:
            buffer.close()

    def _detach(self) -> None:
        source, self._source = self._source, None
        self._unread.clear()
        if source:
            source.detach()

    async def _take_live(self, source: _Source) -> list[Item]:
        """Wait for live items; return the new ones."""
        self._unread = self._unread or deque(await source.buffer.take())
        if self._unread:
            return self._new_items(source)
        self._detach()  # the source has ended
        if self._subscriptions.is_closed:
            self._stage = _Stage.ENDED
            return [self._handed_over_notice()]
        self._stage = _Stage.READING
        return []

    def _new_items(self, source: _Source) -> list[Item]:
        """Return the new items among those taken; after a gap, switch to reading the log."""
        batch: list[Item] = []
        position = self._position
        while self._unread:
            item = self._unread.popleft()
            if isinstance(item, Notice):
                if (
                    item.type != HANDED_OVER
                ):  # another process's shutdown does not end this subscription
                    batch.append(item)
            elif isinstance(item, Gap) or item.seq > position.seq + 1:
                self._stage = _Stage.READING
                if source.is_local:  # the run may have ended by then
                    self._detach()
                break
            elif item.seq > position.seq:
                position.advance_past([item])
                batch.append(item)
            elif position.is_new_restart(item):
                position.move_before(item)
                batch += [self._reset_notice(), item]
                position.advance_past([item])
        return batch

    # Notices

    def _reset_notice(self) -> Notice:
        """Return the notice that seen records after the position are lost."""
        return Notice("reset", {"epoch": self._stores.log.epoch, "last_seq": self._position.seq})

    def _handed_over_notice(self) -> Notice:
        message = "this process is shutting down and the run continues; reconnect with the last id"
        about: dict[str, JSON] = {"run_id": self._run_id, "last_seq": self._position.seq}
        return Notice(HANDED_OVER, {**about, "message": message})
