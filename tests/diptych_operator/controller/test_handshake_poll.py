"""What the operator learns of MCPServers, from servers that are really there."""

import asyncio
import contextlib

import pytest
from aiohttp import web
from mcp.server import MCPServer
from support.agents import mcp_server, mcp_server_object
from support.in_process_server import in_process

from diptych.mcp import tool_rules
from diptych_operator.controller import mcp_handshake
from diptych_operator.controller.cache import ObjectCache
from diptych_operator.controller.handshake_poll import HandshakePoll
from diptych_operator.controller.work_queue import WorkQueue
from diptych_operator.resources.kinds import MCP_SERVER, POD, ObjectKey
from diptych_operator.status.mcp_server import Handshake

KEY = ObjectKey(MCP_SERVER, "team", "calc")


@contextlib.asynccontextmanager
async def serving_http(handle):
    """Serve all requests by a handler; yields the port."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def poll(**spec):
    """Make a poll that knows one server."""
    cache, queue = ObjectCache(), WorkQueue()
    cache.put(MCP_SERVER, mcp_server_object(**spec))
    return HandshakePoll(cache, queue), cache, queue


def put_pod(cache):
    metadata = {"name": "calc-1", "namespace": "team", "uid": "p"}
    metadata["labels"] = mcp_server().child_labels
    cache.put(POD, {"metadata": metadata, "status": {"phase": "Running", "podIP": "127.0.0.1"}})


@pytest.fixture
def on_loopback(monkeypatch):
    async def allowed(url):
        return None

    monkeypatch.setattr(mcp_handshake, "_refusal", allowed)


def add(a: int, b: int) -> int:
    """Add two numbers, café or not."""
    return a + b


@contextlib.asynccontextmanager
async def serving(server):
    app = server.streamable_http_app()
    async with server.session_manager.run(), in_process(app) as there:
        yield f"{there.url}/mcp"


@pytest.mark.usefixtures("on_loopback")
async def test_any_other_server_is_asked_by_the_sdk_and_digests_are_those_of_pins():
    server = MCPServer("search", version="2")
    server.add_tool(add)
    async with serving(server) as url:
        asking, cache, queue = poll(source={"remote": {"url": url}})
        await asking.ask_due()
        assert len(queue) == 1
    await asking.ask_due()  # it is not due, so that nobody notices that it is gone
    found = cache.handshakes[KEY]
    assert found.tools == tool_rules.digests(await server.list_tools())
    assert found.server_info["name"] == "search"
    assert found.server_info["version"] == "2"


@pytest.mark.usefixtures("on_loopback")
@pytest.mark.parametrize(
    "answer",
    [
        {"status": 404},
        {"text": "x" * 2_000_000, "content_type": "application/json"},
        {"status": 307, "headers": {"Location": "http://127.0.0.1:1/"}},
    ],
)
async def test_what_is_no_mcp_server_is_the_reason(answer):
    async def handle(request):
        return web.Response(**answer)

    async with serving_http(handle) as port:
        found = await mcp_handshake.handshake(f"http://127.0.0.1:{port}/mcp", {})
    assert "does not answer as an MCP server" in found.reason


@pytest.mark.usefixtures("on_loopback")
async def test_a_server_that_is_silent_or_not_there_holds_nobody_up(monkeypatch):
    monkeypatch.setattr(mcp_handshake, "_SECONDS", 0.2)

    async def handle(request):
        await asyncio.sleep(1)

    async with serving_http(handle) as port:
        found = await mcp_handshake.handshake(f"http://127.0.0.1:{port}/mcp", {})
        assert found.reason
    gone = await mcp_handshake.handshake(f"http://127.0.0.1:{port}/mcp", {})
    assert gone.reason


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1/mcp", "http://[::1]/", "http://169.254.169.254"]
)
async def test_the_operator_asks_nothing_of_its_own_machine(url):
    found = await mcp_handshake.handshake(url, {})
    assert "operator's own machine" in found.reason


async def test_a_server_whose_headers_are_in_a_secret_is_not_asked():
    header = {"name": "X", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}
    url = "http://127.0.0.1:1/mcp"
    asking, cache, _ = poll(source={"remote": {"url": url, "headers": [header]}})
    await asking.ask_due()
    assert not cache.handshakes


@pytest.mark.usefixtures("on_loopback")
async def test_an_image_is_asked_at_its_service_once_it_has_a_pod_and_until_it_answers(
    monkeypatch,
):
    answers = [Handshake(reason="no"), Handshake({"add": "sha256:1"})]
    asked = []

    async def ask(url, headers):
        asked.append(url)
        return answers.pop(0)

    monkeypatch.setattr(mcp_handshake, "handshake", ask)
    asking, cache, _ = poll(source={"containerImage": {"ref": "search:1"}})
    await asking.ask_due()
    assert not asked
    put_pod(cache)
    for _ in range(3):
        await asking.ask_due()
    assert asked == ["http://calc-tools.team.svc:8000/mcp"] * 2
    assert cache.handshakes[KEY].tools


async def test_a_pod_of_our_image_is_not_asked_here():
    asking, cache, _ = poll()
    put_pod(cache)
    await asking.ask_due()
    assert not cache.handshakes
