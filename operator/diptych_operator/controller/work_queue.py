"""Which agents are due to be reconciled, and when: a queue in which a name stands once.

What becomes due while it is being worked on is due again afterwards. What failed comes back later
and later, up to `MAX_DELAY`; nobody is tried in a hot loop.
"""

import asyncio
from collections import deque

from diptych_operator.resources.kinds import Name

FIRST_DELAY = 0.5
MAX_DELAY = 30.0


class Due:
    """The queue; for one event loop. Nothing is taken from it before it is opened."""

    def __init__(self) -> None:
        self._is_open = False
        self._waiting: deque[Name] = deque()
        self._queued: set[Name] = set()
        self._in_work: set[Name] = set()
        self._again: set[Name] = set()
        self._failures: dict[Name, int] = {}
        self._timers: dict[Name, asyncio.TimerHandle] = {}
        self._arrived = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def open(self) -> None:
        """Let work begin: the whole picture is known now."""
        self._is_open = True
        self._arrived.set()

    def add(self, name: Name) -> None:
        """Make an agent due now."""
        if timer := self._timers.pop(name, None):
            timer.cancel()
        if name in self._in_work:
            self._again.add(name)
        elif name not in self._queued:
            self._queued.add(name)
            self._waiting.append(name)
            self._arrived.set()

    def add_later(self, name: Name, seconds: float) -> None:
        """Make an agent due after a time, unless it is due before."""
        loop = asyncio.get_running_loop()
        at = loop.time() + seconds
        timer = self._timers.get(name)
        if timer is None or timer.when() > at:
            if timer:
                timer.cancel()
            self._timers[name] = loop.call_at(at, self._ripe, name)

    async def take(self) -> Name:
        """Wait for an agent that is due; `done` or `failed` must follow."""
        while not (self._is_open and self._waiting):
            self._arrived.clear()
            await self._arrived.wait()
        name = self._waiting.popleft()
        self._queued.discard(name)
        self._in_work.add(name)
        return name

    def done(self, name: Name) -> None:
        """Say that an agent has been dealt with."""
        self._failures.pop(name, None)
        self._release(name)

    def failed(self, name: Name, seconds: float | None = None) -> float:
        """Say that an agent must be tried again; give the delay. `seconds` is the least."""
        count = self._failures.get(name, 0)
        self._failures[name] = count + 1
        delay = max(min(FIRST_DELAY * 2.0 ** min(count, 10), MAX_DELAY), seconds or 0.0)
        self._again.discard(name)
        self._release(name)
        self.add_later(name, delay)
        return delay

    def close(self) -> None:
        """Cancel all timers."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _ripe(self, name: Name) -> None:
        self._timers.pop(name, None)
        self.add(name)

    def _release(self, name: Name) -> None:
        self._in_work.discard(name)
        if name in self._again:
            self._again.discard(name)
            self.add(name)
