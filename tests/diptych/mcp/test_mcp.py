"""`McpTools` against real MCP servers: in this loop, and in processes that can be killed."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mcp.server import MCPServer
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import Context
from support import hostile
from support.mcp_tools import connected, ends_as, older, reasons, tool_of, unheard, until
from support.redis_server import free_port

from diptych.core.catalog import Tool, Unavailable
from diptych.core.messages import CallOutput
from diptych.manifest.settings import OverrideConfig, ToolServerConfig
from diptych.mcp import ConnectionSettings, McpTools, transport
from diptych.net.received import ANSWERS
from diptych.ports import CallContext

App = Callable[..., Any]
START_SECONDS = 60.0  # of a cold process on a machine that has other work
TALLY = Path(__file__).parent / "servers" / "tally.py"
NO_MCP = f": {transport.NO_MCP}"


@pytest.fixture(autouse=True)
def _what_was_received_is_given_back() -> Iterator[None]:
    """Otherwise the answers of all servers would some day take too much memory together."""
    yield
    assert ANSWERS.used == 0


@asynccontextmanager
async def serving(app: App, port: int = 0) -> AsyncIterator[str]:
    async with hostile.serving(app, port=port) as url:
        yield f"{url}/mcp"


def app_of(server: MCPServer[Any] | Server[Any], **options: Any) -> App:
    return server.streamable_http_app(**options)


def calculator() -> MCPServer[Any]:
    server = MCPServer("calculator")

    @server.tool()
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    return server


async def test_a_tool_is_offered_as_its_server_describes_it_and_can_be_called() -> None:
    async with (
        serving(app_of(calculator())) as url,
        connected(ToolServerConfig("c", url=url)) as tools,
    ):
        [tool], unavailable = tools.snapshot()
        assert (tool.server, tool.name, tool.description) == ("c", "add", "Add two numbers.")
        assert set(tool.input_schema["properties"]) == {"a", "b"}  # type: ignore[arg-type]
        assert unavailable == ()
        assert reasons(tools) == {}
        answer = await tools.call(tool, {"a": 2, "b": 3}, unheard)
        assert answer == CallOutput("5", {"result": 5})


async def test_a_server_that_is_down_at_the_start_is_offered_when_it_is_up() -> None:
    port = free_port()
    async with connected(ToolServerConfig("c", url=f"http://127.0.0.1:{port}/mcp")) as tools:
        down = Unavailable("server", "c", "connection refused", None)
        assert tools.snapshot() == ((), (down,))
        async with serving(app_of(calculator()), port):
            tool = await tool_of(tools, "c__add")
            assert (await tools.call(tool, {"a": 1, "b": 1}, unheard)).text == "2"


async def test_a_certificate_of_an_unknown_authority_is_named(tmp_path: Path) -> None:
    app = app_of(calculator())
    async with hostile.serving(app, certificate=hostile.self_signed(tmp_path)) as url:
        server = ToolServerConfig("c", url=f"{url.replace('http', 'https')}/mcp")
        async with connected(server) as tools:
            assert reasons(tools) == {"c": "its certificate is not trusted"}


async def test_to_look_at_a_server_that_is_down_does_not_override_the_backoff() -> None:
    port = free_port()
    patient = ConnectionSettings(initial_delay=3600, max_delay=3600)
    server = ToolServerConfig("c", url=f"http://127.0.0.1:{port}/mcp")
    async with connected(server, settings=patient) as tools:
        async with serving(app_of(calculator()), port):
            for _ in range(20):
                assert reasons(tools) == {"c": "connection refused"}
                await asyncio.sleep(0.01)
            tools.retry_unavailable()
            await until(lambda: not reasons(tools))


async def test_a_session_that_ends_is_noticed_at_once() -> None:
    server = ToolServerConfig("c", url=f"http://127.0.0.1:{(port := free_port())}/mcp")
    async with connected(server, settings=ConnectionSettings(refresh_interval=60)) as tools:
        async with serving(older(app_of(calculator())), port):
            await tool_of(tools, "c__add")
        await until(lambda: reasons(tools) == {"c": "connection refused"})


class Killable:
    """`servers/tally.py` over HTTP in a process of its own."""

    def __init__(self, folder: Path, era: str) -> None:
        self.era = era
        self.port = free_port()
        self.file = folder / "tally"
        self.file.touch()
        self._process: asyncio.subprocess.Process | None = None

    @property
    def server(self) -> ToolServerConfig:
        return ToolServerConfig("tally", url=f"http://127.0.0.1:{self.port}/mcp")

    @property
    def lines(self) -> list[str]:
        return self.file.read_text().splitlines()

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, str(TALLY), self.era, str(self.file), str(self.port), stderr=-3
        )
        await self._listens()

    async def _listens(self) -> None:
        """Wait until it takes connections: on a busy machine it takes long to start."""
        async with asyncio.timeout(START_SECONDS):
            while True:
                with contextlib.suppress(ConnectionRefusedError):
                    _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                    writer.close()
                    return
                await asyncio.sleep(0.02)

    def stop(self) -> None:
        """Let it hang: its connections stay, and nothing answers."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    async def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            await self._process.wait()
            self._process = None


@pytest.fixture
async def killable(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Killable]:
    server = Killable(tmp_path, getattr(request, "param", "newer"))
    await server.start()
    yield server
    await server.kill()


@pytest.mark.parametrize("killable", ["newer", "sse"], indirect=True)
async def test_a_server_killed_in_a_call_leaves_it_unknown_and_sent_once(
    killable: Killable,
) -> None:
    async with connected(killable.server) as tools:
        tool = await tool_of(tools, "tally__wait")
        call = asyncio.create_task(tools.call(tool, {"seconds": 30}, unheard))
        await until(lambda: killable.lines)
        await killable.kill()
        with ends_as("unknown"):
            await call
        assert tools.snapshot()[0] == ()
        await killable.start()
        await tool_of(tools, "tally__wait")
    assert killable.lines == ["waiting"]


class Waiting:
    """A server with a tool that waits for ever, and what became of its calls."""

    def __init__(self) -> None:
        self.began = 0
        self.cancelled = 0
        self.server = MCPServer("waiting")
        self.server.add_tool(self.wait)

    async def wait(self) -> str:
        self.began += 1
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return "done"


AppOf = Callable[[MCPServer[Any]], App]
ERAS = [
    pytest.param(app_of, id="protocol without sessions"),
    pytest.param(lambda server: older(app_of(server)), id="protocol with sessions"),
    pytest.param(lambda server: server.sse_app(sse_path="/mcp"), id="HTTP+SSE"),
]


@pytest.mark.parametrize("era", ERAS)
async def test_a_call_that_takes_too_long_is_cancelled_at_the_server(
    era: AppOf,
) -> None:
    waiting = Waiting()
    async with serving(era(waiting.server)) as url:
        slow = ToolServerConfig("w", url=url, overrides=(OverrideConfig("wa*", timeout=0.1),))
        async with connected(slow) as tools:
            with ends_as("unknown", "wait gave no answer within 0.1 s"):
                await tools.call(tools.snapshot()[0][0], {}, unheard)
            await until(lambda: waiting.cancelled)
            assert reasons(tools) == {}
    assert (waiting.began, waiting.cancelled) == (1, 1)


async def test_a_session_that_the_server_forgot_is_made_anew_for_the_call() -> None:
    port = free_port()
    server = ToolServerConfig("c", url=f"http://127.0.0.1:{port}/mcp")
    async with connected(
        server, settings=ConnectionSettings(initial_delay=0.02, refresh_interval=60)
    ) as tools:
        async with serving(older(app_of(calculator())), port):
            tool = await tool_of(tools, "c__add")
        async with serving(older(app_of(calculator())), port):
            assert (await tools.call(tool, {"a": 1, "b": 1}, unheard)).text == "2"


@pytest.mark.parametrize("era", ERAS)
async def test_progress_is_told_while_the_tool_runs(era: AppOf) -> None:
    server = MCPServer("steps")
    told: list[str] = []

    @server.tool()
    async def walk(ctx: Context) -> str:
        await ctx.report_progress(1, 3, "the first step")
        await ctx.report_progress(2, 3)
        await ctx.report_progress(2.5)
        await until(lambda: len(told) == 3)
        return "there"

    async with (
        serving(era(server)) as url,
        connected(ToolServerConfig("s", url=url)) as tools,
    ):
        answer = await tools.call(tools.snapshot()[0][0], {}, CallContext(told.append))
    assert answer.text == "there"
    assert told == ["the first step", "2 of 3", "2.5"]


def named_first(event: str) -> App:
    """Name an endpoint over HTTP+SSE, and answer every message with 404."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        is_stream = scope["method"] == "GET"
        headers = [(b"content-type", b"text/event-stream")] if is_stream else []
        status = 200 if is_stream else 404
        await send({"type": "http.response.start", "status": status, "headers": headers})
        body = event.encode() if is_stream else b""
        await send({"type": "http.response.body", "body": body, "more_body": bool(body)})
        if body:
            await asyncio.sleep(60)

    return app


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        ("event: endpoint\ndata: http://127.0.0.1:1/messages\n\n", "names no endpoint on the same"),
        ("event: message\ndata: /messages\n\n", "names no endpoint on the same"),
        ("", "ended before it named an endpoint"),
        ("event: endpoint\ndata: /messages\n\n", f"HTTP 404{NO_MCP}"),
        ("event: endpoint\ndata: " + "x" * 5 * 2**20, "ended before it named an endpoint"),
    ],
)
async def test_an_event_stream_that_names_no_endpoint_of_its_own_is_refused(
    event: str, reason: str
) -> None:
    async with serving(named_first(event)) as url:
        async with connected(ToolServerConfig("e", url=url)) as tools:
            assert reason in reasons(tools)["e"]


@pytest.mark.parametrize(
    ("status", "kind", "reason"), [(404, "unavailable", "HTTP 404"), (500, "unknown", "HTTP 500")]
)
async def test_a_message_refused_over_http_sse_fails_its_call_only(
    status: int, kind: str, reason: str
) -> None:
    behind = calculator().sse_app(sse_path="/mcp")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        message = await receive() if scope.get("method") == "POST" else {}
        if b'"tools/call"' in message.get("body", b"") and b'"a":13' in message["body"]:
            await send({"type": "http.response.start", "status": status, "headers": []})
            await send({"type": "http.response.body", "body": b"no"})
            return

        async def replay() -> Any:
            nonlocal message
            said, message = message, {}
            return said or await receive()

        await behind(scope, replay, send)

    async with serving(app) as url, connected(ToolServerConfig("c", url=url)) as tools:
        tool = await tool_of(tools, "c__add")
        with ends_as(kind, reason):
            await tools.call(tool, {"a": 13, "b": 1}, unheard)
        await tool_of(tools, "c__add")
        assert (await tools.call(tool, {"a": 1, "b": 1}, unheard)).text == "2"


def guarded() -> MCPServer[Any]:
    server = MCPServer("guarded")

    @server.tool()
    def seen(ctx: Context) -> str:
        return str((ctx.headers or {}).get("authorization"))

    return server


async def test_a_password_in_the_url_is_sent_as_a_header() -> None:
    async with serving(app_of(guarded())) as url:
        known = ToolServerConfig("g", url=url.replace("//", "//me:secret@"))
        async with connected(known) as tools:
            told = (await tools.call(tools.snapshot()[0][0], {}, unheard)).text
    assert told == "Basic bWU6c2VjcmV0"


async def test_headers_are_read_when_they_are_used() -> None:
    secrets: dict[str, str | None] = {"key": "first"}
    async with serving(app_of(guarded())) as url:
        config = ToolServerConfig("g", url=url, headers={"Authorization": lambda: secrets["key"]})
        async with connected(config) as tools:
            tool = tools.snapshot()[0][0]
            assert (await tools.call(tool, {}, unheard)).text == "first"
            secrets["key"] = "second\n"
            assert (await tools.call(tool, {}, unheard)).text == "second"
            secrets["key"] = None
            with ends_as("unavailable", "header Authorization has no value yet"):
                await tools.call(tool, {}, unheard)
            secrets["key"] = "third\nforbidden"
            with ends_as("unavailable", "^tool server g: a header has a value that cannot be sent"):
                await tools.call(tool, {}, unheard)
            secrets["key"] = "fourth"
            await tool_of(tools, "g__seen")


class Answering:
    """An HTTP server that answers as told, and counts the calls of tools that reached it."""

    def __init__(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None):
        self.behind = app_of(calculator())
        self.status = status
        self.body = body
        self.headers = [(k.encode(), v.encode()) for k, v in (headers or {}).items()]
        self.breaks: Callable[[bytes], bool] = lambda method: True
        self.calls = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        method = dict(scope.get("headers", ())).get(b"mcp-method", b"")
        self.calls += method == b"tools/call"
        if scope["type"] != "http" or not self.breaks(method):
            await self.behind(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
        await send({"type": "http.response.body", "body": self.body})


@pytest.mark.parametrize(
    ("status", "hint"),
    [
        (403, ": it refuses the credentials, or this host name"),
        (404, NO_MCP),
    ],
)
async def test_an_http_error_at_the_start_is_the_reason_and_gone_when_it_is(
    status: int, hint: str
) -> None:
    app = Answering(status)
    async with serving(app) as url, connected(ToolServerConfig("a", url=url)) as tools:
        assert reasons(tools) == {"a": f"HTTP {status}{hint}"}
        app.breaks = lambda method: False
        await tool_of(tools, "a__add")


PLAIN, JSON = {"content-type": "text/plain"}, {"content-type": "application/json"}
SSE = {"content-type": "text/event-stream"}
NEITHER = b'{"jsonrpc":"2.0","id":1}'
UNWELL = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"not on sundays"}}'
ELSE = b'{"jsonrpc":"2.0","id":999,"result":{"content":7}}'


@pytest.mark.parametrize(
    ("status", "body", "headers", "kind"),
    [
        pytest.param(401, b"", {}, "unavailable", id="turned away"),
        pytest.param(200, b"data: {\n\n", SSE, "unknown", id="no JSON in a stream"),
        pytest.param(200, NEITHER, JSON, "unknown", id="neither result nor error"),
        pytest.param(202, b"", {}, "unknown", id="accepted, but never answered"),
        pytest.param(200, b'data: {"jsonrpc":', SSE, "unknown", id="a stream that ends too early"),
        pytest.param(200, ELSE, JSON, "unknown", id="an answer to another question"),
        pytest.param(200, UNWELL, JSON, "failed", id="an error without an id"),
        pytest.param(202, UNWELL, {}, "failed", id="an error without an id or a type"),
        pytest.param(200, b" " * 17 * 2**20, JSON, "unknown", id="an answer without end"),
    ],
)
async def test_a_broken_answer_to_a_call_is_an_error_of_that_call(
    status: int, body: bytes, headers: dict[str, str], kind: str
) -> None:
    app = Answering(status, body, headers)
    app.breaks = lambda method: method == b"tools/call"
    async with serving(app) as url, connected(ToolServerConfig("a", url=url)) as tools:
        add = await tool_of(tools, "a__add")
        texts = {"unknown": "^outcome: unknown. .* may have taken effect: "}
        async with asyncio.timeout(5):  # and not the 60 s of a call
            with ends_as(kind, "not on sundays" if body == UNWELL else texts.get(kind)):
                await tools.call(add, {"a": 1, "b": 1}, unheard)
            if kind == "unknown":
                with ends_as("failed"):
                    await tools.call(replace(add, read_only=True), {"a": 1, "b": 1}, unheard)
                with ends_as("failed"):
                    await tools.call(replace(add, idempotent=True), {"a": 1, "b": 1}, unheard)
        await tool_of(tools, "a__add")
    assert app.calls == (3 if kind == "unknown" else 1)


async def test_a_result_without_a_type_is_complete() -> None:
    body = b'{"jsonrpc":"2.0","id":null,"result":{"content":[{"type":"text","text":"2"}]}}'
    app = Answering(200, body, JSON)
    app.breaks = lambda method: method == b"tools/call"
    async with serving(app) as url, connected(ToolServerConfig("a", url=url)) as tools:
        add = await tool_of(tools, "a__add")
        assert (await tools.call(add, {"a": 1, "b": 1}, unheard)).text.startswith("2")


@asynccontextmanager
async def silence() -> AsyncIterator[str]:
    """Accept connections and say nothing."""

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"


async def test_a_server_that_accepts_and_says_nothing_is_unavailable() -> None:
    async with (
        silence() as url,
        connected(
            ToolServerConfig("s", url=url), settings=ConnectionSettings(connect_timeout=0.1)
        ) as tools,
    ):
        assert reasons(tools) == {"s": "did not answer within 0.1 s"}


@pytest.mark.parametrize(
    ("server", "reason"),
    [
        pytest.param(
            ToolServerConfig("x", url="http://nobody.invalid/mcp"),
            "its host name is not known",
            id="unknown host",
        ),
        pytest.param(
            ToolServerConfig("x", url="calculator:8000"),
            "its URL must start with http:// or https://",
            id="no http",
        ),
        pytest.param(
            ToolServerConfig("x", command=("true",)), "exited with code 0", id="command that ends"
        ),
        pytest.param(
            ToolServerConfig("x", command=("true",), env={"KEY": lambda: None}),
            "variable KEY has no value yet",
            id="missing secret",
        ),
    ],
)
async def test_what_is_wrong_with_a_server_is_said_in_a_few_words(
    server: ToolServerConfig, reason: str
) -> None:
    async with connected(server) as tools:
        assert tools.snapshot() == ((), (Unavailable("server", "x", reason, None),))
        with ends_as("unavailable", f"^tool server x: {reason}$"):
            await tools.call(Tool("x", "t", "", {}), {}, unheard)


@pytest.mark.parametrize("killable", ["older"], indirect=True)
async def test_closing_is_quick_and_leaves_nothing_though_a_server_hangs(
    killable: Killable,
) -> None:
    before = asyncio.all_tasks()
    tools = McpTools([killable.server])
    tools.start()
    tool = await tool_of(tools, "tally__wait")
    call = asyncio.create_task(tools.call(tool, {"seconds": 30}, unheard))
    await until(lambda: killable.lines)
    killable.stop()
    async with asyncio.timeout(2):
        await tools.aclose()
    with ends_as("unknown"):
        await call
    assert asyncio.all_tasks() == before
    assert reasons(tools) == {"tally": "closed"}
    with ends_as("unavailable", "closed"):
        await tools.call(tool, {}, unheard)
