"""Writes what a runner decides: in order, and now and then deferred so that writes merge.

Not here: what is decided and what follows from it (`runner`), the record itself (`run_log`).
"""

import asyncio
from collections.abc import Callable, Sequence

from diptych.loop.events import Event
from diptych.loop.reducer import apply_all
from diptych.loop.state import Run
from diptych.ports import Notice
from diptych.runtime.run_log import RunLog

DEFERRED_SECONDS = 0.1  # for which a write is deferred that can be merged with the next
FIRST_DEFERRED_SECONDS = 0.025  # for a run's first write; until then it shows as queued


class RunWriter:
    """A run as it is decided, and as far as it is on record.

    `decided` may be ahead of `run` by what is not written yet. `on_error` gets what a deferred
    write raises.
    """

    def __init__(self, run: Run, log: RunLog, on_error: Callable[[Exception], None]) -> None:
        self.run = run
        self.decided = run
        self._log = log
        self._on_error = on_error
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
            due, run = list(self._unwritten), self.decided
            if due:
                await self._log.append(due)
                del self._unwritten[: len(due)]
                self.run = run

    async def record(self, *events: Event) -> None:
        """Apply and write events without carrying out what follows from them."""
        self.decided = apply_all(self.decided, events)
        await self.write(*events)

    def write_later(self, items: Sequence[Event | Notice], seconds: float) -> None:
        """Defer a write that led to nothing but a question to the model.

        It is merged with the next write, or goes alone after `seconds`. So a slow store delays
        the first word of an answer once, and not at each step before it.
        """
        self._unwritten += items
        if self._deferred is None or self._deferred.done():
            self._deferred = asyncio.create_task(self._write_after(seconds))

    async def finish(self) -> None:
        """Let a write that is under way end, so that `run` matches the log."""
        async with self._lock:
            pass

    def cancel(self) -> None:
        """Drop the deferred write; what it would have written is left out of the record."""
        if self._deferred:
            self._deferred.cancel()

    async def _write_after(self, seconds: float) -> None:
        try:
            while self._unwritten:  # also what was deferred during the write
                await asyncio.sleep(seconds)
                await self.write()
                seconds = DEFERRED_SECONDS
        except Exception as error:  # noqa: BLE001 - raised again where the run is driven
            self._on_error(error)
