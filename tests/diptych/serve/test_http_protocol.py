"""Connections that send or take too much, too slowly, or nothing at all, over real sockets."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from support.stack import listening, until

from diptych.net.memory_budget import MemoryBudget
from diptych.serve import connections as counted
from diptych.serve import http_protocol as protocol
from diptych.serve.connections import Connections
from diptych.serve.http_protocol import MAX_HEAD, MAX_HEADERS, BoundedProtocol

QUICK = 0.3  # seconds, for what takes long
GET = b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n"
CHUNKED_HEAD = b"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
LARGE = b"x" * (8 * 2**20)


@pytest.fixture
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have what comes too late be late soon. Elsewhere a busy machine must not make it late."""
    for name in ("HEAD_SECONDS", "BODY_SECONDS", "STALL_SECONDS"):
        monkeypatch.setattr(protocol, name, QUICK)


@pytest.fixture(autouse=True)
def _refused_go_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "LINGER_SECONDS", QUICK)


late = pytest.mark.usefixtures("_soon")


@dataclass
class App:
    """An application that answers with what it is told to, and remembers what happened to it."""

    answer: bytes = b"hello"
    waits: bool = False  # with its answer, until `go` is set
    go: asyncio.Event = field(default_factory=asyncio.Event)
    asked: list[str] = field(default_factory=list)
    received: list[str] = field(default_factory=list)
    has_ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        self.asked.append(scope["path"])
        try:
            while True:
                message = await receive()
                self.received.append(message["type"])
                if not message.get("more_body"):
                    break
            if self.waits and scope["path"] != "/health":
                await self.go.wait()
            length = str(len(self.answer)).encode()
            await send(
                {
                    "type": "http.response.start",
                    "status": 200,
                    "headers": [(b"content-length", length)],
                }
            )
            for start in range(0, len(self.answer), 2**15):
                piece = self.answer[start : start + 2**15]
                more = start + 2**15 < len(self.answer)
                await send({"type": "http.response.body", "body": piece, "more_body": more})
        finally:
            self.has_ended.set()


@dataclass
class Served:
    app: App
    port: int
    connections: Connections
    lines: "list[Line]" = field(default_factory=list)

    async def connect(self) -> "Line":
        self.lines.append(Line(*await asyncio.open_connection("127.0.0.1", self.port)))
        return self.lines[-1]


class Line:
    """A client's end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def status(self, seconds: float = 5.0) -> int:
        """Read the status of an answer, and its head; 0 if the connection has ended."""
        try:
            async with asyncio.timeout(seconds):
                head = await self.reader.readuntil(b"\r\n\r\n")
        except (OSError, asyncio.IncompleteReadError):
            return 0
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        self.head, self.body = head.lower(), await self.reader.readexactly(int(length))
        return int(head[9:12])

    async def ask(self, request: bytes = GET) -> int:
        self.writer.write(request)
        return await self.status()

    async def is_closed(self, seconds: float = 3.0) -> bool:
        try:
            async with asyncio.timeout(seconds):
                while await self.reader.read(2**16):
                    pass
        except TimeoutError:
            return False
        except OSError:
            pass
        return True


@asynccontextmanager
async def served(
    app: App | None = None, most: int = 100, budget: MemoryBudget | None = None
) -> AsyncIterator[Served]:
    app = app or App()
    connections = Connections(budget, most)
    async with listening(app, protocol=partial(BoundedProtocol, connections)) as url:
        here = Served(app, int(url.rpartition(":")[2]), connections)
        yield here
        for line in here.lines:
            line.writer.transport.abort()
        await until(lambda: not connections.count)


# Heads


LONG = b"GET /x HTTP/1.1\r\nHost: a\r\nX-Long: " + b"y" * MAX_HEAD
MANY = b"GET /x HTTP/1.1\r\n" + b"".join(b"x-%d: y\r\n" % n for n in range(MAX_HEADERS + 2))


@pytest.mark.parametrize("piece", [2**20, 4_000], ids=["at once", "in pieces"])
@pytest.mark.parametrize(
    "head",
    [
        pytest.param(LONG, id="one long header that does not end"),
        pytest.param(MANY + b"\r\n", id="many headers"),
        pytest.param(b"GET /" + b"x" * 2 * MAX_HEAD, id="a path that does not end"),
    ],
)
async def test_a_head_that_is_too_large_is_refused(head: bytes, piece: int) -> None:
    budget = MemoryBudget(2**20)
    async with served(budget=budget) as here:
        line = await here.connect()
        answer = asyncio.create_task(line.status())
        for start in range(0, len(head), piece):
            line.writer.write(head[start : start + piece])
            await asyncio.sleep(0)
        assert await answer == 431
        assert b"connection: close" in line.head
        assert b"head_too_large" in line.body
        assert await line.is_closed()
        assert here.app.asked == []
        await until(lambda: here.connections.count == 0)
        assert budget.used == 0


@late
async def test_a_head_that_does_not_end_is_counted_and_refused_in_time() -> None:
    budget = MemoryBudget(2**20)
    async with served(budget=budget) as here:
        line = await here.connect()
        line.writer.write(GET[:-2])
        await until(lambda: budget.used > 0)
        dribbling = asyncio.create_task(_dribble(line))
        assert await line.status() == 408
        dribbling.cancel()
        assert here.app.asked == []
        await until(lambda: here.connections.count == 0)
        assert budget.used == 0


async def _dribble(line: Line) -> None:
    while True:
        line.writer.write(b"x")
        await asyncio.sleep(0.02)


# Bodies


@late
async def test_a_body_that_dribbles_is_refused_and_the_application_hears_of_it() -> None:
    async with served() as here:
        line = await here.connect()
        line.writer.write(b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 999999\r\n\r\n")
        dribbling = asyncio.create_task(_dribble(line))
        assert await line.status() == 408
        dribbling.cancel()
        await here.app.has_ended.wait()
        assert here.app.received[-1] == "http.disconnect"
        assert await line.is_closed()


@pytest.mark.parametrize("framing", [b"1;", b"0\r\nX: "], ids=["chunk extension", "trailer"])
async def test_framing_that_does_not_end_is_counted_and_refused(
    framing: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "BODY_SECONDS", 30.0)
    budget = MemoryBudget(2**30)
    async with served(budget=budget) as here:
        line = await here.connect()
        line.writer.write(CHUNKED_HEAD + b"1\r\n{\r\n" + framing)
        for _ in range(4):
            line.writer.write(b"x" * 30_000)
            await line.writer.drain()
            await asyncio.sleep(0.02)
        assert await line.status() == 431
        assert await line.is_closed()
        assert budget.used == 0


async def test_a_trailer_is_no_header() -> None:
    """A proxy that has taken a header out, or has put one in, knows none of the trailers."""
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            while (await receive()).get("more_body"):
                pass
            seen.extend(scope["headers"])
            start = {"type": "http.response.start", "status": 200}
            await send({**start, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})

    async with served(app) as here:  # type: ignore[arg-type]
        line = await here.connect()
        line.writer.write(CHUNKED_HEAD + b"1\r\n{\r\n0\r\nAuthorization: Bearer x\r\n\r\n")
        assert await line.status() == 200
        assert await line.ask() == 200
    assert b"authorization" not in dict(seen)


# How many


async def test_the_connection_that_was_idle_longest_makes_room_for_a_request() -> None:
    async with served(most=3) as here:
        lines = [await here.connect() for _ in range(3)]
        for line in (lines[1], lines[0], lines[2]):
            assert await line.ask() == 200
        another = await here.connect()
        assert await another.ask() == 200
        assert await lines[1].is_closed()
        assert await lines[0].ask() == 200


async def test_thousands_that_say_nothing_take_no_more_than_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(counted, "SPARE_CONNECTIONS", 4)
    async with served(most=10) as here:
        lines = [await here.connect() for _ in range(100)]
        await until(lambda: here.connections.count <= 14)
        assert await (await here.connect()).ask() == 200
        assert len(lines) == 100


async def test_where_all_have_a_request_more_are_refused_but_for_probes() -> None:
    async with served(App(waits=True), most=3) as here:
        busy = [await here.connect() for _ in range(3)]
        for line in busy:
            line.writer.write(GET)
        await until(lambda: len(here.app.asked) == 3)
        other, probe = await here.connect(), await here.connect()
        assert await other.ask() == 503
        assert b"retry-after: 1" in other.head
        assert await other.is_closed()
        assert await probe.ask(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n") == 200
        assert b"connection: close" in probe.head
        here.app.go.set()
        assert [await line.status() for line in busy] == [200] * 3


# What is not taken


async def deaf(here: Served) -> socket.socket:
    """Ask, with room for little, and read nothing."""
    own = socket.socket()
    own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    own.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(own, ("127.0.0.1", here.port))
    await loop.sock_sendall(own, GET)
    return own


@late
async def test_a_peer_that_takes_nothing_of_an_answer_is_cut(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    budget = MemoryBudget(2**30)
    async with served(App(LARGE), budget=budget) as here:
        peer = await deaf(here)
        await until(lambda: len(here.connections.stalled) == 1)
        assert budget.used == counted.STALLED_SIZE
        await asyncio.wait_for(here.app.has_ended.wait(), 5)
        assert any(line.startswith("lagged: /x") for line in caplog.messages)
        await until(lambda: here.connections.count == 0)
        assert budget.used == 0
        peer.close()


async def test_without_room_the_one_that_has_taken_nothing_for_longest_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(protocol, "STALL_SECONDS", 60.0)
    budget = MemoryBudget(4 * counted.STALLED_SIZE)
    async with served(App(LARGE), budget=budget) as here:
        peers = []
        for n in range(6):
            peers.append(await deaf(here))
            await until(lambda n=n: len(here.app.asked) == n + 1)
            await asyncio.sleep(0.1)
        await until(lambda: here.connections.count == 3)
        assert len(here.connections.stalled) == 3
        assert budget.used == 3 * counted.STALLED_SIZE
        for peer in peers:
            peer.close()


# The host (RFC 9112, section 3.2)

HOSTS = {
    "none": b"",
    "two": b"Host: a\r\nHost: b\r\n",
    "a list": b"Host: a, b\r\n",
    "two ports": b"Host: a:1:2\r\n",
    "beyond ASCII": b"Host: a\xe4\r\n",
}


@pytest.mark.parametrize("host", HOSTS.values(), ids=HOSTS)
async def test_a_request_that_does_not_name_one_host_is_refused(host: bytes) -> None:
    async with served() as here:
        for method, target in ((b"GET", b"/y"), (b"POST", b"/y"), (b"CONNECT", b"b:80")):
            here.app.asked.clear()
            line = await here.connect()
            assert await line.ask(GET) == 200
            end = b"Content-Length: %d\r\n\r\n" % len(INNER) + INNER
            assert await line.ask(method + b" " + target + b" HTTP/1.1\r\n" + host + end) == 400
            assert b"invalid_host" in line.body
            assert await line.is_closed()
            assert here.app.asked == ["/x"]


@pytest.mark.parametrize(
    "head",
    [
        b"GET /x HTTP/1.0\r\nConnection: keep-alive\r\n",  # which knows no Host
        b"GET /x HTTP/1.1\r\nHost: agent_1.team-a.svc:8000\r\n",
    ],
)
async def test_one_host_is_taken_and_none_of_http_1_0(head: bytes) -> None:
    async with served() as here:
        assert await (await here.connect()).ask(head + b"\r\n") == 200


CODED_1_0 = b"POST /x HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (CODED_1_0, 400),
        (b"GET /x HTTP/2.0\r\nHost: a\r\n\r\n", 505),
    ],
)
async def test_what_its_version_does_not_know_is_refused(request_: bytes, status: int) -> None:
    async with served() as here:
        line = await here.connect()
        assert await line.ask(request_) == status
        assert await line.is_closed()
        assert here.app.asked == []


# Upgrades, tunnels and pipelines

INNER = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
H2C = b"Host: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n"
POST = b"POST /x HTTP/1.1\r\n" + H2C + b"Content-Length: %d\r\n\r\n" % len(INNER) + INNER
CHUNKED = (
    b"POST /x HTTP/1.1\r\n" + H2C + b"Transfer-Encoding: chunked\r\n\r\n"
    b"%x\r\n%s\r\n0\r\n\r\n" % (len(INNER), INNER)
)
UPGRADES = {
    "a length": (POST, ["/x"]),
    "no body": (b"GET /x HTTP/1.1\r\n" + H2C + b"\r\n", ["/x"]),
    "a pipeline": (GET.replace(b"/x", b"/0") + POST + CHUNKED + GET, ["/0", "/x", "/x", "/x"]),
}


@pytest.mark.parametrize(("request_", "asked"), UPGRADES.values(), ids=UPGRADES)
async def test_an_upgrade_is_read_as_if_it_were_not_asked_for(
    request_: bytes, asked: list[str]
) -> None:
    async with served() as here:
        for piece in (2**20, 1, POST.index(b"\r\n\r\n") + 4):
            here.app.asked.clear()
            line = await here.connect()
            for start in range(0, len(request_), piece):
                line.writer.write(request_[start : start + piece])
                await asyncio.sleep(0)
            assert [await line.status() for _ in asked] == [200] * len(asked)
            assert await line.ask(GET.replace(b"/x", b"/last")) == 200
            assert here.app.asked == [*asked, "/last"]


@pytest.mark.parametrize("pause", [0, 0.1])
async def test_a_tunnel_is_refused_and_nothing_after_it_is_read(pause: float) -> None:
    head = b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(INNER)
    async with served() as here:
        line = await here.connect()
        line.writer.write(head)
        await asyncio.sleep(pause)
        assert await line.ask(INNER) == 501
        assert b"connection: close" in line.head
        assert await line.is_closed()
        assert here.app.asked == []


@pytest.mark.parametrize(
    ("extra", "taken"),
    [
        pytest.param(GET * 3 * protocol.MAX_PIPELINED, protocol.MAX_PIPELINED + 1, id="too many"),
        pytest.param(b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n" + GET, 1, id="a tunnel"),
    ],
)
async def test_what_was_taken_of_a_pipeline_is_answered_before_it_is_closed(
    extra: bytes, taken: int
) -> None:
    async with served(App(waits=True)) as here:
        line = await here.connect()
        line.writer.write(GET + extra)
        await until(lambda: here.app.asked)
        await asyncio.sleep(0.05)
        line.writer.write(GET)
        here.app.go.set()
        assert [await line.status() for _ in range(taken)] == [200] * taken
        assert b"connection: close" in line.head
        assert await line.is_closed()
        assert len(here.app.asked) == taken


NO_REQUEST = [
    pytest.param(b"no request\r\n\r\n", id="no request"),
    pytest.param(
        CHUNKED_HEAD.replace(b"chunked", b"chunked\r\nContent-Length: 3"), id="two lengths"
    ),
    pytest.param(CHUNKED_HEAD + b"zz\r\n", id="a chunk of no size"),
]


@pytest.mark.parametrize("sent", NO_REQUEST)
async def test_what_is_no_request_is_refused_as_a_problem(sent: bytes) -> None:
    async with served() as here:
        line = await here.connect()
        assert await line.ask(sent) == 400
        assert b"content-type: application/problem+json" in line.head
        assert b'"code":"invalid_request"' in line.body
        assert await line.is_closed()


@pytest.mark.parametrize("answered", [0, 1])
async def test_a_request_is_told_that_its_caller_hung_up_though_others_wait_behind_it(
    answered: int,
) -> None:
    asked: list[str] = []
    told: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        asked.append(scope["path"])
        while (await receive())["type"] != "http.disconnect":
            if len(asked) <= answered:
                await send({"type": "http.response.start", "status": 204, "headers": []})
                await send({"type": "http.response.body"})
                return
        told.append(scope["path"])

    async with listening(app, protocol=partial(BoundedProtocol, Connections(None, 9))) as url:
        _, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(b"".join(GET.replace(b"/x", b"/%d" % n) for n in range(4)))
        await until(lambda: len(asked) > answered)
        writer.transport.abort()
        await until(lambda: told)
        await asyncio.sleep(0.05)
    assert told == [f"/{answered}"]
    assert len(asked) == answered + 1
