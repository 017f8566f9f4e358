"""A model server on a raw socket that answers as one `Habit` of the table has it."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

End = Literal["close", "reset", "hang"]
JSON_TYPE = "application/json"
SSE_TYPE = "text/event-stream"


@dataclass(frozen=True)
class Answer:
    """What a server writes: a status, a body in pieces, and how the connection ends.

    With a `pause` between two pieces, in seconds, no read gets both.
    """

    pieces: tuple[bytes, ...]
    status: int = 200
    content_type: str | None = JSON_TYPE
    headers: Mapping[str, str] = field(default_factory=dict)
    end: End = "close"
    pause: float = 0


Respond = Callable[[Mapping[str, Any]], Answer]
"""Answers a request's body."""


@dataclass
class UpstreamServer:
    """Answers every request by one function, and remembers what it was asked.

    Paths of `pages` are answered so, whatever the method; any other GET finds nothing.
    """

    respond: Respond
    pages: dict[str, Answer] = field(default_factory=dict)
    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
            length = int(headers.get("content-length", 0))
            body = orjson.loads(await reader.readexactly(length)) if length else {}
            method, path, _ = head[0].split()
            self.paths.append(path)
            self.headers.append(headers)
            if path in self.pages or method == "GET":
                answer = self.pages.get(path, Answer((b"{}",), 404))
            else:
                self.requests.append(body)
                answer = self.respond(body)
            await self._write(answer, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _write(
        self, answer: Answer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        # The end of the connection is the end of the body: nothing but what the body itself says
        # tells a whole answer from one that was cut.
        lines = [f"HTTP/1.1 {answer.status} Word", "Connection: close"]
        if answer.content_type:
            lines.append(f"Content-Type: {answer.content_type}")
        lines += [f"{name}: {value}" for name, value in answer.headers.items()]
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        for piece in answer.pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(answer.pause)
        if answer.end == "reset":
            writer.transport.abort()
        elif answer.end == "hang":
            await reader.read()


@contextmanager
def upstream_in_thread(respond: Respond) -> Iterator[UpstreamServer]:
    """Serve from a thread of its own, for what runs an event loop itself."""
    begun: Future[UpstreamServer] = Future()
    loop, ended = asyncio.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        async with upstream_server(respond) as there:
            begun.set_result(there)
            await ended.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=[serve()])
    thread.start()
    try:
        yield begun.result(5)
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()


@asynccontextmanager
async def upstream_server(respond: Respond) -> AsyncIterator[UpstreamServer]:
    """Serve on a free port of loopback."""
    there = UpstreamServer(respond)
    tasks: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.create_task(there.serve(reader, writer)))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    there.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield there
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
