"""Server-sent events: framed once, and written together when they arrived together.

WHATWG HTML, section 9.2. The response is our own because it is paid for by every stream: it has
one writer and one listener, and costs a tenth of sse-starlette's, which has a task group, a lock
and a timeout around each write (docs/performance.md). A stream of ours ends with its run, so none
needs to be told of a shutdown.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

PING_SECONDS = 15
LAGGED_SECONDS = 300.0  # for which a connection may take nothing, before it is ended
SLICE = 2**15  # bytes that the server is given at once; it takes more when it has sent most of it
DONE = b"data: [DONE]\n\n"
_PING = b": ping\n\n"
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_log = logging.getLogger(__name__)


class SseResponse(Response):
    """Streams frames until they end or the caller hangs up, and closes them either way.

    A comment goes out every 15 s, so that no proxy takes silence for death. A caller that is slow
    is waited for, and no more is asked of `frames` meanwhile. One that takes nothing for five
    minutes counts as gone: its connection is closed without an end of the stream, so that it can
    tell. `on_gone` is called if the caller has gone before the end, once the frames are closed.
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
        self._writing = asyncio.Lock()  # a ping comes between two frames, and never last
        self._written = 0  # how often something was

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
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
                if not (done or await self._ping(send)):
                    _log.warning("lagged: %s was not read for %d s", scope["path"], LAGGED_SECONDS)
                    break
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
                    await self._write(told, send)
        async with self._writing:
            await send(_chunk(b"", more=False))
            self._is_whole = True

    async def _write(self, told: bytes, send: Send) -> None:
        for start in range(0, len(told), SLICE):
            await send(_chunk(told[start : start + SLICE]))
            self._written += 1

    async def _ping(self, send: Send) -> bool:
        """Send a comment; false if neither it nor anything else could be sent for too long."""
        written = -1
        while written != self._written:
            written = self._written
            with suppress(TimeoutError):
                async with asyncio.timeout(LAGGED_SECONDS), self._writing:
                    if not self._is_whole:
                        await send(_chunk(_PING))
                    return True
        return False


def _chunk(body: bytes, *, more: bool = True) -> dict[str, object]:
    return {"type": "http.response.body", "body": body, "more_body": more}


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
