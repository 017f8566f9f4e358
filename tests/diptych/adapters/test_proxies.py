"""HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY mean the same to every client of the process."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from diptych.adapters.a2a.http_client import http_client as a2a_client
from diptych.adapters.a2a.peer import PeerMonitor
from diptych.adapters.http_hooks import HttpHooks
from diptych.adapters.mcp.request_outcome import RequestOutcome
from diptych.adapters.mcp.transport import HandshakeAborted
from diptych.adapters.mcp.transport import http_client as mcp_client
from diptych.adapters.oidc import IssuerKeys
from diptych.adapters.openai_chat.chat_model import ChatModel
from diptych.adapters.openai_chat.connection import allow_url, open_http_session, with_proxies
from diptych.adapters.telemetry.bounded_session import BoundedSession
from diptych.config.settings import HookConfig, ModelConfig, PeerConfig
from diptych.errors import ModelError
from diptych.loop.messages import Message
from diptych.loop.model_request import ModelRequest
from diptych.net.outgoing import OutgoingPolicy
from diptych.net.proxies import proxy_for, proxy_notices
from diptych.runtime.hooks import HookFailed

TARGET = "http://outside.example"
PROXY = "http://127.0.0.1:3128"


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


async def _model() -> str:
    async with open_http_session() as session:
        model = ChatModel(session, with_proxies(ModelConfig("m", TARGET)), sleep=_at_once)
        with pytest.raises(ModelError) as caught:
            await model.complete(ModelRequest((Message("user", "Hello"),)))
    return caught.value.message


async def _at_once(_: float) -> None:
    pass


async def _tool_server() -> str:
    outcome = RequestOutcome(is_handshake=True)
    async with mcp_client(TARGET, {}) as client:
        with outcome.recording(), pytest.raises(HandshakeAborted):
            await client.post(TARGET, json={"method": "initialize"})
    return outcome.reason or ""


async def _agent() -> str:
    policy = OutgoingPolicy([TARGET])
    async with a2a_client(policy) as client:
        peer = PeerMonitor(PeerConfig("other", TARGET), client, policy)
        return await peer._refresh() or ""


async def _hook() -> str:
    hooks = HttpHooks("helper", [HookConfig("beforeCall", TARGET)])
    with pytest.raises(HookFailed) as caught:
        await hooks.hooks[0].ask({})
    await hooks.aclose()
    return str(caught.value)


async def _issuer() -> str:
    async with open_http_session() as session:
        allow_url(session, proxy_for(TARGET))
        await IssuerKeys(TARGET, session, time.monotonic).refresh(is_unknown_key=True)
    return ""  # it is in the log


async def _collector() -> str:
    session = BoundedSession()
    await asyncio.to_thread(lambda: _quietly(session))
    return session.said


def _quietly(session: BoundedSession) -> None:
    with suppress(OSError):
        session.post(TARGET, data=b"spans")


CLIENTS = pytest.mark.parametrize("ask", [_model, _tool_server, _agent, _hook, _issuer, _collector])


@asynccontextmanager
async def proxy_that_refuses() -> AsyncIterator[tuple[str, list[str]]]:
    lines: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        lines.append(head)
        writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", lines


@CLIENTS
async def test_every_client_asks_the_proxy(
    monkeypatch: pytest.MonkeyPatch, ask: Callable[[], Awaitable[str]]
) -> None:
    async with proxy_that_refuses() as (address, lines):
        monkeypatch.setenv("HTTP_PROXY", f"http://user:secret@{address}")
        await ask()
    assert lines[0].split()[1].startswith(TARGET)
    assert "proxy-authorization: basic" in lines[0].lower()


@CLIENTS
async def test_every_error_names_the_proxy(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    ask: Callable[[], Awaitable[str]],
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setenv("HTTP_PROXY", "http://user:secret@proxy.invalid:3128")
    said = await ask() or caplog.text
    assert "the proxy http://proxy.invalid:3128" in said
    assert "secret" not in said


@pytest.mark.parametrize(
    ("url", "no_proxy", "is_direct"),
    [
        ("http://10.1.2.3:8000/mcp", "10.0.0.0/8", True),
        ("http://11.1.2.3:8000/mcp", "10.0.0.0/8", False),
        ("http://[fd00::7]/", "fd00::/8", True),
        ("http://[fd00::7]/", "[fd00::7]", True),
        ("http://10.1.2.3/", "10.1.2.3", True),
        ("http://tools.example/", ".example", True),
        ("http://example/", ".example", True),
        ("http://tools.example/", "*.example", True),
        ("http://tools.example./", "EXAMPLE", True),
        ("http://notexample/", "example", False),
        ("http://calculator:8000/", "a, calculator b", True),
        ("http://calculator:8000/", "calculator:8000", True),
        ("http://calculator:8001/", "calculator:8000", False),
        ("https://calculator/", "calculator:443", True),
        ("http://outside.example/", "*", True),
        ("http://outside.example/", "", False),
        ("http://localhost:8000/", "", True),
        ("http://127.0.0.2:8000/", "", True),
        ("http://[::1]:8000/", "", True),
        ("http://169.254.169.254/", "", True),
        ("http://host:nonsense/", "x", False),
    ],
)
def test_what_no_proxy_exempts(
    monkeypatch: pytest.MonkeyPatch, url: str, no_proxy: str, is_direct: bool
) -> None:
    monkeypatch.setenv("ALL_PROXY", PROXY)
    monkeypatch.setenv("NO_PROXY", no_proxy)
    assert proxy_for(url) == (None if is_direct else PROXY)


@pytest.mark.parametrize(
    ("variables", "proxy"),
    [
        ({"HTTPS_PROXY": PROXY}, PROXY),
        ({"HTTP_PROXY": PROXY}, None),
        ({"ALL_PROXY": PROXY}, PROXY),
        ({"HTTPS_PROXY": "http://upper:1", "https_proxy": PROXY}, PROXY),
        ({"HTTPS_PROXY": "127.0.0.1:3128"}, PROXY),
        ({"HTTPS_PROXY": "socks5://127.0.0.1:1080"}, None),
        ({}, None),
    ],
)
def test_which_variable_names_the_proxy(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], proxy: str | None
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert proxy_for("https://models.example.com/v1") == proxy
    assert proxy_for("nonsense") is None


def test_the_start_says_what_goes_through_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not list(proxy_notices())
    monkeypatch.setenv("HTTPS_PROXY", "http://user:secret@proxy.infra:3128")
    monkeypatch.setenv("ALL_PROXY", "socks5://proxy.infra:1080")
    refused, used = proxy_notices()
    assert refused.startswith("ALL_PROXY is not used: its scheme is socks5")
    assert "https through http://proxy.infra:3128; exempt: nothing" in used
