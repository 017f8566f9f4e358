"""Tool servers and agents whose answers would fill the memory, each with the bound that holds."""

import asyncio
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import mcp_types
import pytest
from mcp.server.lowlevel import Server
from support.hostile import (
    CHUNK,
    SMALL_OBJECTS,
    agent_app,
    answering_calls,
    endless,
    gzip_bomb,
    in_pieces,
    listed,
    mcp_app,
    peak_memory,
    reply,
    serving,
)
from support.mcp_tools import unheard

from diptych.a2a.agents import A2aAgents
from diptych.core.errors import DelegationError, ToolError
from diptych.manifest.settings import PeerConfig, ToolServerConfig
from diptych.mcp import McpTools
from diptych.net.received import (
    ANSWERS,
    MAX_ANSWER_BYTES,
    ReceiveBudget,
    Received,
    TooMuchReceived,
)
from diptych.ports import DelegationRequest

MEMORY = 96 * 2**20  # bytes that an attack may take, the attacker in this process included
SECONDS = 10


PROGRESS = (
    b'event: message\ndata: {"jsonrpc":"2.0","method":"notifications/message",'
    b'"params":{"level":"info","data":"'
)
JSON_TYPE, EVENTS = {"content_type": "application/json"}, {"content_type": "text/event-stream"}
ATTACKS = [
    pytest.param(
        lambda: in_pieces(gzip_bomb(600)),
        {**JSON_TYPE, "content_encoding": "gzip"},
        "its answer is compressed",
        id="600 MB that are 600 kB",
    ),
    pytest.param(
        lambda: endless(b" " * CHUNK), JSON_TYPE, "more than 4194304 bytes", id="an endless body"
    ),
    pytest.param(
        lambda: endless(PROGRESS + b"x" * CHUNK + b'"}}\n\n'),
        EVENTS,
        "more than 4194304 bytes",
        id="an endless stream of messages",
    ),
    pytest.param(
        lambda: in_pieces(reply(SMALL_OBJECTS)),
        JSON_TYPE,
        "would take more than 33554432 bytes of memory",
        id="a million objects in 4 MB",
    ),
    pytest.param(
        lambda: in_pieces(b'{"jsonrpc":"2.0","id":1,"result":' + b"[" * 2_000_000),
        JSON_TYPE,
        "would take more than 33554432 bytes of memory",
        id="2,000,000 lists in each other",
    ),
]


@pytest.mark.parametrize(("body", "headers", "reason"), ATTACKS)
async def test_no_answer_of_a_tool_fills_the_memory(
    body: Callable[[], Iterable[bytes]], headers: dict[str, str], reason: str
) -> None:
    chunks = body()
    app = answering_calls(mcp_app([listed("t")]), chunks, **headers)
    async with serving(app) as url, McpTools([ToolServerConfig("s", url=f"{url}/mcp")]) as tools:
        await tools.wait_for_first_attempt()
        ((tool,), _) = tools.snapshot()
        before, began = peak_memory(), time.monotonic()
        with pytest.raises(ToolError, match=reason) as caught:
            await tools.call(tool, {}, unheard)
        assert caught.value.kind == "unknown"
        assert time.monotonic() - began < SECONDS
        assert peak_memory() - before < MEMORY
        assert tools.snapshot()[0] == (tool,), "the connection holds"
    assert ANSWERS.used == 0


async def test_no_listing_fills_the_memory() -> None:
    async def listing(_: object, params: Any) -> mcp_types.ListToolsResult:
        page = int(params.cursor) if params and params.cursor else 0
        tool = listed(f"t{page}", schema={"type": "object", "title": "x" * 1_000_000})
        return mcp_types.ListToolsResult(tools=[tool], next_cursor=str(page + 1))

    server: Server[Any] = Server("endless", on_list_tools=listing)
    async with serving(server.streamable_http_app()) as url:
        async with McpTools([ToolServerConfig("s", url=f"{url}/mcp")]) as tools:
            await tools.wait_for_first_attempt()
            ((), (unavailable,)) = tools.snapshot()
    assert unavailable.reason == f"its answer has more than {MAX_ANSWER_BYTES} bytes"


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        pytest.param(
            "import sys\nwhile True: sys.stdout.write('x' * 65536)",
            "wrote more than 4194304 bytes on one line",
            id="one endless line",
        ),
        pytest.param(
            "print('[' + '{},' * 1_000_000 + '{}]', flush=True); input(); input()",
            "its answer would take more than 33554432 bytes of memory",
            id="a million objects",
        ),
    ],
)
async def test_no_line_of_a_command_fills_the_memory(program: str, reason: str) -> None:
    before = peak_memory()
    command = (sys.executable, "-c", program)
    async with McpTools([ToolServerConfig("s", command=command)]) as tools:
        await tools.wait_for_first_attempt()
        ((), (unavailable,)) = tools.snapshot()
        assert unavailable.reason == reason
    assert peak_memory() - before < MEMORY
    assert ANSWERS.used == 0


# Agents


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        ATTACKS[0].values[:2],
        (lambda: endless(b"x" * CHUNK), EVENTS),
        (lambda: in_pieces(b"data: " + reply(SMALL_OBJECTS) + b"\n\n"), EVENTS),
    ],
    ids=["gzip", "one event", "small objects"],
)
async def test_no_answer_of_an_agent_fills_the_memory(
    body: Callable[[], Iterable[bytes]], headers: dict[str, str]
) -> None:
    async with serving(agent_app(body, headers)) as url:
        agents = A2aAgents([PeerConfig("p", url)], "http://me")
        await agents.start()
        await agents.wait_for_first_attempt(5)
        before, began = peak_memory(), time.monotonic()
        with pytest.raises(DelegationError):
            async with asyncio.timeout(SECONDS):
                await agents.delegate(DelegationRequest("p", "go", "c"), unheard.progress)
        assert time.monotonic() - began < SECONDS
        assert peak_memory() - before < MEMORY
        await agents.aclose()
    assert ANSWERS.used == 0


def test_all_answers_together_have_a_bound() -> None:
    budget = ReceiveBudget(10)
    first, second = Received(budget), Received(budget)
    first.add(b"x" * 6)
    with pytest.raises(TooMuchReceived, match="all answers together"):
        second.add(b"x" * 6)
    second.release()
    first.release()
    assert budget.used == 0
    second = Received(budget)
    second.add(b"x" * 10)
