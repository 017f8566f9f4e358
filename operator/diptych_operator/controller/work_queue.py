"""The queue of Agents to reconcile.

It works as client-go's: an Agent is in it once, and is never reconciled by two workers at the same
time. If it changes during its reconcile, it is queued once more afterwards. A failure is retried
with exponential backoff, up to `MAX_DELAY`, and never keeps other Agents waiting.
"""

import asyncio
from collections import deque
from enum import Enum, auto

from diptych_operator.resources.kinds import NamespacedName

FIRST_DELAY = 0.5
MAX_DELAY = 15.0

_MAX_DOUBLINGS = 10


class Stage(Enum):
    """The stage of an Agent in the queue; an Agent that has none is not in it."""

    QUEUED = auto()
    PROCESSING = auto()
    DIRTY = auto()
    """A worker processes it, and it has changed since: it is queued again afterwards."""


class WorkQueue:
    """The queue; for one event loop. `get` waits until `start` was called."""

    def __init__(self) -> None:
        self._is_started = False
        self._queue: deque[NamespacedName] = deque()
        self._stages: dict[NamespacedName, Stage] = {}
        self._failures: dict[NamespacedName, int] = {}
        self._timers: dict[NamespacedName, asyncio.TimerHandle] = {}
        self._wake_up = asyncio.Event()

    def __len__(self) -> int:
        return len(self._queue)

    def start(self) -> None:
        """Let workers take Agents: the cache is complete now."""
        self._is_started = True
        self._wake_up.set()

    def add(self, name: NamespacedName) -> None:
        """Queue an Agent now."""
        if timer := self._timers.pop(name, None):
            timer.cancel()
        match self._stages.get(name):
            case None:
                self._enter(name, Stage.QUEUED)
            case Stage.PROCESSING:
                self._enter(name, Stage.DIRTY)

    def add_after(self, name: NamespacedName, seconds: float) -> None:
        """Queue an Agent after a time; a sooner time that was asked for before stands."""
        loop = asyncio.get_running_loop()
        at = loop.time() + seconds
        timer = self._timers.get(name)
        if timer is None or timer.when() > at:
            if timer:
                timer.cancel()
            self._timers[name] = loop.call_at(at, self.add, name)

    async def get(self) -> NamespacedName:
        """Wait for an Agent to process; `done` or `retry` must follow."""
        while not (self._is_started and self._queue):
            self._wake_up.clear()
            await self._wake_up.wait()
        name = self._queue.popleft()
        self._enter(name, Stage.PROCESSING)
        return name

    def done(self, name: NamespacedName) -> None:
        """End the processing of an Agent, and forget its failures."""
        self._failures.pop(name, None)
        is_dirty = self._stages.get(name) is Stage.DIRTY
        self._enter(name, Stage.QUEUED if is_dirty else None)

    def retry(self, name: NamespacedName, at_least: float | None = None) -> float:
        """End the processing of an Agent that failed, and queue it after a delay.

        Returns the delay in seconds: exponential backoff, but `at_least` seconds.
        """
        count = self._failures.get(name, 0)
        self._failures[name] = count + 1
        backoff = min(FIRST_DELAY * 2.0 ** min(count, _MAX_DOUBLINGS), MAX_DELAY)
        delay = max(backoff, at_least or 0.0)
        self._enter(name, None)
        self.add_after(name, delay)
        return delay

    def shut_down(self) -> None:
        """Cancel all timers."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _enter(self, name: NamespacedName, stage: Stage | None) -> None:
        """Change the stage of an Agent; the only place that does."""
        if stage is None:
            self._stages.pop(name, None)
            return
        self._stages[name] = stage
        if stage is Stage.QUEUED:
            self._queue.append(name)
            self._wake_up.set()
