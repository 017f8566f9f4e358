"""What both connections to the store need: commands on their way out, and pauses before a retry."""

import asyncio
import random
from typing import TypeAlias

from hiredis import pack_command

from diptych.adapters.redis.locator import Wire

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0  # seconds

Argument: TypeAlias = str | bytes | int
Command: TypeAlias = tuple[Argument, ...]


class Outbox:
    """Commands that wait to be written; what is put in at the same time is one write."""

    def __init__(self) -> None:
        self._packed: list[bytes] = []
        self._filled = asyncio.Event()

    def put(self, command: Command) -> None:
        self._packed.append(pack_command(command))  # type: ignore[arg-type] # says 1-tuple
        self._filled.set()

    def clear(self) -> None:
        """Forget what was not written."""
        self._packed = []
        self._filled.clear()

    async def write(self, wire: Wire) -> None:
        """Write to a connection, for ever. Raises what the connection raises."""
        while True:
            await self._filled.wait()
            self._filled.clear()
            packed, self._packed = self._packed, []
            await wire.send_packed_command(packed, check_health=False)


class Pauses:
    """Pauses that grow, and that are not equal, lest many come back at the same moment."""

    def __init__(self) -> None:
        self._next = FIRST_PAUSE

    def begin_anew(self) -> None:
        """Let the next pause be short."""
        self._next = FIRST_PAUSE

    async def pause(self) -> None:
        seconds = self._next * random.uniform(0.75, 1.25)  # noqa: S311 - nothing secret
        self._next = min(LONGEST_PAUSE, self._next * 2)
        await asyncio.sleep(seconds)


async def end(task: asyncio.Task[None] | None) -> None:
    """Cancel a task until it has ended.

    Once may not be enough: a task group of Python 3.11 forgets that it was cancelled, if one of
    its tasks fails at the same moment.
    """
    while task is not None and not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=0.1)
