"""What a server says besides the answers to calls: logs, changes, and resources that it links."""

import logging
from collections.abc import Callable
from typing import Any

import mcp_types
import pytest
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from support.hostile import App, serving
from support.mcp_tools import connected, ends_as, tool_of, unheard, until

from diptych.manifest.settings import ToolServerConfig
from diptych.mcp import ConnectionSettings
from diptych.mcp.server_messages import MAX_CHARS, MAX_PER_MINUTE
from diptych.net.redaction import SECRETS

PATIENT = ConnectionSettings(initial_delay=0.02, refresh_interval=3_600)


def newer(server: MCPServer[Any]) -> App:
    return server.streamable_http_app()


def older(server: MCPServer[Any]) -> App:
    return server.sse_app(sse_path="/mcp")


Served = Callable[[MCPServer[Any]], App]
ERAS = pytest.mark.parametrize("served", [newer, older])


@pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
@ERAS
async def test_what_a_server_logs_is_in_our_log_redacted_and_bounded(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    SECRETS.remember("s3cretive-password")
    caplog.set_level(logging.INFO)
    server = MCPServer("chatty")

    @server.tool()
    async def chat(ctx: Context) -> str:
        await ctx.log("debug", "details")
        await ctx.log("warning", "a s3cretive-password\nand more")
        await ctx.log("alert", {"level": 3}, logger_name="fire")
        for n in range(MAX_PER_MINUTE):
            await ctx.log("info", f"{n} " + "x" * 2 * MAX_CHARS)
        return "said"

    async with serving(served(server)) as url:
        async with connected(ToolServerConfig("c", url=f"{url}/mcp")) as tools:
            await tools.call(await tool_of(tools, "c__chat"), {}, unheard)
            await until(lambda: "logs too much" in caplog.text)
    ours = [each for each in caplog.records if each.name == "diptych.mcp.server_messages"]
    lines = [(each.levelname, each.getMessage()) for each in ours]
    assert lines[:2] == [
        ("WARNING", "tool server c: a [redacted] and more"),
        ("CRITICAL", 'tool server c: fire: {"level": 3}'),
    ]
    assert len(lines) == MAX_PER_MINUTE + 1
    assert max(len(text) for _, text in lines) < MAX_CHARS + 100


@ERAS
async def test_a_tool_added_at_run_time_is_offered_as_soon_as_it_is_announced(
    served: Served,
) -> None:
    server = MCPServer("growing")

    def double(n: int) -> int:
        return 2 * n

    @server.tool()
    async def grow(ctx: Context) -> str:
        server.add_tool(double)
        if served is newer:
            await ctx.notify_tools_changed()
        else:
            await ctx.session.send_tool_list_changed()
        return "grown"

    async with serving(served(server)) as url:
        known = ToolServerConfig("g", url=f"{url}/mcp")
        async with connected(known, settings=PATIENT) as tools:
            await tools.call(await tool_of(tools, "g__grow"), {}, unheard)
            await tool_of(tools, "g__double")


def library(*, with_own_reader: bool = False) -> MCPServer[Any]:
    server = MCPServer("library")

    @server.resource("book://{name}")
    def book(name: str) -> str:
        return f"the text of {name}"

    @server.tool()
    def find() -> list[mcp_types.ResourceLink]:
        return [mcp_types.ResourceLink(type="resource_link", uri="book://emma", name="Emma")]

    if with_own_reader:

        @server.tool()
        def read_resource(uri: str) -> str:
            return f"its own way to {uri}"

    return server


@pytest.mark.parametrize("with_own_reader", [False, True])
@ERAS
async def test_a_resource_that_a_result_links_can_be_read(
    served: Served, with_own_reader: bool
) -> None:
    server = library(with_own_reader=with_own_reader)
    async with serving(served(server)) as url:
        async with connected(ToolServerConfig("l", url=f"{url}/mcp")) as tools:
            find = await tools.call(await tool_of(tools, "l__find"), {}, unheard)
            assert "[resource, book://emma, Emma]" in find.text
            reader = await tool_of(tools, "l__read_resource")
            text = (await tools.call(reader, {"uri": "book://emma"}, unheard)).text
            assert text == ("its own way to book://emma" if with_own_reader else "the text of emma")
            if not with_own_reader:
                assert reader.read_only
                with ends_as("failed"):
                    await tools.call(reader, {"uri": "film://emma"}, unheard)


async def test_a_server_without_resources_or_whose_reader_is_not_allowed_offers_none() -> None:
    async with serving(newer(library())) as url, serving(newer(MCPServer("empty"))) as empty:
        async with connected(
            ToolServerConfig("l", url=f"{url}/mcp", allow=("fi*",)),
            ToolServerConfig("e", url=f"{empty}/mcp"),
        ) as tools:
            await tool_of(tools, "l__find")
            assert [tool.long_name for tool in tools.snapshot()[0]] == ["l__find"]
