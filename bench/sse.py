"""What a streamed response costs beside its bytes: three ways to write server-sent events.

Measured in this process against a server that does nothing, so only the way itself counts; the best
of many rounds, since whatever else the machine does can only add.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from sse_starlette import EventSourceResponse
from starlette.responses import Response, StreamingResponse

from bench.report import table
from diptych.http.sse import SseResponse

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
    "diptych.http.sse": SseResponse,
    "sse-starlette": _by_sse_starlette,
    "Starlette StreamingResponse (no pings)": _by_starlette,
}


async def measure() -> str:
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
