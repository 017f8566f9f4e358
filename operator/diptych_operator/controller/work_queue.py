"""The queue of objects to reconcile.

It works as client-go's: an object is in it once, and is never reconciled by two workers at the same
time. If it changes during its reconcile, it is queued once more afterwards. A failure is retried
with exponential backoff, up to `MAX_DELAY`, and never keeps others waiting.
"""

import asyncio
from collections import deque
from enum import Enum, auto

from diptych_operator.resources.kinds import ObjectKey

FIRST_DELAY = 0.5
MAX_DELAY = 15.0

_MAX_DOUBLINGS = 10


class Stage(Enum):
    """The stage of an object in the queue; one that has none is not in it."""

    QUEUED = auto()
    PROCESSING = auto()
    DIRTY = auto()
    """A worker processes it, and it has changed since: it is queued again afterwards."""


class WorkQueue:
    """The queue; for one event loop. `get` waits until `start` was called."""

    def __init__(self) -> None:
        self._is_started = False
        self._queue: deque[ObjectKey] = deque()
        self._stages: dict[ObjectKey, Stage] = {}
        self._failures: dict[ObjectKey, int] = {}
        self._timers: dict[ObjectKey, asyncio.TimerHandle] = {}
        self._wake_up = asyncio.Event()

    def __len__(self) -> int:
        return len(self._queue)

    def start(self) -> None:
        """Let workers take objects: the cache is complete now."""
        self._is_started = True
        self._wake_up.set()

    def add(self, key: ObjectKey) -> None:
        """Queue an object now."""
        if timer := self._timers.pop(key, None):
            timer.cancel()
        match self._stages.get(key):
            case None:
                self._enter(key, Stage.QUEUED)
            case Stage.PROCESSING:
                self._enter(key, Stage.DIRTY)

    def add_after(self, key: ObjectKey, seconds: float) -> None:
        """Queue an object after a time; a sooner time that was asked for before stands."""
        loop = asyncio.get_running_loop()
        at = loop.time() + seconds
        timer = self._timers.get(key)
        if timer is None or timer.when() > at:
            if timer:
                timer.cancel()
            self._timers[key] = loop.call_at(at, self.add, key)

    async def get(self) -> ObjectKey:
        """Wait for an object to process; `done` or `retry` must follow."""
        while not (self._is_started and self._queue):
            self._wake_up.clear()
            await self._wake_up.wait()
        key = self._queue.popleft()
        self._enter(key, Stage.PROCESSING)
        return key

    def done(self, key: ObjectKey) -> None:
        """End the processing of an object, and forget its failures."""
        self._failures.pop(key, None)
        is_dirty = self._stages.get(key) is Stage.DIRTY
        self._enter(key, Stage.QUEUED if is_dirty else None)

    def retry(self, key: ObjectKey, at_least: float | None = None) -> float:
        """End the processing of an object that failed, and queue it after a delay.

        Returns the delay in seconds: exponential backoff, but `at_least` seconds.
        """
        count = self._failures.get(key, 0)
        self._failures[key] = count + 1
        backoff = min(FIRST_DELAY * 2.0 ** min(count, _MAX_DOUBLINGS), MAX_DELAY)
        delay = max(backoff, at_least or 0.0)
        self._enter(key, None)
        self.add_after(key, delay)
        return delay

    def shut_down(self) -> None:
        """Cancel all timers."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _enter(self, key: ObjectKey, stage: Stage | None) -> None:
        """Change the stage of an object; the only place that does."""
        if stage is None:
            self._stages.pop(key, None)
            return
        self._stages[key] = stage
        if stage is Stage.QUEUED:
            self._queue.append(key)
            self._wake_up.set()
