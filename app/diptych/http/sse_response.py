"""The response that streams server-sent events.

Our own for speed (decision 11): one writer, one listener, a tenth of sse-starlette's cost. A stream
ends with its run or when the run is handed over, so shutdown needs no special case.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from diptych.http.errors import RunFailed
from diptych.http.run_reader import disconnected

PING_SECONDS = 15
WRITE_BYTES = 2**15  # given to the server at once; it takes more when it has sent most of it
_PING = b": ping\n\n"
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class SseResponse(Response):
    """Streams frames until they end or the caller disconnects; closes `frames` either way.

    Headers are sent at once; with `open_after` they wait for the first frame, at most so many
    seconds. `RunFailed` raised before the headers becomes an HTTP error; afterwards `failure_frame`
    turns it into the last frame. A comment every 15 s keeps proxies from closing the connection. A
    slow caller pauses `frames`; the server closes connections that read nothing
    (`serve.http_protocol`). If the caller disconnects early, `on_disconnect` is called after
    `frames` is closed.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        frames: AsyncGenerator[bytes],
        headers: Mapping[str, str] | None = None,
        on_disconnect: Callable[[], Awaitable[None]] | None = None,
        *,
        open_after: float = 0.0,
        failure_frame: Callable[[RunFailed], bytes] | None = None,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({**_HEADERS, **(headers or {})})
        self._frames = frames
        self._on_disconnect = on_disconnect
        self._open_after = open_after
        self._failure_frame = failure_frame
        self._is_open = False
        self._has_ended = False
        self._send_lock = asyncio.Lock()  # a ping comes between two frames, and never last

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope
        writer = asyncio.create_task(self._write_all(send))
        listener = asyncio.create_task(disconnected(receive))
        tasks = (writer, listener)
        until_ping = self._open_after or PING_SECONDS
        try:
            while not (writer.done() or listener.done()):
                done, _ = await asyncio.wait(
                    tasks, timeout=until_ping, return_when=asyncio.FIRST_COMPLETED
                )
                if not done:
                    await self._ping(send)
                    until_ping = PING_SECONDS
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        if not writer.cancelled():
            writer.result()
        elif self._on_disconnect:
            await self._on_disconnect()

    async def _write_all(self, send: Send) -> None:
        """Write the frames; a frame that is ready is sent together with the headers."""
        async with aclosing(self._frames) as frames:
            if not self._open_after:
                await self._open(send)
            try:
                async for chunk in frames:
                    await self._write(chunk, send)
            except RunFailed as error:
                if not (self._is_open and self._failure_frame):
                    raise
                await self._write(self._failure_frame(error), send)
        async with self._send_lock:
            await self._open(send)
            await send(_body(b"", more=False))
            self._has_ended = True

    async def _write(self, chunk: bytes, send: Send) -> None:
        async with self._send_lock:
            await self._open(send)
            for start in range(0, len(chunk), WRITE_BYTES):
                await send(_body(chunk[start : start + WRITE_BYTES]))

    async def _open(self, send: Send) -> None:
        """Send the headers, once."""
        if self._is_open:
            return
        self._is_open = True
        await send(
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            }
        )

    async def _ping(self, send: Send) -> None:
        """Send a comment, after the headers, unless a frame is being sent."""
        async with self._send_lock:
            if not self._has_ended:
                await self._open(send)
                await send(_body(_PING))


def _body(content: bytes, *, more: bool = True) -> dict[str, object]:
    return {"type": "http.response.body", "body": content, "more_body": more}
