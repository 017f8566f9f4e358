"""A client that asks for streams and costs next to nothing: raw asyncio, one socket per asker."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import cast

from bench.model import MARK

_END = b"0\r\n\r\n"


@dataclass(slots=True)
class Timing:
    """What one request took, in seconds, to its first token and to its end."""

    first: float
    whole: float


@dataclass(slots=True)
class Load:
    """What a round gave."""

    timings: list[Timing] = field(default_factory=list)
    seconds: float = 0.0


class RunCaller(asyncio.Protocol):
    """Asks one question after another on one connection."""

    def __init__(self, request: bytes) -> None:
        self.request = request
        self._done: asyncio.Future[Timing] | None = None
        self._received = bytearray()
        self._asked_at = 0.0
        self._first_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    async def ask(self) -> Timing:
        self._done = asyncio.get_running_loop().create_future()
        self._received.clear()
        self._first_at = 0.0
        self._asked_at = time.perf_counter()
        self._transport.write(self.request)
        return await self._done

    def close(self) -> None:
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        if not self._first_at and MARK in data:
            self._first_at = time.perf_counter()
        self._received += data
        if self._done is not None and self._received.endswith(_END):
            self._end(self._done)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(exc or ConnectionError("the agent hung up"))

    def _end(self, done: "asyncio.Future[Timing]") -> None:
        now = time.perf_counter()
        received = bytes(self._received)
        if not received.startswith(b"HTTP/1.1 200") or b"data: [DONE]\n\n" not in received:
            done.set_exception(RuntimeError(received[:2000].decode(errors="replace")))
        elif (tokens := received.count(MARK)) < 200:
            done.set_exception(RuntimeError(f"{tokens} tokens instead of 200"))
        else:
            done.set_result(Timing(self._first_at - self._asked_at, now - self._asked_at))


def question(rounds: int, calls: int, pace: int = 0) -> bytes:
    """Give the whole request, as it goes over the wire (see `bench.model` for its words)."""
    text = f"rounds={rounds} calls={calls} pace={pace} What does the echo say?"
    body = b'{"stream":true,"messages":[{"role":"user","content":"%b"}]}' % text.encode()
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n"
        b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    )


async def load(port: int, request: bytes, clients: int, total: int) -> Load:
    """Ask `total` times with so many clients at once, each asking again as it is answered."""
    loop = asyncio.get_running_loop()
    askers = []
    for _ in range(clients):
        _, asker = await loop.create_connection(lambda: RunCaller(request), "127.0.0.1", port)
        askers.append(asker)
    given = Load()
    left = total

    async def keep_asking(asker: RunCaller) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            given.timings.append(await asker.ask())

    started = time.perf_counter()
    await asyncio.gather(*map(keep_asking, askers))
    given.seconds = time.perf_counter() - started
    for asker in askers:
        asker.close()
    return given
