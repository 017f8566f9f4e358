"""When the events of one run are written: now, or with the next ones."""

import asyncio
from collections.abc import Sequence

from diptych.core.events import Event
from diptych.core.reducer import apply_all
from diptych.core.state import Run
from diptych.ports import Notice
from diptych.runs.inbox import Inbox, TaskCrashed
from diptych.runs.run_log import RunLog

DEFERRED_SECONDS = 0.1  # for which a write is deferred that can be merged with the next
FIRST_DEFERRED_SECONDS = 0.025  # for a run's first write; until then it shows as queued


class RunWriter:
    """A run as it is, and as far as it is on record: writes what happens to it, in order.

    `current` may be ahead of `recorded` by what is not written yet. `inbox` gets what a deferred
    write raises.
    """

    def __init__(self, run: Run, log: RunLog, inbox: Inbox) -> None:
        self.recorded = run
        self.current = run
        self.log = log
        self._inbox = inbox
        self._unwritten: list[Event | Notice] = []  # what happened between the two
        self._lock = asyncio.Lock()
        self._deferred: asyncio.Task[None] | None = None

    def add(self, *items: Event | Notice) -> None:
        """Put items before whatever is written next."""
        self._unwritten += items

    async def write(self, *items: Event | Notice) -> None:
        """Write what was deferred, and then these; one write follows the other."""
        self._unwritten += items
        async with self._lock:
            due, run = list(self._unwritten), self.current
            if due:
                await self.log.append(due)
                del self._unwritten[: len(due)]
                self.recorded = run

    async def record(self, *events: Event) -> None:
        """Apply and write events without carrying out what follows from them."""
        self.current = apply_all(self.current, events)
        await self.write(*events)

    def write_later(self, items: Sequence[Event | Notice], seconds: float) -> None:
        """Defer a write that led to nothing but a question to the model.

        It is merged with the next write, or goes alone after `seconds`. So a slow store delays
        the first word of an answer once, and not at each step before it.
        """
        self._unwritten += items
        if self._deferred is None or self._deferred.done():
            self._deferred = asyncio.create_task(self._write_after(seconds))

    async def wait_written(self) -> None:
        """Let a write that is under way end, so that `recorded` matches the log."""
        async with self._lock:
            pass

    def cancel(self) -> None:
        """Drop the deferred write; what it would have written is left out of the record."""
        if self._deferred:
            self._deferred.cancel()
            self._deferred = None

    async def _write_after(self, seconds: float) -> None:
        try:
            while self._unwritten:  # also what was deferred during the write
                await asyncio.sleep(seconds)
                await self.write()
                seconds = DEFERRED_SECONDS
        except Exception as error:  # noqa: BLE001 - raised again where the run is driven
            self._inbox.put_nowait(TaskCrashed(error))
