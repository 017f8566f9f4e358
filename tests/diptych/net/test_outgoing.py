"""Where an agent may connect to, and that nothing connects elsewhere."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import aiohttp
import httpx2
import pytest
from support.hostile import listed, mcp_app, serving

from diptych.adapters.a2a import A2aAgents
from diptych.adapters.mcp import McpTools
from diptych.adapters.mcp.transport import RecordingTransport
from diptych.config.settings import PeerConfig, ToolServerConfig
from diptych.net.outgoing import AddressRefused, OutgoingPolicy, host_of

ALWAYS_REFUSED = [
    "169.254.169.254",
    "169.254.0.1",
    "::ffff:169.254.169.254",
    "::ffff:a9fe:a9fe",
    "64:ff9b::a9fe:a9fe",
    "2002:a9fe:a9fe::1",
    "fe80::1",
    "fe80::1%eth0",
    "fd00:ec2::254",
    "fd20:ce::254",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "0.0.0.0",
    "::",
    "224.0.0.1",
    "ff02::1",
]
PRIVATE = [
    "10.0.0.1",
    "172.16.5.5",
    "192.168.1.1",
    "100.64.0.1",
    "fd12::1",
    "::ffff:10.0.0.1",
    "64:ff9b::a00:1",
    "2002:a00:1::",
]
PUBLIC = ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8"]
LOOPBACK = ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1"]


@pytest.mark.parametrize("address", ALWAYS_REFUSED)
def test_some_addresses_are_refused_even_if_they_are_named(address: str) -> None:
    url = f"http://[{address}]/" if ":" in address else f"http://{address}/"
    for is_in_pod in (True, False):
        policy = OutgoingPolicy([url, "http://tools"], is_in_pod=is_in_pod)
        assert policy.refusal(address, address)
        assert policy.refusal("tools", address)


@pytest.mark.parametrize("address", PRIVATE)
def test_a_private_address_is_for_what_the_manifest_names(address: str) -> None:
    policy = OutgoingPolicy(["http://Tools:8000/mcp"], is_in_pod=True)
    assert policy.refusal("tools", address) is None
    assert policy.refusal("other", address)
    policy.allow("http://other/")
    assert policy.refusal("other", address) is None


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_for_everybody(address: str) -> None:
    assert OutgoingPolicy([], is_in_pod=True).refusal("anywhere", address) is None


@pytest.mark.parametrize("address", LOOPBACK)
def test_in_a_pod_only_a_url_that_says_so_leads_to_loopback(address: str) -> None:
    pod = OutgoingPolicy(["http://localhost:3000", "http://tools"], is_in_pod=True)
    assert pod.refusal("localhost", address) is None
    assert pod.refusal("tools", address)
    laptop = OutgoingPolicy(["http://tools"], is_in_pod=False)
    assert laptop.refusal("tools", address) is None
    assert laptop.refusal("other", address)


def test_a_host_is_read_from_its_url() -> None:
    assert host_of("http://User:pw@Tools.Team:8000/x") == "tools.team"
    assert host_of("http://[::1") == ""


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


REFUSED = "its address is one that agents may not connect to"


@pytest.mark.parametrize(
    ("in_pod", "reason"),  # the SDK's server serves no such host, so 421 says that it was reached
    [(False, "HTTP 421"), (True, REFUSED)],
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


async def test_a_name_that_changes_its_mind_is_connected_to_where_it_was_checked(
    names: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    names["rebind.test"] = ["203.0.113.1", "127.0.0.1"]  # a public address first, then ours
    policy = OutgoingPolicy(["http://rebind.test"])
    assert await policy.addresses("rebind.test", 80) == ["203.0.113.1"]
    with pytest.raises(AddressRefused):
        await policy.addresses("rebind.test", 80)


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


async def test_a_client_of_aiohttp_is_held_to_it_too() -> None:
    app = Counting(mcp_app([]))
    async with serving(app) as url:
        for policy, is_reached in (
            (OutgoingPolicy([url], is_in_pod=False), True),
            (OutgoingPolicy([], is_in_pod=True), False),
        ):
            factory = policy.socket_factory("models.test")
            connector = aiohttp.TCPConnector(socket_factory=factory)
            async with aiohttp.ClientSession(connector=connector) as session:
                with nullcontext() if is_reached else pytest.raises(aiohttp.ClientConnectorError):
                    async with asyncio.timeout(5), session.get(url):
                        pass
        assert app.requests == 1
