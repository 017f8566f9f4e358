"""HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY mean the same to every client of the process."""

import asyncio
import time
from contextlib import suppress

import httpx
import pytest
from a2a.client.errors import A2AClientError

from diptych.a2a.http_client import http_client as a2a_client
from diptych.a2a.peer import PeerMonitor
from diptych.a2a.send_errors import explain
from diptych.access.oidc import IssuerKeys
from diptych.core.errors import ModelError
from diptych.core.messages import Message
from diptych.core.model_request import ModelRequest
from diptych.manifest.settings import ModelConfig, PeerConfig
from diptych.mcp.transport import HandshakeAborted, RequestOutcome
from diptych.mcp.transport import http_client as mcp_client
from diptych.models.chat_model import ChatModel
from diptych.models.connection import allow_url, open_http_session, with_proxies
from diptych.net.outgoing import OutgoingPolicy
from diptych.net.proxies import proxy_for, proxy_notices
from diptych.runs.definition import HookConfig
from diptych.runs.hooks import HookFailed
from diptych.runs.http_hooks import HttpHooks
from diptych.telemetry.process_traces import CollectorExporter

TARGET = "http://outside.example"
PROXY = "http://127.0.0.1:3128"


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


async def _model():
    async with open_http_session() as session:
        settings = with_proxies(ModelConfig("m", TARGET))
        asked = ChatModel(session, settings, sleep=lambda _: asyncio.sleep(0))
        with pytest.raises(ModelError) as caught:
            await asked.complete(ModelRequest((Message("user", "Hello"),)))
    return caught.value.message


async def _tool_server():
    outcome = RequestOutcome(is_handshake=True)
    async with mcp_client(TARGET, {}) as client:
        with outcome.recording(), suppress(HandshakeAborted):
            await client.post(TARGET, json={"method": "initialize"})
    return outcome.reason


async def _agent():
    policy = OutgoingPolicy([TARGET])
    async with a2a_client(policy) as client:
        return await PeerMonitor(PeerConfig("other", TARGET), client, policy)._refresh()


async def _hook():
    hooks = HttpHooks("helper", [HookConfig("beforeCall", TARGET)])
    with pytest.raises(HookFailed) as caught:
        await hooks.hooks[0].ask({})
    await hooks.aclose()
    return str(caught.value)


async def _issuer():
    async with open_http_session() as session:
        allow_url(session, proxy_for(TARGET))
        await IssuerKeys(TARGET, session, time.monotonic).refresh(is_unknown_key=True)
    return ""  # it is in the log


async def _collector():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", TARGET)
        patch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
        await asyncio.to_thread(CollectorExporter(TARGET).export, ())
    return ""  # it is in the log


CLIENTS = (_model, _tool_server, _agent, _hook, _issuer, _collector)


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("ask", CLIENTS)
async def test_every_client_asks_the_proxy(monkeypatch, caplog, ask, scheme):
    heads = []

    async def serve(reader, writer):
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        monkeypatch.setenv("ALL_PROXY", f"http://user:secret@127.0.0.1:{port}")
        monkeypatch.setitem(globals(), "TARGET", f"{scheme}://outside.example")
        said = await ask() or caplog.text
    asked = "CONNECT outside.example:443" if scheme == "https" else f" {TARGET}"
    assert asked in heads[0]
    assert scheme == "http" or f"the proxy http://127.0.0.1:{port}" in said
    assert "proxy-authorization: basic" in heads[0].lower()


@pytest.mark.parametrize("ask", CLIENTS)
async def test_every_error_names_the_proxy(monkeypatch, caplog, ask):
    monkeypatch.setenv("HTTP_PROXY", "http://user:secret@proxy.invalid:3128")
    said = await ask() or caplog.text
    assert "the proxy http://proxy.invalid:3128" in said
    assert "secret" not in said


DIRECT = """
    10.1.2.3:8000=10.0.0.0/8 10.1.2.3=10.1.2.3 [fd00::7]=fd00::/8 [fd00::7]=[fd00::7]
    tools.example=.example example=.example tools.example.=*.EXAMPLE calculator=a,calculator
    calculator:8000=calculator:8000 calculator=calculator:80 outside.example=*
    localhost:8000= 127.0.0.2:8000= 169.254.169.254=
"""
PROXIED = """
    11.1.2.3:8000=10.0.0.0/8 [fd00::7]=10.0.0.0/8 notexample=example outside.example=
    calculator:8001=calculator:8000
"""


@pytest.mark.parametrize(
    ("case", "proxy"),
    [*((case, None) for case in DIRECT.split()), *((case, PROXY) for case in PROXIED.split())],
)
def test_what_no_proxy_exempts(monkeypatch, case, proxy):
    host, _, no_proxy = case.partition("=")
    monkeypatch.setenv("ALL_PROXY", PROXY)
    monkeypatch.setenv("NO_PROXY", no_proxy)
    assert proxy_for(f"http://{host}/mcp") == proxy


@pytest.mark.parametrize(
    ("variables", "proxy"),
    [
        ({"HTTPS_PROXY": PROXY}, PROXY),
        ({"HTTP_PROXY": PROXY}, None),
        ({"HTTPS_PROXY": "http://upper:1", "https_proxy": PROXY}, PROXY),
        ({"HTTPS_PROXY": "127.0.0.1:3128"}, PROXY),
        ({"HTTPS_PROXY": "socks5://127.0.0.1:1080"}, None),
    ],
)
def test_which_variable_names_the_proxy(monkeypatch, variables, proxy):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert proxy_for("https://models.example.com/v1") == proxy
    assert proxy_for("nonsense") is proxy_for("https://host:nonsense") is None


def test_a_delegation_is_not_sent_where_the_proxy_opens_no_tunnel(monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", PROXY)
    error = A2AClientError("403 Forbidden")
    request = httpx.Request("POST", "https://outside.example/a2a")
    error.__cause__ = httpx.ProxyError("403 Forbidden", request=request)
    found = explain(error, "helper", "did not take the task")
    assert found.kind == "unavailable"
    assert found.message == f"through the proxy {PROXY}: agent helper cannot be reached"


def test_the_start_says_what_goes_through_a_proxy(monkeypatch):
    assert not list(proxy_notices())
    monkeypatch.setenv("HTTPS_PROXY", "http://user:secret@proxy.infra:3128")
    monkeypatch.setenv("ALL_PROXY", "socks5://proxy.infra:1080")
    refused, used = proxy_notices()
    assert refused.startswith("ALL_PROXY is ignored: only http:// and https://")
    assert "https through http://proxy.infra:3128; exempt: nothing" in used
