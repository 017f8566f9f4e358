"""Following a run: first what is on record, then live, here or at the process that owns it.

A reader may be as slow as it likes: what it has not taken is not kept for it without end. One that
has fallen behind goes on from the record, a portion at a time, until it has caught up.

Not here: what becomes of what was heard (`http`, `cli`).
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Sequence

from diptych.errors import StoreError
from diptych.loop.codec import Record
from diptych.loop.messages import JSON
from diptych.ports import FeedItem, Item, Notice
from diptych.runtime.active_run import (
    MAX_BUFFERED_CHARS,
    ActiveRun,
    Stores,
    SubscriberBuffer,
    is_last,
    size_of,
)

PATIENCE_SECONDS = 10.0  # for which a reader waits for a store that is away
FIRST_PORTION = 50  # records that are read at once, until their size is known
LARGEST_PORTION = 500
_PAUSE_SECONDS = 0.2
HANDED_OVER = "handed_over"
"""The last notice of a process that is leaving: the run goes on, and is to be followed anew."""
_GOES_ON = "this process is leaving; the run goes on: follow it again with the last id"


class Subscriptions:
    """All who follow runs at this process; `find` gives a run that is owned here."""

    def __init__(self, stores: Stores, find: Callable[[str], ActiveRun | None]) -> None:
        self.stores = stores
        self.find = find
        self.elsewhere: set[SubscriberBuffer] = (
            set()
        )  # who listens to runs that other processes own
        self.has_closed = False
        self._followed: Counter[str] = Counter()

    async def subscribe(self, run_id: str, after: int = 0) -> AsyncGenerator[Sequence[Item]]:
        """Give what is on record after `after`, then what happens, up to the terminal record.

        What arrived together comes together, as far as a slow reader can hold it: nothing of it is
        kept here while the reader takes it. Notices come live only; `reset` is one, for a reader
        who has seen more than the store still has, `handed_over` another, the last of a process
        that is leaving. Raises `RunNotFound`, `RunLost` or `StoreError`.
        """
        follower = _Subscriber(self, run_id, after)
        self._followed[run_id] += 1
        try:
            while batch := await follower.next():
                yield batch
        finally:
            follower.stop_listening()
            self._followed[run_id] -= 1
            if not self._followed[run_id]:
                del self._followed[run_id]

    def has_subscribers(self, run_id: str) -> bool:
        """Say whether somebody follows a run at this process."""
        return run_id in self._followed

    def close(self) -> None:
        """Tell whoever follows from now on, and those who wait for other processes, to go."""
        self.has_closed = True
        for reader in tuple(self.elsewhere):
            reader.end()


class _Subscriber:
    """One who follows a run, and how far it has come: `seq` is what it has seen last."""

    def __init__(self, following: Subscriptions, run_id: str, after: int) -> None:
        self._following = following
        self._stores = following.stores
        self._run_id = run_id
        self._seq = after
        self._last: tuple[str, float] | None = None  # what tells that record from others there
        self._beginnings: list[Record] = []  # seen ones, with which the run began anew
        self._has_more = True  # on record, perhaps
        self._is_over = False
        self._count = FIRST_PORTION
        self._patience = 0.0  # who has been told something can wait
        self._reader: SubscriberBuffer | None = None
        self._left: deque[FeedItem] = deque()  # what was heard, and not looked at
        self._unlisten: Callable[[], None] | None = None
        self._is_here = False

    async def next(self) -> list[Item]:
        """Give what comes next, however long that takes; nothing after the last."""
        while not self._is_over:
            if self._has_more:
                batch = await self._portion()
            elif self._reader is None:
                batch = await self._listen()
            else:
                batch = await self._hear(self._reader)
            if batch:
                return batch
        return []

    def stop_listening(self) -> None:
        unlisten, self._unlisten, self._reader = self._unlisten, None, None
        self._left.clear()
        if unlisten:
            unlisten()

    # On record

    async def _portion(self) -> list[Item]:
        """Give what comes next on record, or where the reader must go back to first.

        It must where the store had lost what it has seen: also if that has come about since, and
        the run has gone on. So what it has seen last is read with what comes after.
        """
        overlap = 1 if self._seq else 0
        asked = self._count + overlap
        live = self._found()
        found = await self._records(live, self._seq - overlap, asked)
        self._patience = PATIENCE_SECONDS
        self._has_more = len(found) == asked
        seen = found[:overlap]
        if overlap and not (seen and await self._is_what_was_seen(seen[0], live)):
            held = await self._still_held(live)
            if held is None or held.seq < self._seq:
                self._set_to(held)
                self._has_more = True
                return [self._reset()]
        new = self._fitting(found[overlap:])
        self._reached([*seen, *new])
        return [*new]

    async def _is_what_was_seen(self, found: Record, live: ActiveRun | None) -> bool:
        """Say whether a record is the one of its seq that the reader has seen, for all it knows."""
        if self._last is not None:
            return self._last == _mark(found)
        if live:  # it came with a number only
            return not live.was_resumed
        return not (await self._stores.log.entry(self._run_id)).may_be_truncated

    async def _still_held(self, live: ActiveRun | None) -> Record | None:
        """Look for the newest record that the reader has seen as it is now.

        Who has seen what a loss took away, or may have, has not seen what came in its place.
        """
        held: Record | None = None
        while True:
            found = await self._records(live, held.seq if held else 0, self._count)
            for record in found:
                is_unseen = _begins_anew(record) and record not in self._beginnings
                if record.seq > self._seq or is_unseen:
                    return held
                held = record
            if len(found) < self._count:
                return held

    async def _records(self, live: ActiveRun | None, after: int, limit: int) -> Sequence[Record]:
        return live.records[after : after + limit] if live else await self._read(after, limit)

    def _found(self) -> ActiveRun | None:
        """Give a run that is owned here, unless its reader has been elsewhere and knows more.

        Nor to one that listens elsewhere: what it missed, a former owner may have missed as well.
        """
        live = None if self._reader else self._following.find(self._run_id)
        return live if live and len(live.records) >= self._seq else None

    async def _read(self, after: int, limit: int) -> Sequence[Record]:
        """Read some of a record; a store that is away is waited for, if the reader can wait."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._patience
        while True:
            try:
                return await self._stores.log.read(self._run_id, after, limit)
            except StoreError:
                if loop.time() >= until or self._following.has_closed:
                    raise
            await asyncio.sleep(_PAUSE_SECONDS)

    def _fitting(self, records: Sequence[Record]) -> Sequence[Record]:
        """Give as many as may be held at once, at least one, and learn how many to ask for."""
        size = 0
        for n, record in enumerate(records):
            size += size_of(record)
            if n and size > MAX_BUFFERED_CHARS:
                self._has_more, self._count = True, n
                return records[:n]
        if self._has_more:
            self._count = min(2 * self._count, LARGEST_PORTION)
        return records

    # Live

    async def _listen(self) -> list[Item]:
        if live := self._found():
            self._is_here, self._reader = True, live.join(self._seq)
            self._unlisten = lambda reader=self._reader: live.leave(reader)
            return []
        reader, elsewhere = SubscriberBuffer(), self._following.elsewhere
        unwatch = await self._stores.feed.subscribe(self._run_id, reader.put)
        elsewhere.add(reader)

        def unlisten() -> None:
            elsewhere.discard(reader)
            unwatch()

        self._is_here, self._reader, self._unlisten = False, reader, unlisten
        self._has_more = True  # what happened before the watch began
        if self._following.has_closed:
            reader.end()
        return []

    async def _hear(self, reader: SubscriberBuffer) -> list[Item]:
        """Give what is new in what is heard next."""
        self._left = self._left or deque(await reader.next())
        if self._left:
            return self._new()
        self.stop_listening()  # nothing comes from there any more
        if self._following.has_closed:
            self._is_over = True
            return [self._handed_over()]
        self._has_more = True
        return []

    def _new(self) -> list[Item]:
        """Give what is new in what was heard; what was missed is to be read from the record."""
        batch: list[Item] = []
        while self._left:
            item = self._left.popleft()
            if isinstance(item, Notice):
                if item.type != HANDED_OVER:  # that another process leaves ends nothing here
                    batch.append(item)
            elif item is None or item.seq > self._seq + 1:
                self._has_more = True
                if self._is_here:  # it is behind; the run may have ended when it has caught up
                    self.stop_listening()
                break
            elif item.seq == self._seq + 1:
                self._reached([item])
                batch.append(item)
            elif _begins_anew(item) and item not in self._beginnings:
                self._seq = item.seq - 1
                batch += [self._reset(), item]
                self._reached([item])
        return batch

    # Where it is

    def _reached(self, records: Sequence[Record]) -> None:
        if records:
            self._set_to(records[-1])
            self._beginnings += filter(_begins_anew, records)

    def _set_to(self, record: Record | None) -> None:
        self._seq = record.seq if record else 0
        self._last = _mark(record) if record else None
        self._is_over = record is not None and is_last(record)

    def _reset(self) -> Notice:
        """Tell that what the reader has seen after where it is now is not on record any more."""
        return Notice("reset", {"epoch": self._stores.log.epoch, "last_seq": self._seq})

    def _handed_over(self) -> Notice:
        about: dict[str, JSON] = {
            "run_id": self._run_id,
            "last_seq": self._seq,
            "message": _GOES_ON,
        }
        return Notice(HANDED_OVER, about)


def _mark(record: Record) -> tuple[str, float]:
    return record.event_type, record.timestamp


def _begins_anew(record: Record) -> bool:
    """Say whether a new owner found that the store had lost what came after."""
    return record.event_type == "owner_changed" and bool(record.metadata.get("lost_tail"))
