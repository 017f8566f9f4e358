"""Bodies over 1 MiB, over real sockets: every client can read why its request was refused."""

import asyncio
import socket
import time
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.stack import Stage, stage

from diptych.http import guards
from diptych.net.memory_budget import MemoryBudget

MEBIBYTE = 2**20
SIZES = [
    pytest.param(MEBIBYTE + 1, id="1 MiB and a byte"),
    pytest.param(8 * MEBIBYTE, id="8 MiB"),
]
PATHS = ["/v1/runs", "/a2a"]
JSON = {"Content-Type": "application/json"}
HEAD = (
    "POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: %s\r\n"
    "Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
)


def address(helper: Stage) -> tuple[str, int]:
    parts = urlsplit(helper.url)
    assert parts.hostname
    assert parts.port
    return parts.hostname, parts.port


def send_then_read(helper: Stage, head: str, body: bytes) -> bytes:
    """Do what simple clients do: send all, and only then read until the connection ends."""
    with socket.create_connection(address(helper), timeout=10) as connection:
        connection.sendall(head.encode())
        connection.sendall(body)
        reply = b""
        while piece := connection.recv(2**16):
            reply += piece
        return reply


@contextmanager
def little_memory(limit: int = 4 * MEBIBYTE) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < limit
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("connection", ["close", "keep-alive"])
async def test_a_socket_that_sends_all_first_reads_the_413(
    size: int, path: str, connection: str
) -> None:
    async with stage("{}", "x") as helper:
        head = HEAD % (path, connection, size)
        reply = await asyncio.to_thread(send_then_read, helper, head, b" " * size)
        assert reply.startswith(b"HTTP/1.1 413")
        assert b"connection: close" in reply
        assert b"body_too_large" in reply.lower()


@pytest.mark.parametrize("size", SIZES)
async def test_a_socket_that_does_not_say_how_much_it_sends_reads_the_413(size: int) -> None:
    async with stage("{}", "x") as helper:
        head = (HEAD % ("/v1/runs", "close", 0)).replace(
            "Content-Length: 0", "Transfer-Encoding: chunked"
        )
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (size, b" " * size)
        reply = await asyncio.to_thread(send_then_read, helper, head, body)
        assert reply.startswith(b"HTTP/1.1 413")
        assert b"body_too_large" in reply


@pytest.mark.parametrize("connection", ["close", "keep-alive"])
async def test_a_body_of_another_kind_is_read_before_the_connection_ends(connection: str) -> None:
    async with stage("{}", "x") as helper:
        head = (HEAD % ("/v1/runs", connection, MEBIBYTE)).replace("application/json", "text/plain")
        if connection == "close":
            reply = await asyncio.to_thread(send_then_read, helper, head, b" " * MEBIBYTE)
            assert reply.startswith(b"HTTP/1.1 415")
        else:
            for _ in range(2):
                response = await helper.http.post("/v1/runs", content=b" " * MEBIBYTE)
                assert response.status_code == 415


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("connection", ["close", "keep-alive"])
async def test_httpx_reads_the_413_and_can_go_on(size: int, connection: str) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(0, size, 2**16):
            yield b" " * 2**16

    async with stage("{}", "x") as helper:
        for content in (b" " * size, pieces()):
            headers = {**JSON, "Connection": connection}
            response = await helper.http.post("/v1/runs", content=content, headers=headers)
            assert response.status_code == 413
        assert (await helper.http.get("/health")).status_code == 200


async def test_64_mib_are_not_read_to_the_end_and_take_no_memory() -> None:
    async with stage("{}", "x") as helper:
        body = b" " * (64 * MEBIBYTE)
        head = HEAD % ("/v1/runs", "close", len(body))
        with little_memory(), suppress(ConnectionError):
            await asyncio.to_thread(send_then_read, helper, head, body)
        assert (await helper.http.get("/health")).status_code == 200


async def test_one_that_sends_slowly_is_answered_at_once_and_cut_after_2_s() -> None:
    async with stage("{}", "x") as helper:
        reader, writer = await asyncio.open_connection(*address(helper))
        began = time.monotonic()
        writer.write((HEAD % ("/v1/runs", "keep-alive", 2 * MEBIBYTE)).encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 413")
        assert time.monotonic() - began < 1
        reading = asyncio.create_task(reader.read())
        while not reading.done():
            writer.write(b" ")
            await asyncio.wait([reading], timeout=0.1)
        assert b"body_too_large" in reading.result()
        assert guards.DRAIN_SECONDS - 0.1 < time.monotonic() - began < guards.DRAIN_SECONDS + 2
        writer.close()


async def test_one_that_asks_first_is_not_told_to_go_on() -> None:
    async with stage("{}", "x") as helper:
        reader, writer = await asyncio.open_connection(*address(helper))
        head = HEAD % ("/v1/runs", "keep-alive", 2 * MEBIBYTE)
        writer.write(head.replace("\r\n\r\n", "\r\nExpect: 100-continue\r\n\r\n").encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 413")
        writer.close()


async def test_one_that_hangs_up_in_a_large_body_leaves_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with stage("{}", "x") as helper:
        _, writer = await asyncio.open_connection(*address(helper))
        writer.write((HEAD % ("/v1/runs", "close", 2 * MEBIBYTE)).encode() + b" " * MEBIBYTE)
        await asyncio.sleep(0.05)
        writer.close()
        await asyncio.sleep(0.05)
        assert (await helper.http.get("/v1/runs")).json()["data"] == []
    assert not [r for r in caplog.records if r.levelname in ("WARNING", "ERROR")]


async def test_a_server_without_sockets_drains_too() -> None:
    messages: list[Any] = [{"type": "http.request", "body": b"x" * MEBIBYTE, "more_body": True}] * 9
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop()

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "path": "/v1/runs",
        "headers": [(b"content-type", b"application/json"), (b"content-length", b"%d" % 2**30)],
    }
    never_asked: Any = None
    guard = guards.BodyGuard(never_asked, MemoryBudget())
    await guard(scope, receive, send)
    assert len(messages) == 1
    assert [message.get("more_body") for message in sent] == [None, True, False]
