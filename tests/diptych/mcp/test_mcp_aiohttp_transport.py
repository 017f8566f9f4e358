"""What the SDK's HTTP client is told of a request that aiohttp sent, or did not send."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import pytest

from diptych.mcp.aiohttp_transport import AiohttpTransport
from diptych.net.outgoing import OutgoingPolicy

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n"


@asynccontextmanager
async def server(*replies: bytes) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Answer each request on any connection with the next reply, then hang up; keep the heads."""
    heads: list[bytes] = []
    left = list(replies)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while left:
                heads.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(left.pop(0))
                await writer.drain()
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}/mcp", heads


@asynccontextmanager
async def client(url: str) -> AsyncIterator[httpx2.AsyncClient]:
    policy, tls = OutgoingPolicy([url]), httpx2.create_ssl_context()
    transport = AiohttpTransport(policy, tls)
    async with httpx2.AsyncClient(transport=transport) as opened:
        yield opened


async def test_an_unsent_request_is_told_from_a_lost_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        closed = f"http://127.0.0.1:{taken.getsockname()[1]}/mcp"
    async with client(closed) as asking:
        with pytest.raises(httpx2.ConnectError) as refused:
            await asking.get(closed)
    assert refused.value.__cause__ is not None
    async with server(b"") as (url, heads), client(url) as asking:
        with pytest.raises(httpx2.ReadError):
            await asking.post(url, content=b"{}")
    assert len(heads) == 1


async def test_a_body_that_breaks_off_is_lost() -> None:
    cut = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf"
    async with server(cut) as (url, _), client(url) as asking:
        with pytest.raises(httpx2.ReadError):
            await asking.get(url)


async def test_a_server_that_says_nothing_is_not_waited_for_beyond_the_time_for_reading() -> None:
    async with server(OK, OK) as (url, _), client(url) as asking:  # a head that has no end
        with pytest.raises(httpx2.ReadTimeout):
            await asking.get(url, timeout=httpx2.Timeout(None, read=0.05))


@pytest.mark.parametrize("value", ["a\x01b", "a\x7fb", "a\r\nb: c", "a\x00b"])
async def test_a_header_that_no_header_may_hold_is_not_sent(value: str) -> None:
    async with server(OK + b"\r\nok") as (url, heads), client(url) as asking:
        with pytest.raises(httpx2.LocalProtocolError):
            await asking.get(url, headers={"authorization": value})
    assert heads == []


@pytest.mark.parametrize("url", ["calculator:8000", "ftp://127.0.0.1/mcp"])
async def test_only_http_is_spoken(url: str) -> None:
    async with client("http://127.0.0.1/mcp") as asking:
        with pytest.raises(httpx2.UnsupportedProtocol):
            await asking.get(url)


async def test_a_password_in_the_url_is_sent_once_as_a_header() -> None:
    async with server(OK + b"\r\nok") as (url, heads), client(url) as asking:
        await asking.get(url.replace("//", "//me:secret@"))
    assert heads[0].lower().count(b"authorization: basic") == 1
    assert b"secret" not in heads[0]
