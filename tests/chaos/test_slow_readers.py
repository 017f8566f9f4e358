"""What slow readers cost pods, and what they get in the end (faults.md C4)."""

import asyncio
import json
import socket
from collections.abc import Iterable, Sequence
from typing import Any

from aiohttp import web
from support.model_server import Exchange, _data, model_server
from support.pods import PodProcess, now
from support.run_logs import read_log
from support.scene import Scene, scene, tell
from support.stack import until

PIECES, PIECE = 1_250, 4_000  # of an answer of 5 MB
PAUSE = 0.004  # between two pieces
READERS = 5  # of each kind, at each pod, at each time
PER_READER = 2 * 2**20 / 1e6  # MB
OF_THE_RUN = 35.0  # MB that the run itself takes, with its record and what is sent of it
BODY = {"stream": True, "messages": [{"role": "user", "content": "at length"}]}
KEY = "at-length"


async def at_length(exchange: Exchange) -> web.StreamResponse:
    """Answer with 5 MB in five seconds or so."""
    if not exchange.is_phase_2:
        return await exchange.say("{}")
    stream = await exchange.open()
    begun = now()
    for n in range(PIECES):
        await stream.write(
            _data({"content": "".join(f"{n:05d}{k:03d} " for k in range(PIECE // 9 + 1))})
        )
        await asyncio.sleep(max(0.0, begun + n * PAUSE - now()))
    await stream.write(_data({}, "stop"))
    await stream.write(b"data: [DONE]\n\n")
    return stream


class Reader:
    """A client that takes 1 KB a second until it may hurry, with little room for more."""

    def __init__(self, pod: PodProcess, request: bytes) -> None:
        self.got = bytearray()
        self.may_hurry = asyncio.Event()
        self._pod = pod
        self._request = request

    async def read(self) -> None:
        loop = asyncio.get_running_loop()
        with socket.socket() as own:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            own.setblocking(False)
            await loop.sock_connect(own, ("127.0.0.1", self._pod.port))
            await loop.sock_sendall(own, self._request)
            while piece := await loop.sock_recv(own, 2**20 if self.may_hurry.is_set() else 1024):
                self.got += piece
                await self._rest()

    async def _rest(self) -> None:
        try:
            async with asyncio.timeout(1.0):
                await self.may_hurry.wait()
        except TimeoutError:
            pass

    def frames(self) -> list[bytes]:
        return with_ids(unchunked(bytes(self.got).partition(b"\r\n\r\n")[2]))


def with_ids(stream: bytes) -> list[bytes]:
    """Give the frames that have ids: others are told live only, and pings to those who wait."""
    return [frame for frame in stream.split(b"\n\n") if b"id: " in frame]


def unchunked(body: bytes) -> bytes:
    pieces, at = [], 0
    while at < len(body):
        end = body.index(b"\r\n", at)
        size = int(body[at:end], 16)
        pieces.append(body[end + 2 : end + 2 + size])
        at = end + size + 4
    return b"".join(pieces)


def request(line: str, body: bytes = b"", **headers: str) -> bytes:
    named = {"Host": "localhost", "Connection": "close", "Content-Length": len(body), **headers}
    head = [f"{line} HTTP/1.1", *(f"{name}: {value}" for name, value in named.items())]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def events_request(run: str, after: int = 0) -> bytes:
    return request(f"GET /v1/runs/{run}/events?starting_after={after}")


def chat_request() -> bytes:
    headers = {"Content-Type": "application/json", "Idempotency-Key": KEY}
    return request("POST /v1/chat/completions", json.dumps(BODY).encode(), **headers)


class Crowd:
    """Slow readers of one run at all pods: of its events, of its chat, and of its end alone."""

    def __init__(self, on: Scene, group: asyncio.TaskGroup) -> None:
        self.events: list[Reader] = []
        self.chats: list[Reader] = []
        self.ends: list[Reader] = []
        self._on = on
        self._group = group

    def come(self, run: str) -> None:
        """Have more of them."""
        self.events += self._readers(events_request(run))
        self.chats += self._readers(chat_request())

    def come_late(self, run: str, last: int) -> None:
        """Have readers of the last two events, the first of which is the whole answer."""
        self.ends += self._readers(events_request(run, last - 2))

    def hurry(self) -> None:
        for reader in self.all:
            reader.may_hurry.set()

    @property
    def all(self) -> Sequence[Reader]:
        return [*self.events, *self.chats, *self.ends]

    def _readers(self, request: bytes) -> Iterable[Reader]:
        for pod in self._on.pods * READERS:
            reader = Reader(pod, request)
            self._group.create_task(reader.read())
            yield reader


async def chat(on: Scene, crowd: Crowd) -> tuple[str, bytes]:
    """Ask, and hear the answer as fast as it comes; gives the run's id and what was told."""
    async with on.http.post(
        f"{on.pods[0].url}/v1/chat/completions", json=BODY, headers={"Idempotency-Key": KEY}
    ) as reply:
        run = reply.headers["X-Run-ID"]
        crowd.come(run)
        return run, await reply.read()


async def last_seq(on: Scene, run: str) -> int:
    async with on.http.get(f"{on.pods[1].url}/v1/runs/{run}") as reply:
        last: int = (await reply.json())["last_seq"]
        return last


async def test_slow_readers_hold_up_nobody_cost_little_and_miss_nothing() -> None:
    async with model_server(at_length) as model:
        options: dict[str, Any] = {"MODEL_API_URL": model.url, "MODEL_NAME": "m"}
        async with scene(**options) as on, asyncio.timeout(180):
            idle = [pod.memory for pod in on.pods]
            async with asyncio.TaskGroup() as group:
                crowd, begun = Crowd(on, group), now()
                run, told = await chat(on, crowd)
                took = now() - begun
                assert max(len(reader.got) for reader in crowd.all) < 1024 * (took + 4)
                crowd.come(run)  # others, who begin when all is on record
                crowd.come_late(run, await last_seq(on, run))
                await until(lambda: all(len(reader.got) > 2048 for reader in crowd.all), 30)
                used = [pod.memory - before for pod, before in zip(on.pods, idle, strict=True)]
                tell(f"{len(crowd.all)} slow readers: run {took:.1f} s, memory {used} MB")
                crowd.hurry()
            assert max(used) < OF_THE_RUN + len(crowd.all) / len(on.pods) * PER_READER
            log = [frame.raw for frame in await read_log(on.http, on.pods[1], run)]
            assert sum(map(len, log)) > 2 * PIECES * PIECE  # its pieces, and the whole answer
            assert all(reader.frames() == log for reader in crowd.events)
            assert all(reader.frames() == log[-2:] for reader in crowd.ends)
            assert told.endswith(b"data: [DONE]\n\n")
            assert all(reader.frames() == with_ids(told) for reader in crowd.chats)
