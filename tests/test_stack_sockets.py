"""What only a real socket shows: bodies that are cut or too large, connections that go on."""

import asyncio
import contextlib
import logging
import socket
from urllib.parse import urlsplit

import pytest
from support.stack import Stage, stage

from diptych.serve.process import SEND_BUFFER_BYTES, ListenAddress, Sockets

HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
)
HI = b'{"messages": [{"role": "user", "content": "hi"}]}'


async def connect(helper: Stage) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(helper.url)
    return await asyncio.open_connection(parts.hostname, parts.port)


async def reply_to(helper: Stage, *pieces: bytes) -> bytes:
    """Write pieces, then read until the server closes or has said enough."""
    reader, writer = await connect(helper)
    for piece in pieces:
        writer.write(piece)
        await asyncio.sleep(0.01)
    reply = await asyncio.wait_for(reader.read(4096), 2)
    writer.close()
    return reply


async def test_a_body_far_too_large_is_refused_before_it_is_sent() -> None:
    async with stage("{}", "x") as helper:
        reply = await reply_to(helper, HEAD % 2**30)
        assert reply.startswith(b"HTTP/1.1 413")
        assert b"body_too_large" in reply
        response = await helper.http.post("/v1/chat/completions", json={"x": "y" * 2**22})
        assert response.status_code == 413


async def test_a_client_that_hangs_up_in_its_own_body_is_no_error_of_ours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with stage("{}", "x") as helper:
        for path in (b"/v1/chat/completions", b"/v1/runs", b"/a2a", b"/a2a/rest/message:send"):
            _, writer = await connect(helper)
            head = (HEAD % len(HI)).replace(b"/v1/chat/completions", path)
            writer.write(head + HI[:20])
            await asyncio.sleep(0.03)
            writer.close()
            await asyncio.sleep(0.03)
        assert (await helper.http.get("/v1/runs")).json()["data"] == []
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING] == []


@pytest.mark.parametrize(
    "request_line",
    [
        pytest.param(b"GARBAGE\r\n\r\n", id="no HTTP"),
        pytest.param(b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n", id="a path without end"),
        pytest.param(b"GET /v1/models HTTP/1.1\r\n\r\n", id="no host"),
        pytest.param(
            b"POST /v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
            id="a length of less than nothing",
        ),
    ],
)
async def test_what_is_no_request_is_refused_and_the_server_goes_on(request_line: bytes) -> None:
    async with stage("{}", "x") as helper:
        reply = await reply_to(helper, request_line)
        assert reply[:9] == b"HTTP/1.1 "
        assert reply[9:10] == b"4"
        assert await helper.answer() == "x"


async def test_a_connection_is_used_again_after_errors_and_streams() -> None:
    async with stage("{}", "Hello!") as helper:
        reader, writer = await connect(helper)
        for body, status in ((b"{", b"400"), (HI, b"200"), (b"[]", b"400"), (HI, b"200")):
            writer.write(HEAD % len(body) + body)
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 2)
            assert head[9:12] == status
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            await reader.readexactly(length)
        writer.close()


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_all_addresses_are_those_of_both_families(address: str) -> None:
    sockets = Sockets(ListenAddress("::", 0), 1)
    with contextlib.closing(sockets):
        (bound,) = sockets
        if bound.family is not socket.AF_INET6 and address == "::1":
            pytest.skip("NOT CHECKED: this machine has no IPv6")
        bound.listen()
        socket.create_connection((address, bound.getsockname()[1]), timeout=5).close()
        assert sockets.urls == [f"http://127.0.0.1:{bound.getsockname()[1]}"]


def test_the_kernel_keeps_little_for_a_reader_that_is_slow() -> None:
    sockets = Sockets(ListenAddress(port=0), 1)
    try:
        (bound,) = sockets
        bound.listen()
        with socket.create_connection(bound.getsockname()), bound.accept()[0] as accepted:
            kept = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
            assert kept <= 2 * SEND_BUFFER_BYTES, "Linux doubles what it is told"
    finally:
        sockets.close()
