"""How long a delegation may take: the time stands still while a call below waits for approval.

The caller's own deadlines hold all the same: whoever has them ends the run, and so the delegation.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class TimeLimit:
    """A time limit that can stand still."""

    def __init__(self) -> None:
        self._limit: asyncio.Timeout | None = None
        self._left: float | None = None  # seconds, while it stands still

    @asynccontextmanager
    async def within(self, seconds: float) -> AsyncIterator[None]:
        """Raise `TimeoutError` if the block takes longer, not counting what stood still."""
        try:
            async with asyncio.timeout(seconds) as self._limit:
                yield
        finally:
            self._limit = None  # a decision may be heard of later, by the answer to a cancel

    def set_paused(self, is_paused: bool) -> None:
        """Stand still, or go on."""
        if self._limit is None or is_paused == (self._left is not None):
            return
        now = asyncio.get_running_loop().time()
        if is_paused:
            self._left = max(0.0, (self._limit.when() or now) - now)
            self._limit.reschedule(None)
        else:
            self._limit.reschedule(now + (self._left or 0.0))
            self._left = None
