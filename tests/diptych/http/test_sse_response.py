"""The head of a stream, and its first frame."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from diptych.http.sse_response import SseResponse


async def test_a_frame_that_is_there_goes_out_with_the_head() -> None:
    """Both in one turn of the loop, so that a connection sends them in one piece."""
    turns = 0
    sent: list[tuple[str, int]] = []

    def count() -> None:
        nonlocal turns
        turns += 1
        asyncio.get_running_loop().call_soon(count)

    async def frames() -> AsyncGenerator[bytes]:
        yield b"data: 1\n\n"

    async def send(message: Any) -> None:
        sent.append((message["type"], turns))

    async def receive() -> Any:
        await asyncio.Event().wait()

    asyncio.get_running_loop().call_soon(count)
    await SseResponse(frames())({"type": "http"}, receive, send)
    (start, first), (body, second) = sent[:2]
    assert (start, body) == ("http.response.start", "http.response.body")
    assert first == second
