"""Where an agent may connect to, and that nothing connects elsewhere."""

import asyncio
import json
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import httpx2
import pytest
from support.hostile import listed, mcp_app, self_signed, serving

from diptych.a2a.agents import A2aAgents
from diptych.core.errors import ModelError
from diptych.core.messages import Message
from diptych.core.model_request import ModelRequest
from diptych.manifest.settings import ModelConfig, PeerConfig, TimeoutConfig, ToolServerConfig
from diptych.mcp import McpTools
from diptych.mcp.transport import RecordingTransport
from diptych.models.chat_model import ChatModel
from diptych.models.connection import allow_url, open_http_session
from diptych.net.outgoing import AddressRefused, OutgoingPolicy

ALWAYS_REFUSED = [
    "169.254.169.254",
    "::ffff:169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "::169.254.169.254",
    "2002:a9fe:a9fe::1",
    "fe80::1",
    "fd00:ec2::254",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "0.0.0.0",
    "224.0.0.1",
]
PRIVATE = ["10.0.0.1", "100.64.0.1", "fd12::1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "::10.0.0.1"]
LOOPBACK = ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1"]


def test_some_addresses_are_refused_even_if_they_are_named() -> None:
    for address in ALWAYS_REFUSED:
        url = f"http://[{address}]/" if ":" in address else f"http://{address}/"
        for is_in_pod in (True, False):
            policy = OutgoingPolicy([url, "http://tools"], is_in_pod=is_in_pod)
            assert policy.refusal(address, address)
            assert policy.refusal("tools", address)


def test_a_private_address_is_for_what_the_manifest_names() -> None:
    for address in PRIVATE:
        policy = OutgoingPolicy(["http://Tools:8000/mcp"], is_in_pod=True)
        assert policy.refusal("tools", address) is None
        assert policy.refusal("other", address)
        policy.allow("http://other/")
        assert policy.refusal("other", address) is None


def test_in_a_pod_only_a_url_that_says_so_leads_to_loopback() -> None:
    for address in LOOPBACK:
        pod = OutgoingPolicy(["http://localhost:3000", "http://tools"], is_in_pod=True)
        assert pod.refusal("localhost", address) is None
        assert pod.refusal("tools", address)
        laptop = OutgoingPolicy(["http://tools"], is_in_pod=False)
        assert laptop.refusal("tools", address) is None
        assert laptop.refusal("other", address)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Give a name server: each look-up of a name takes the next of its addresses."""
    found: dict[str, list[str]] = {}
    real = socket.getaddrinfo

    def look_up(host: Any, port: Any, *args: Any, **options: Any) -> Any:
        if host in found:
            addresses = found[host]
            host = addresses.pop(0) if len(addresses) > 1 else addresses[0]
        return real(host, port, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return found


class Counting:
    """An application that counts the requests that reach it."""

    def __init__(self, app: Callable[..., Any]) -> None:
        self.app = app
        self.requests = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.requests += scope["type"] == "http"
        await self.app(scope, receive, send)


REFUSED = "agents may not connect to its address"


@pytest.mark.parametrize(
    ("in_pod", "reason"),  # the SDK's server serves no such host, so 421 says that it was reached
    [(False, "HTTP 421: it does not serve this host name"), (True, REFUSED)],
    ids=["on a laptop", "in a pod"],
)
async def test_a_name_that_leads_to_loopback(
    names: dict[str, list[str]],
    monkeypatch: pytest.MonkeyPatch,
    in_pod: bool,
    reason: str,
) -> None:
    if in_pod:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    names["tools.test"] = ["127.0.0.1"]
    app = Counting(mcp_app([listed("t")]))
    async with serving(app) as url:
        port = url.rpartition(":")[2]
        config = ToolServerConfig("s", url=f"http://tools.test:{port}/mcp")
        async with McpTools([config]) as tools:
            await tools.wait_for_first_attempt()
            (entry,) = tools.snapshot()[1]
    assert entry.reason == reason
    assert (app.requests > 0) == (not in_pod)


@pytest.mark.parametrize("address", ["169.254.169.254", "fe80::1"])
async def test_a_metadata_service_is_never_reached(
    names: dict[str, list[str]], address: str
) -> None:
    names["meta.test"] = [address]
    config = ToolServerConfig("s", url="http://meta.test/mcp")
    async with McpTools([config]) as tools:
        await tools.wait_for_first_attempt()
        (entry,) = tools.snapshot()[1]
    assert entry.reason == REFUSED
    agents = A2aAgents([PeerConfig("p", "http://meta.test")], "http://me")
    await agents.start()
    await agents.wait_for_first_attempt(5)
    (missing,) = agents.snapshot()[1]
    await agents.aclose()
    assert missing.reason.startswith("it cannot be reached: link-local addresses")


async def test_an_agent_that_redirects_leads_nowhere() -> None:
    elsewhere = Counting(mcp_app([]))
    async with serving(elsewhere) as target:

        async def redirecting(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                headers = [(b"location", f"{target}/card.json".encode())]
                await send({"type": "http.response.start", "status": 307, "headers": headers})
                await send({"type": "http.response.body", "body": b""})

        async with serving(redirecting) as url:
            agents = A2aAgents([PeerConfig("p", url)], "http://me")
            await agents.start()
            await agents.wait_for_first_attempt(5)
            await agents.aclose()
    assert elsewhere.requests == 0


async def test_credentials_go_to_their_own_origin_only() -> None:
    seen = {}

    async def answer(request: httpx2.Request) -> httpx2.Response:
        seen[str(request.url)] = request.headers.get("authorization")
        return httpx2.Response(200, stream=httpx2.ByteStream(b""))

    headers = {"Authorization": lambda: "canary"}
    transport = RecordingTransport(httpx2.MockTransport(answer), "https://tools.test/mcp", headers)
    others = ("http://tools.test/mcp", "https://tools.test:8443/mcp", "https://evil.test/mcp")
    async with httpx2.AsyncClient(transport=transport) as client:
        for url in ("https://tools.test/other", *others):
            await client.get(url)
    assert seen == {"https://tools.test/other": "canary"} | dict.fromkeys(others)


# Models: the same over aiohttp


class Upstream(Counting):
    """A model's server that counts, and remembers who showed which key."""

    def __init__(self, status: int = 200, **headers: str) -> None:
        super().__init__(self._answer)
        self.keys: list[str] = []
        self._status = status
        self._headers = [(name.encode(), value.encode()) for name, value in headers.items()]

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        self.keys += [v.decode() for n, v in scope["headers"] if n == b"authorization"]
        choice = {"message": {"content": "hi"}, "finish_reason": "stop"}
        headers = [(b"content-type", b"application/json"), *self._headers]
        await send({"type": "http.response.start", "status": self._status, "headers": headers})
        body = json.dumps({"choices": [choice]}).encode()
        await send({"type": "http.response.body", "body": body})


async def asked(
    *endpoints: str, key: str = "sk-canary-canary", proxy: str | None = None
) -> str | None:
    """Ask a model with fallbacks; give the message of its failure, None if it replied."""
    first, *others = [
        ModelConfig("m", url, api_key=lambda: key, timeouts=TimeoutConfig(2, 2, 2, 4), proxy=proxy)
        for url in endpoints
    ]

    async def no_wait(_: float) -> None:
        """Retry at once."""

    async with open_http_session() as session:
        model = ChatModel(session, replace(first, fallbacks=tuple(others)), sleep=no_wait)
        try:
            await model.complete(ModelRequest((Message("user", "hi"),)))
        except ModelError as error:
            return error.message
    return None


@pytest.mark.parametrize("in_pod", [False, True], ids=["on a laptop", "in a pod"])
async def test_a_model_s_name_that_leads_to_loopback(
    names: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch, in_pod: bool
) -> None:
    if in_pod:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    names["model.test"] = ["127.0.0.1"]
    upstream = Upstream()
    async with serving(upstream) as url:
        port = url.rpartition(":")[2]
        failure = await asked(f"http://model.test:{port}/v1")
        assert (failure is not None) == in_pod
        assert upstream.requests == (not in_pod)
        assert await asked(f"http://127.0.0.1:{port}/v1") is None  # a sidecar, written as one
    assert failure is None or "its name resolves to loopback" in failure


@pytest.mark.parametrize("address", ["fe80::1", "100.100.100.200"])
async def test_a_model_s_name_never_leads_to_a_metadata_service(
    names: dict[str, list[str]], address: str
) -> None:
    names["model.test"] = [address]
    failure = await asked("http://model.test/v1")
    assert failure is not None
    assert "link-local addresses and metadata services are not allowed" in failure


@pytest.mark.parametrize("url", ["http://169.254.169.254/v1", "http://[fd00:ec2::254]/v1"])
async def test_an_address_in_the_endpoint_s_url_is_checked_too(url: str) -> None:
    failure = await asked(url)
    assert failure is not None
    assert "metadata services are not allowed" in failure


async def test_a_model_s_name_that_changes_its_mind_leads_nowhere(
    names: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """DNS rebinding: the first look-up is answered well, the next with the metadata service."""
    names["model.test"] = ["127.0.0.1", "169.254.169.254"]
    upstream = Upstream(status=503, connection="close")
    monkeypatch.setattr("aiohttp.connector._DNSCacheTable.expired", lambda *_: True)
    async with serving(upstream) as url:
        failure = await asked(f"http://model.test:{url.rpartition(':')[2]}/v1")
    assert failure is not None
    assert "metadata services are not allowed" in failure
    assert upstream.requests == 1


async def test_what_nobody_named_is_not_reached_at_private_addresses(
    names: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An issuer's document may name any URL for its keys."""
    names |= {"keys.test": ["10.9.8.7"], "issuer.test": ["10.9.8.7"]}
    async with open_http_session() as session:
        allow_url(session, "https://issuer.test")
        for url in ("http://keys.test/", "http://10.9.8.7/", "http://[::1]/", "http://127.0.0.1/"):
            with pytest.raises(aiohttp.ClientConnectorError) as refused:
                await session.get(url)
            assert isinstance(refused.value.os_error, AddressRefused)
        with pytest.raises((aiohttp.ClientError, TimeoutError)) as tried:
            async with asyncio.timeout(0.2):
                await session.get("https://issuer.test/")
        assert not isinstance(getattr(tried.value, "os_error", None), AddressRefused)


async def test_a_model_that_redirects_leads_nowhere_and_keys_stay_with_their_endpoint() -> None:
    elsewhere, other = Upstream(), Upstream()
    async with serving(elsewhere) as target, serving(other) as fallback:
        redirecting = Upstream(status=307, location=f"{target}/v1/chat/completions")
        async with serving(redirecting) as url:
            assert await asked(f"{url}/v1", f"{fallback}/v1") is None
    assert elsewhere.requests == 0
    assert redirecting.keys
    assert set(redirecting.keys + other.keys) == {"Bearer sk-canary-canary"}


async def test_tls_of_a_model_is_always_verified(tmp_path: Path) -> None:
    """The server has a certificate that nobody signed."""
    upstream = Upstream()
    async with serving(upstream, certificate=self_signed(tmp_path)) as url:
        failure = await asked(url.replace("http://127.0.0.1", "https://localhost") + "/v1")
    assert failure is not None
    assert "its TLS certificate or handshake is invalid" in failure
    assert upstream.requests == 0
