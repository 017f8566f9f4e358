"""An agent's server that answers each connection with the next of its replies, and hangs up."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import orjson

from diptych.cli.client.remote import RemoteAgent, agent_at
from diptych.cli.patience import Patience


def said(status: str, body: object) -> bytes:
    text = orjson.dumps(body)
    return b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (status.encode(), len(text), text)


def refused(status: str, why: str) -> bytes:
    return said(status, {"error": {"message": why}})


@dataclass
class Flaky:
    """When it has no more replies, what is asked for is gone."""

    replies: list[bytes]
    paths: list[str] = field(default_factory=list)
    heads: list[Mapping[str, str]] = field(default_factory=list)

    def sent(self, name: str) -> list[str | None]:
        """Give a header of each request, None where there was none."""
        return [head.get(name) for head in self.heads]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().splitlines()
        head = dict(line.split(": ", 1) for line in lines if line)
        await reader.readexactly(int(head.get("content-length", 0)))
        self.paths.append(first.split()[1])
        self.heads.append(head)
        writer.write(self.replies.pop(0) if self.replies else refused("410 Gone", "it is gone"))
        await writer.drain()
        writer.close()
        await writer.wait_closed()


class Quick(Patience):
    """Waits for nothing, and gives up after three tries without news."""

    tries = 0

    def heard(self, *, is_news: bool) -> None:
        super().heard(is_news=is_news)
        if is_news:
            self.tries = 0

    def delay(self) -> float | None:
        super().delay()
        self.tries += 1
        return 0.0 if self.tries <= 3 else None


@asynccontextmanager
async def flaky(*replies: bytes) -> AsyncIterator[tuple[Flaky, RemoteAgent]]:
    server = Flaky(list(replies))
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    async with listening, agent_at(f"http://127.0.0.1:{port}") as agent:
        agent.patience = Quick
        yield server, agent
