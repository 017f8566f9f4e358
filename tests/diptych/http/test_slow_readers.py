"""Readers that take a stream slowly, or not at all (faults.md C4), over sockets."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from support.face import Face, Speaker, face
from support.stack import listening, until

from diptych.http import sse_response as sse
from diptych.serve import http_protocol
from diptych.serve.connections import Connections
from diptych.serve.http_protocol import BoundedProtocol

CANCEL = {"on_disconnect": "cancel"}
LARGE = "".join(map("{:09d}".format, range(330_000)))  # no connection takes it whole at once


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "PING_SECONDS", 0.05)
    monkeypatch.setattr(http_protocol, "STALL_SECONDS", 0.2)


class Reader:
    """A client that reads when it is told to, over a connection with little room."""

    def __init__(self) -> None:
        self.got = bytearray()
        self.has_ended = False
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.setblocking(False)

    async def ask(self, url: str, path: str) -> None:
        loop = asyncio.get_running_loop()
        port = int(url.rpartition(":")[2])
        await loop.sock_connect(self._socket, ("127.0.0.1", port))
        asked = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        await loop.sock_sendall(self._socket, asked.encode())

    async def read(self, size: int = 2**20) -> int:
        """Read something, or find the end."""
        piece = await asyncio.get_running_loop().sock_recv(self._socket, size)
        self.got += piece
        self.has_ended = not piece
        return len(piece)

    async def read_to_end(self) -> None:
        while not self.has_ended:
            await self.read()

    @property
    def frames(self) -> list[str]:
        """Give the frames that have come whole."""
        _, _, body = self.got.decode().partition("\r\n\r\n")
        return [f for f in _unchunked(body).split("\n\n")[:-1] if f != ": ping"]

    def close(self) -> None:
        self._socket.close()


def _unchunked(body: str) -> str:
    """Take the chunks' sizes out; what is told here has no line of its own that looks so."""
    whole, rest = "", body
    while rest:
        size, _, rest = rest.partition("\r\n")
        length = int(size or "0", 16)
        whole, rest = whole + rest[:length], rest[length + 2 :]
    return whole


@asynccontextmanager
async def stuck(
    path_of: Callable[[str], str], **body: Any
) -> AsyncIterator[tuple[Face, str, Reader]]:
    """Have a run with a large answer that goes on, and a reader that takes little of it."""
    model, reader = Speaker(*[LARGE] * 3, ..., "end"), Reader()
    protocol = partial(BoundedProtocol, Connections())
    async with face(model=model) as helper, listening(helper.app, protocol=protocol) as url:
        run_id = (await helper.http.post("/v1/runs", json={"input": "hi", **body})).json()["id"]
        await reader.ask(url, path_of(run_id))
        try:
            while reader.got.count(b"event:") < 2:
                await reader.read(512)
            # With CANCEL the run may be over first: its reader is cut while the model still writes.
            await until(lambda: model.has_stopped.is_set() or not helper.house.runs.active_count)
            yield helper, run_id, reader
        finally:
            reader.close()


def events_of(run_id: str) -> str:
    return f"/v1/runs/{run_id}/events"


async def test_a_reader_that_takes_nothing_is_cut_and_goes_on_after_its_last_id(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with stuck(events_of) as (helper, run_id, reader):
        runs = helper.house.runs
        await until(lambda: not runs.has_subscribers(run_id))
        assert any(line.startswith("lagged") for line in caplog.messages)
        assert (await runs.entry(run_id)).status == "running"
        async with asyncio.timeout(10):
            await reader.read_to_end()  # what was on its way, and then the end of the connection
        first = reader.frames
        helper.house.model.go.set()
        last = next(line for line in first[-1].split("\n") if line.startswith("id: "))[4:]
        headers = {"Last-Event-ID": last}
        rest = (await helper.http.get(events_of(run_id), headers=headers)).text
        whole = (await helper.http.get(events_of(run_id))).text
        told = "".join(f"{frame}\n\n" for frame in first) + rest
        assert told.replace(": ping\n\n", "") == whole.replace(": ping\n\n", "")
        assert "event: completed" in rest
        assert not reader.got.endswith(b"0\r\n\r\n")  # as if the stream were whole


async def test_a_run_that_is_to_end_with_its_readers_ends_when_the_last_takes_nothing() -> None:
    async with stuck(events_of, **CANCEL) as (helper, run_id, _):
        runs = helper.house.runs
        await until(lambda: runs.active_count == 0)
        assert (await runs.entry(run_id)).status == "aborted"
