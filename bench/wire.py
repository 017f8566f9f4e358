"""The least HTTP/1.1 that a server can do: what the instant model and the instant tools run on.

It costs a few dozen microseconds per request, so that what is measured is the agent. It believes
its clients: requests have a Content-Length, and are not pipelined.
"""

import asyncio
import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import uvloop


@dataclass(frozen=True, slots=True)
class Request:
    """One request: its head and body as they came, and where the reply goes."""

    head: bytes
    body: bytes
    write: Callable[[bytes], None]
    is_closing: Callable[[], bool]


Respond = Callable[[Request], None]


def reply(body: bytes, status: bytes = b"200 OK", kind: bytes = b"application/json") -> bytes:
    """Give a whole response with a known length."""
    head = b"HTTP/1.1 %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n"
    return head % (status, kind, len(body)) + body


def chunk(body: bytes) -> bytes:
    """Give one chunk of a chunked body; an empty one ends it."""
    return b"%x\r\n%b\r\n" % (len(body), body)


class Server(asyncio.Protocol):
    """Hands each request to `respond` as soon as it is whole."""

    def __init__(self, respond: Respond) -> None:
        self._respond = respond
        self._held = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        held = self._held + data if self._held else data
        head, blank, rest = held.partition(b"\r\n\r\n")
        if not blank or len(rest) < (size := _length(head)):
            self._held = held
            return
        self._held = rest[size:]
        transport = self._transport
        self._respond(Request(head, rest[:size], transport.write, transport.is_closing))


def run(respond: Respond) -> None:
    """Serve on a free port of loopback until killed; the port is the first line on stdout."""
    gc.freeze()
    uvloop.run(_serve(respond))


async def _serve(respond: Respond) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Server(respond), "127.0.0.1", 0, backlog=2048)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


def _length(head: bytes) -> int:
    lowered = head.lower()
    at = lowered.find(b"content-length:")
    if at < 0:
        return 0
    return int(lowered[at + 15 :].split(b"\r\n", 1)[0])
