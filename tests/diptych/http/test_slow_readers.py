"""Readers that take a stream slowly, or not at all (faults.md C4): doubles and sockets."""

import asyncio
import gc
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from support.face import Face, Speaker, face
from support.guarded import guarded
from support.stack import frames, listening, until

from diptych.http import runs as event_stream
from diptych.http import sse_response as sse
from diptych.http.runs import event_frames
from diptych.http.sse_response import WRITE_BYTES, SseResponse
from diptych.serve import http_protocol
from diptych.serve.connections import Connections
from diptych.serve.http_protocol import BoundedProtocol

CANCEL = {"on_disconnect": "cancel"}
SCOPE = {"type": "http", "path": "/v1/runs/run-1/events"}
LARGE = "".join(map("{:09d}".format, range(330_000)))  # no connection takes it whole at once


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "PING_SECONDS", 0.05)
    monkeypatch.setattr(http_protocol, "STALL_SECONDS", 0.2)


# The response


class Connection:
    """A server's side of a connection that takes a message only when it is allowed to."""

    def __init__(self, allowed: int = 1) -> None:
        self.taken: list[bytes] = []
        self.allowed = asyncio.Semaphore(allowed)

    async def send(self, message: Any) -> None:
        await self.allowed.acquire()
        self.taken.append(message.get("body", b""))

    async def receive(self) -> Any:
        return await asyncio.Event().wait()


class Telling:
    """Frames, of which it is known how many were asked for and whether they were closed."""

    def __init__(self, *told: bytes, ends: bool = True) -> None:
        self.asked = 0
        self.is_closed = False
        self._told = told
        self._ends = ends

    async def frames(self) -> AsyncGenerator[bytes]:
        try:
            for frame in self._told:
                self.asked += 1
                yield frame
            if not self._ends:
                await asyncio.Event().wait()
        finally:
            self.is_closed = True


async def test_one_that_takes_little_is_waited_for_and_a_ping_stands_between_frames() -> None:
    connection, whole = Connection(), b"x" * (12 * WRITE_BYTES)
    telling = Telling(whole, b"next")
    respond = SseResponse(telling.frames())(SCOPE, connection.receive, connection.send)
    responding = asyncio.create_task(respond)
    for _ in range(12):  # more than twice as long as nothing may be taken
        await asyncio.sleep(0.1)
        assert not responding.done()
        assert telling.asked == 1
        connection.allowed.release()
    for _ in range(10):
        connection.allowed.release()
    async with asyncio.timeout(5):
        await responding
    taken = b"".join(connection.taken)
    assert taken.startswith(whole)
    assert taken.replace(b": ping\n\n", b"") == whole + b"next"
    assert max(map(len, connection.taken)) == WRITE_BYTES


# The frames


async def test_all_readers_of_a_large_event_hold_one_frame_between_them() -> None:
    async with face("{}", LARGE) as helper:
        run_id = (await helper.http.post("/v1/runs", json={"input": "hi"})).json()["id"]
        await until(lambda: helper.house.runs.active_count == 0)
        runs = guarded(helper.house.runs)
        reading = [event_frames(runs, run_id, 0) for _ in range(5)]
        held = [await large(each) for each in reading]
        assert all(frame is held[0] for frame in held)
        assert len(event_stream._shared_frames) == 1
        for each in reading:
            await each.aclose()
        gc.collect()
        assert not event_stream._shared_frames


async def large(frames_of: AsyncGenerator[bytes]) -> bytes:
    while len(told := await anext(frames_of)) < len(LARGE):
        pass
    return told


async def test_large_events_stand_where_they_belong() -> None:
    async with face("{}", LARGE) as helper:
        run_id = (await helper.http.post("/v1/runs", json={"input": "hi"})).json()["id"]
        whole = (await helper.http.get(f"/v1/runs/{run_id}/events")).text
        told = frames(whole)
        assert [frame.id for frame in told] == [str(n + 1) for n in range(len(told))]
        answer = next(frame for frame in told if frame.event == "agent_response")
        assert answer.json["content"] == LARGE


# The connection


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
