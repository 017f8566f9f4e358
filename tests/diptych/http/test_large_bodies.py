"""Bodies over 1 MiB, over real sockets: every client can read why its request was refused."""

import asyncio
import socket
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

import pytest
from support.stack import Stage, stage

from diptych.http import guards

MEBIBYTE = 2**20
PATHS = ["/v1/runs", "/a2a"]
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


async def test_a_socket_that_sends_all_first_reads_the_413() -> None:
    size = 8 * MEBIBYTE
    async with stage("{}", "x") as helper:
        for path in PATHS:
            for connection in ("close", "keep-alive"):
                head = HEAD % (path, connection, size)
                reply = await asyncio.to_thread(send_then_read, helper, head, b" " * size)
                assert reply.startswith(b"HTTP/1.1 413")
                assert b"connection: close" in reply
                assert b"body_too_large" in reply.lower()


async def test_64_mib_are_not_read_to_the_end_and_take_no_memory() -> None:
    async with stage("{}", "x") as helper:
        body = b" " * (64 * MEBIBYTE)
        head = HEAD % ("/v1/runs", "close", len(body))
        with little_memory(), suppress(ConnectionError):
            await asyncio.to_thread(send_then_read, helper, head, body)
        assert (await helper.http.get("/health")).status_code == 200


async def test_one_that_sends_slowly_is_answered_at_once_and_then_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(guards, "DRAIN_SECONDS", 0.2)
    async with stage("{}", "x") as helper, asyncio.timeout(30):
        reader, writer = await asyncio.open_connection(*address(helper))
        writer.write((HEAD % ("/v1/runs", "keep-alive", 2 * MEBIBYTE)).encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 413")
        reading = asyncio.create_task(reader.read())
        while not reading.done():
            writer.write(b" ")
            await asyncio.wait([reading], timeout=0.05)
        assert b"body_too_large" in reading.result()
        writer.close()


async def test_one_that_asks_first_is_not_told_to_go_on() -> None:
    async with stage("{}", "x") as helper:
        reader, writer = await asyncio.open_connection(*address(helper))
        head = HEAD % ("/v1/runs", "keep-alive", 2 * MEBIBYTE)
        writer.write(head.replace("\r\n\r\n", "\r\nExpect: 100-continue\r\n\r\n").encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 413")
        writer.close()
