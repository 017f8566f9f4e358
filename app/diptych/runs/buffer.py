"""The bounded queue of items for one subscriber; once it is full, the log is read instead."""

import asyncio
from collections.abc import Sequence

from diptych.core.codec import Record, record_chars
from diptych.ports import FeedItem, Gap, Notice

MAX_BUFFERED_ITEMS = 1_000
MAX_BUFFERED_CHARS = 2**18  # of records, in one buffer and in one batch


class SubscriberBuffer:
    """Items on their way to one subscriber.

    On overflow the content is dropped and a `Gap` takes its place: the subscriber must read the
    log from its own position. So a slow subscriber may miss notices, and never a record.
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
        """Wait for items and give all of them; nothing once the buffer is closed and empty."""
        await self._changed.wait()
        if not self._is_closed:
            self._changed.clear()
        items, self._items, self._chars = self._items, [], 0
        return items
