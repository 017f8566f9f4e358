"""Subscriptions: a run's record from some position on, then what happens live, at any process.

A subscriber may be as slow as it likes: what it has not taken is not kept for it without bound.
One that falls behind reads on from the record, a batch at a time, until it has caught up.
"""

from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Self

from diptych.core.codec import Record, is_terminal
from diptych.core.messages import JSON
from diptych.ports import FeedItem, Gap, Item, Notice
from diptych.runs.active_run import ActiveRun
from diptych.runs.buffer import SubscriberBuffer
from diptych.runs.position import Position
from diptych.runs.record_reader import RecordReader
from diptych.runs.run_log import RunLog
from diptych.runs.stores import Stores

HANDED_OVER = "handed_over"
"""The last notice of a process that is leaving: the run goes on; subscribe again elsewhere."""


class Subscriptions:
    """Makes subscriptions and counts them by run; `find` gives a run that is active here."""

    def __init__(self, stores: Stores, find: Callable[[str], ActiveRun | None]) -> None:
        self.stores = stores
        self.find = find
        self.remote_buffers: dict[SubscriberBuffer, None] = {}  # of runs that others own
        self.is_closed = False
        self._counts: Counter[str] = Counter()

    def subscribe(self, run_id: str, after: int = 0) -> "Subscription":
        """Subscribe to a run from after a seq; see `Subscription`."""
        return Subscription(self, run_id, after)

    def has_subscribers(self, run_id: str) -> bool:
        return run_id in self._counts

    def close(self) -> None:
        """End subscriptions to runs of other processes, now and from now on."""
        self.is_closed = True
        for buffer in tuple(self.remote_buffers):
            buffer.close()

    def count(self, run_id: str, change: int) -> None:
        self._counts[run_id] += change
        if not self._counts[run_id]:
            del self._counts[run_id]


class _Stage(Enum):
    NEW = "new"
    READING = "reading"  # the record, until it has caught up
    ATTACHING = "attaching"  # it has caught up and has no source of live items
    LIVE = "live"
    ENDED = "ended"  # nothing more is to come
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class _Source:
    """Where live items come from, and how to stop them."""

    buffer: SubscriberBuffer
    detach: Callable[[], None]
    is_local: bool


class Subscription(AsyncIterator[Sequence[Item]]):
    """Batches of items: what is on record after `after`, then live, up to the terminal record.

    No batch is kept here once it was given. Notices come live only. `reset` is one, for a
    subscriber that has seen more than the store still has; `handed_over` is another, the last of
    a process that is leaving. Use it with `contextlib.aclosing`. Iterating raises `RunNotFound`,
    `RunLost` or `StoreError`.
    """

    def __init__(self, subscriptions: Subscriptions, run_id: str, after: int) -> None:
        self._subscriptions = subscriptions
        self._stores = subscriptions.stores
        self._run_id = run_id
        self._stage = _Stage.NEW
        self._position = Position(after)
        self._reader = RecordReader(self._stores, run_id, lambda: not subscriptions.is_closed)
        self._source: _Source | None = None
        self._unread: deque[FeedItem] = deque()  # taken from the source, not looked at yet
        self._after_gap: Record | None = None  # taken from the source, before what it follows
        self._lasting_gap: Record | None = (
            None  # the same, where the store cannot give what is before
        )

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Sequence[Item]:
        if self._stage is _Stage.NEW:
            self._stage = _Stage.READING
            self._subscriptions.count(self._run_id, 1)
        try:
            while self._stage not in {_Stage.ENDED, _Stage.CLOSED}:
                if batch := await self._advance():
                    return batch
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

    # The record

    async def _read_batch(self) -> list[Item]:
        """Give what comes next on record, or where the subscriber must go back to first.

        If the store has lost records that were delivered, the subscriber is reset to the newest
        one that still exists. So the newest delivered record is read again with what follows.
        """
        position, reader = self._position, self._reader
        overlap = 1 if position.seq else 0
        limit = reader.limit + overlap
        active = self._local_run()
        log = active.log if active else None
        gap = self._after_gap
        is_held = gap is not None and await reader.holds(gap.seq)
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
        if not has_more:
            await self._catch_up(is_new=bool(new), is_held=is_held)
        return log.with_progress(new, after) if log else [*new]

    async def _catch_up(self, *, is_new: bool, is_held: bool) -> None:
        """Go on live, with nothing more on record; `is_new`: something new was.

        What the store has lost its owner puts back, and tells of again. What it had, before and
        after it was read (`is_held`), and still does not give, others have written over.
        """
        if not self._source:
            self._stage = _Stage.ATTACHING
        elif gap := self._after_gap:
            self._after_gap, self._stage = None, _Stage.LIVE
            if gap.seq <= self._position.seq + 1:
                return
            if not (is_held and await self._reader.holds(gap.seq)):
                self._unread.popleft()
            elif await self._reader.has_between(self._position.seq, gap.seq):
                self._after_gap, self._stage = gap, _Stage.READING
            else:
                self._lasting_gap = gap
        elif is_new or not await self._reader.has_more_at_end(self._position.seq):
            self._stage = _Stage.LIVE

    async def _is_same(self, found: Record, log: RunLog | None) -> bool:
        """Whether a record is the one of its seq that the subscriber has seen, as far as known."""
        if not self._position.is_number_only:
            return self._position.is_at(found)
        if log:
            return not log.was_loaded
        return not (await self._stores.log.entry(self._run_id)).may_be_truncated

    async def _newest_still_held(self, log: RunLog | None) -> Record | None:
        """Look for the newest record that the subscriber has seen and that is still the same.

        After a loss others have the same numbers: a terminal one, if it has seen later ones.
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
        """Give the run if it is active here, unless this subscriber knows more than its log.

        A subscriber that listens to another process may know records that this process, a former
        owner, does not have.
        """
        active = None if self._source else self._subscriptions.find(self._run_id)
        return active if active and active.log.seq >= self._position.seq else None

    # Live

    async def _attach(self) -> None:
        """Listen to the run: to its log if it is active here, else to the feed."""
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
        self._stage = _Stage.READING  # what happened before the feed was subscribed to
        if self._subscriptions.is_closed:
            buffer.close()

    def _detach(self) -> None:
        source, self._source = self._source, None
        self._unread.clear()
        if source:
            source.detach()

    async def _take_live(self, source: _Source) -> list[Item]:
        """Wait for live items, and give what is new of them."""
        self._unread = self._unread or deque(await source.buffer.take())
        if self._unread:
            return self._new_items(source)
        self._detach()  # nothing comes from there any more
        if self._subscriptions.is_closed:
            self._stage = _Stage.ENDED
            return [self._handed_over_notice()]
        self._stage = _Stage.READING
        return []

    def _new_items(self, source: _Source) -> list[Item]:
        """Give what is new in what was taken; what was missed must be read from the record."""
        batch: list[Item] = []
        position = self._position
        while self._unread:
            item = self._unread.popleft()
            if isinstance(item, Notice):
                if item.type != HANDED_OVER:  # that another process leaves ends nothing here
                    batch.append(item)
            elif isinstance(item, Gap) or (
                item.seq > position.seq + 1 and item != self._lasting_gap
            ):
                self._stage = _Stage.READING
                if source.is_local:  # the run may have ended when this subscriber has caught up
                    self._detach()
                elif isinstance(item, Record):
                    self._unread.appendleft(item)
                    self._after_gap = item
                break
            elif item.seq > position.seq:
                self._lasting_gap = None
                position.advance_past([item])
                batch.append(item)
            elif position.is_new_restart(item):
                position.move_before(item)
                batch += [self._reset_notice(), item]
                position.advance_past([item])
        return batch

    # Notices

    def _reset_notice(self) -> Notice:
        """Say that what the subscriber has seen after its position is not on record any more."""
        return Notice("reset", {"epoch": self._stores.log.epoch, "last_seq": self._position.seq})

    def _handed_over_notice(self) -> Notice:
        message = "this process is leaving; the run goes on: follow it again with the last id"
        about: dict[str, JSON] = {"run_id": self._run_id, "last_seq": self._position.seq}
        return Notice(HANDED_OVER, {**about, "message": message})
