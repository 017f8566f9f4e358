"""Reads records for a request piece by piece, and counts what it then holds.

Nobody knows how large the records of a run are before they are read. So a few are read at first,
and more at a time while they are small.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

from diptych.core.codec import Record
from diptych.net.memory_budget import record_size

FIRST_PAGE = 16
MAX_PAGE = 1_000
PAGE_BYTES = 2**20  # estimated, up to which the next page is twice as long

Read = Callable[[int, int], Awaitable[Sequence[Record]]]
"""Gives the records after a seq, at most so many."""


async def pages(read: Read, after: int = 0) -> AsyncGenerator[tuple[Sequence[Record], int]]:
    """Give the records after a seq, each page with its size in bytes, estimated."""
    count = FIRST_PAGE
    while True:
        page = await read(after, count)
        size = sum(map(record_size, page))
        if page:
            yield page, size
        if len(page) < count:
            return
        after = page[-1].seq
        count = next_count(count, size)


async def pages_back(read: Read, end: int) -> AsyncGenerator[tuple[Sequence[Record], int]]:
    """Give the records up to a seq, the last page first; see `pages`."""
    count = FIRST_PAGE
    while end > 0:
        start = max(0, end - count)
        page = await read(start, end - start)
        size = sum(map(record_size, page))
        yield page, size
        end, count = start, next_count(count, size)


def next_count(count: int, size: int) -> int:
    """Say how many records to read next, after so many were of this size."""
    return min(2 * count, MAX_PAGE) if size < PAGE_BYTES else max(1, count // 2)
