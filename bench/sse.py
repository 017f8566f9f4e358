"""What server-sent events cost beside their bytes: three ways to write them, two to read them.

Measured in this process, without sockets. The best of many rounds counts, since whatever else the
machine does can only add; within a round each way is measured in turn.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import httpx2
from sse_starlette import EventSourceResponse
from starlette.responses import Response, StreamingResponse

from bench.report import table
from diptych.http.sse_response import SseResponse
from diptych.net.sse import SseParser

Frames = AsyncIterator[bytes]
FRAME = b'data: {"choices":[{"index":0,"delta":{"content":"word "},"finish_reason":null}]}\n\n'
WRITES = 2_000  # of one measurement
ROUNDS = 25
_SCOPE = {"type": "http", "asgi": {"spec_version": "2.3"}, "method": "POST", "headers": []}


def _by_starlette(frames: Frames) -> Response:
    return StreamingResponse(frames, media_type="text/event-stream")


def _by_sse_starlette(frames: Frames) -> Response:
    return EventSourceResponse(frames, ping=15, sep="\n")


WAYS: dict[str, Callable[[Frames], Response]] = {
    "SseResponse": SseResponse,
    "sse-starlette": _by_sse_starlette,
    "Starlette StreamingResponse (no pings)": _by_starlette,
}


async def measure() -> str:
    """Give the tables of writing and of reading."""
    return f"{await _writing()}\n\n{_reading()}"


async def _writing() -> str:
    """Give a table of microseconds per response, with 3 writes and with 200."""
    taken: dict[tuple[str, int], list[float]] = {}
    for _ in range(ROUNDS):
        for name, way in WAYS.items():
            for writes in (3, 200):
                one = await _microseconds(way, writes)
                taken.setdefault((name, writes), []).append(one)
    rows = [[name, *(f"{min(taken[name, writes]):.0f}" for writes in (3, 200))] for name in WAYS]
    return table(["µs per response", "3 writes", "200 writes"], rows)


async def _microseconds(way: Callable[[Frames], Response], writes: int) -> float:
    times = WRITES // writes
    begun = time.perf_counter()
    for _ in range(times):
        await way(_frames(writes))(_SCOPE, _receive, _send)
    return (time.perf_counter() - begun) / times * 1e6


async def _frames(count: int) -> Frames:
    for _ in range(count):
        yield FRAME


async def _receive() -> dict[str, Any]:
    await asyncio.get_running_loop().create_future()
    raise AssertionError


async def _send(message: Any) -> None:
    del message


# Reading

EVENTS = 5_000


def _by_diptych(chunks: Sequence[bytes]) -> int:
    parser = SseParser()
    return sum(len(parser.feed(chunk)) for chunk in chunks)


def _by_httpx2(chunks: Sequence[bytes]) -> int:
    headers = {"content-type": "text/event-stream"}
    request = httpx2.Request("GET", "http://localhost")
    response = httpx2.Response(200, headers=headers, content=iter(chunks), request=request)
    return sum(1 for _ in httpx2.EventSource(response))


READERS: dict[str, Callable[[Sequence[bytes]], int]] = {
    "diptych.net.sse": _by_diptych,
    "httpx2.EventSource": _by_httpx2,
}


def _reading() -> str:
    """Give a table of microseconds per event, for events that come one by one and together."""
    whole = FRAME * EVENTS
    cases = [[FRAME] * EVENTS, [whole[at : at + 2**14] for at in range(0, len(whole), 2**14)]]
    taken: dict[tuple[str, int], list[float]] = {}
    for _ in range(ROUNDS):
        for name, read in READERS.items():
            for n, chunks in enumerate(cases):
                begun = time.perf_counter()
                assert read(chunks) == EVENTS
                one = (time.perf_counter() - begun) / EVENTS * 1e6
                taken.setdefault((name, n), []).append(one)
    rows = [[name, *(f"{min(taken[name, n]):.2f}" for n in (0, 1))] for name in READERS]
    return table(["µs per event read", "one by one", "16 KiB at once"], rows)
