"""Commands that wait to be written to a connection; what waits at the same time is one write."""

import asyncio
from typing import TypeAlias

from hiredis import pack_command

from diptych.stores.redis.locator import RawConnection

Argument: TypeAlias = str | bytes | int
Command: TypeAlias = tuple[Argument, ...]


class WriteBuffer:
    """Packed commands, in the order in which they were added."""

    def __init__(self) -> None:
        self._packed: list[bytes] = []
        self._is_filled = asyncio.Event()

    def add(self, command: Command) -> None:
        self._packed.append(pack_command(command))  # type: ignore[arg-type] # says 1-tuple
        self._is_filled.set()

    def clear(self) -> None:
        """Drop what was not written."""
        self._packed = []
        self._is_filled.clear()

    async def flush_forever(self, connection: RawConnection) -> None:
        """Write whatever is added. Raises what the connection raises."""
        while True:
            await self._is_filled.wait()
            self._is_filled.clear()
            packed, self._packed = self._packed, []
            await connection.send_packed_command(packed, check_health=False)
