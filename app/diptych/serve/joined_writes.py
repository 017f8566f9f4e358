"""Joins writes to a connection within one turn of the event loop. uvicorn writes head, body parts
and end separately; each system call wakes the peer, which dominates the cost of a short response
(decision 191).
"""

import asyncio
from typing import Any

MAX_JOINED = 2**15  # bytes; what has become so much is sent at once


class JoinedWrites:
    """A transport that sends joined writes before the loop's next turn.

    `close` and `abort` flush first; everything else is the wrapped transport's.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._pieces: list[bytes] = []
        self._size = 0

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any attribute of a transport
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._pieces:
            self._loop.call_soon(self._send)
        self._pieces.append(data)
        self._size += len(data)
        if self._size >= MAX_JOINED:
            self._send()

    def get_write_buffer_size(self) -> int:
        return self._size + self._transport.get_write_buffer_size()

    def close(self) -> None:
        self._send()
        self._transport.close()

    def abort(self) -> None:
        self._send()
        self._transport.abort()

    def _send(self) -> None:
        pieces, self._pieces, self._size = self._pieces, [], 0
        if pieces and not self._transport.is_closing():
            self._transport.write(b"".join(pieces))
