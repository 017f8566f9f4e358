"""An agent's server that answers each connection with the next of its responses, and closes it."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import orjson

from diptych.cli.client.remote import RemoteAgent, agent_at
from diptych.net.backoff import Backoff


def response(status: str, body: object) -> bytes:
    text = orjson.dumps(body)
    head = b"HTTP/1.1 %b\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
    return head % (status.encode(), len(text)) + text


def http_error(status: str, message: str) -> bytes:
    return response(status, {"error": {"message": message}})


@dataclass
class FlakyServer:
    """Without responses left, it answers 410."""

    responses: list[bytes]
    paths: list[str] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)

    def received(self, header: str) -> list[str | None]:
        """Give a header of each request, None where a request had none."""
        return [headers.get(header) for headers in self.headers]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().splitlines()
        headers = dict(line.split(": ", 1) for line in lines if line)
        await reader.readexactly(int(headers.get("content-length", 0)))
        self.paths.append(first.split()[1])
        self.headers.append(headers)
        gone = http_error("410 Gone", "it is gone")
        writer.write(self.responses.pop(0) if self.responses else gone)
        await writer.drain()
        writer.close()
        await writer.wait_closed()


class ThreeRetries(Backoff):
    """A backoff without delays, exhausted after three retries."""

    def __init__(self) -> None:
        super().__init__(0.0, 0.0)

    @property
    def is_exhausted(self) -> bool:
        return self.retries >= 3


@asynccontextmanager
async def flaky(*responses: bytes) -> AsyncIterator[tuple[FlakyServer, RemoteAgent]]:
    server = FlakyServer(list(responses))
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    async with listening, agent_at(f"http://127.0.0.1:{port}") as agent:
        agent.new_backoff = ThreeRetries
        yield server, agent
