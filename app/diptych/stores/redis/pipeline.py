"""Commands on one connection and their replies, which come in the order of the commands.

Nobody waits for a reply before the next command is sent, so a command costs a fraction of what it
costs with a pool of connections (docs/decisions/0045).
"""

import asyncio
import math
from collections import deque
from collections.abc import Sequence
from typing import Any, TypeAlias

from redis.exceptions import ReadOnlyError, ResponseError

from diptych.stores.redis.locator import RawConnection, Unreachable, unreachable
from diptych.stores.redis.write_buffer import Command, WriteBuffer

Reply: TypeAlias = Any


class ConnectionLost(Exception):
    """The connection was lost before the reply came: nobody knows if the command was executed."""


class Pipeline:
    """The commands in flight; on a new connection it begins empty, after `fail_all`."""

    def __init__(self) -> None:
        self._buffer = WriteBuffer()
        self._in_flight: deque[asyncio.Future[Reply] | None] = deque()

    async def execute(self, commands: Sequence[Command]) -> Sequence[Reply]:
        """Send commands together and wait for their replies; an error of Redis is a reply too.

        Raises `ConnectionLost`.
        """
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[Reply]] = [loop.create_future() for _ in commands]
        for command in commands:
            self._buffer.add(command)
        self._in_flight += futures
        replies = [await future for future in futures]
        if any(isinstance(reply, ConnectionLost) for reply in replies):
            raise ConnectionLost
        return replies

    def send(self, command: Command) -> None:
        """Send a command whose reply nobody needs."""
        self._buffer.add(command)
        self._in_flight.append(None)

    async def write_forever(self, connection: RawConnection) -> None:
        """Write what is sent. Raises what the connection raises."""
        await self._buffer.flush_forever(connection)

    async def read_forever(self, connection: RawConnection) -> None:
        """Hand out the replies. Raises `Unreachable`, and what the connection raises."""
        while True:
            try:
                reply = await connection.read_response(timeout=math.inf, disconnect_on_error=False)
            except ReadOnlyError:
                raise Unreachable("the store is a replica, which takes no writes") from None
            except ResponseError as error:
                reply = error
            if not self._in_flight:  # the server says why it refuses us, then hangs up
                raise unreachable(reply) if isinstance(reply, ResponseError) else ConnectionLost
            future = self._in_flight.popleft()
            if future is not None and not future.done():
                future.set_result(reply)

    def fail_all(self) -> None:
        """Tell whoever waits for a reply that the connection was lost."""
        self._buffer.clear()
        in_flight, self._in_flight = self._in_flight, deque()
        for future in in_flight:
            if future is not None and not future.done():
                future.set_result(ConnectionLost())
