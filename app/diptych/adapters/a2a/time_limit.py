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
        async with asyncio.timeout(seconds) as self._limit:
            yield

    def stand_still(self, *, awaits_decision: bool) -> None:
        """Stop, or go on."""
        if self._limit is None or awaits_decision == (self._left is not None):
            return
        now = asyncio.get_running_loop().time()
        if awaits_decision:
            self._left = max(0.0, (self._limit.when() or now) - now)
            self._limit.reschedule(None)
        else:
            self._limit.reschedule(now + (self._left or 0.0))
            self._left = None
