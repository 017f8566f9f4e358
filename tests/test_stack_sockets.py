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
