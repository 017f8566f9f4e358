"""Server-sent events: framed once, and written together when they arrived together.

WHATWG HTML, section 9.2. The response is our own because it is paid for by every stream: it has
one writer and one listener, and costs a tenth of sse-starlette's, which has a task group, a lock
and a timeout around each write (docs/performance.md). A stream of ours ends with its run, so none
needs to be told of a shutdown.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

PING_SECONDS = 15
DONE = b"data: [DONE]\n\n"
_PING = b": ping\n\n"
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


def frame(payload: object, *, event: str | None = None, seq: int | None = None) -> bytes:
    """Frame one event; `seq` becomes its `id`."""
    head = b""
    if event is not None:
        head += b"event: %b\n" % event.encode()
    if seq is not None:
        head += b"id: %d\n" % seq
    return b"%bdata: %b\n\n" % (head, orjson.dumps(payload))


class SseResponse(Response):
    """Streams frames until they end or the caller hangs up, and closes them either way.

    A comment goes out every 15 s, so that no proxy takes silence for death. `on_gone` is called
    if the caller hung up before the end, once the frames are closed.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        frames: AsyncGenerator[bytes],
        headers: Mapping[str, str] | None = None,
        on_gone: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({**_HEADERS, **(headers or {})})
        self._frames = frames
        self._on_gone = on_gone
        self._is_whole = False
        self._writing = asyncio.Lock()  # a ping that waits for a slow reader must not come last

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        sending = asyncio.create_task(self._send_all(send))
        leaving = asyncio.create_task(_until_gone(receive))
        tasks = (sending, leaving)
        try:
            while not (sending.done() or leaving.done()):
                done, _ = await asyncio.wait(
                    tasks, timeout=PING_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
                if not done:
                    await self._ping(send)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        if not sending.cancelled():
            sending.result()
        elif self._on_gone:
            await self._on_gone()

    async def _send_all(self, send: Send) -> None:
        async with aclosing(self._frames) as frames:
            async for told in frames:
                async with self._writing:
                    await send(_chunk(told))
        async with self._writing:
            await send(_chunk(b"", more=False))
            self._is_whole = True

    async def _ping(self, send: Send) -> None:
        async with self._writing:
            if not self._is_whole:
                await send(_chunk(_PING))


def _chunk(body: bytes, *, more: bool = True) -> dict[str, object]:
    return {"type": "http.response.body", "body": body, "more_body": more}


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
