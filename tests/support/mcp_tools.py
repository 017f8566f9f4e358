"""`McpTools` in tests: connected, looked at, and called."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from support.hostile import App

from diptych.core.catalog import Tool
from diptych.core.errors import ToolError
from diptych.manifest.settings import ToolServerConfig
from diptych.mcp import ConnectionSettings, McpTools
from diptych.ports import CallContext

QUICK = ConnectionSettings(initial_delay=0.02, max_delay=0.1, refresh_interval=0.1)


@asynccontextmanager
async def connected(
    *servers: ToolServerConfig, settings: ConnectionSettings = QUICK
) -> AsyncIterator[McpTools]:
    async with McpTools(servers, settings=settings) as tools:
        await tools.wait_for_first_attempt()
        yield tools


def older(app: App) -> App:
    """Make a server one that knows the older, session-based protocol only."""

    async def refusing(scope: Any, receive: Any, send: Any) -> None:
        if dict(scope.get("headers", ())).get(b"mcp-protocol-version") == b"2026-07-28":
            await send({"type": "http.response.start", "status": 400, "headers": []})
            await send({"type": "http.response.body", "body": b"unknown version"})
            return
        await app(scope, receive, send)

    return refusing


async def tool_of(tools: McpTools, long_name: str) -> Tool:
    """Wait until a tool is offered."""
    async with asyncio.timeout(10):
        while True:
            offered = {tool.long_name: tool for tool in tools.snapshot()[0]}
            if long_name in offered:
                return offered[long_name]
            await asyncio.sleep(0.01)


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 - what it waits for has no event
            await asyncio.sleep(0.01)


def reasons(tools: McpTools) -> dict[str, str]:
    """Give why each server that is unavailable is so."""
    return {server.name: server.reason for server in tools.snapshot()[1]}


@contextmanager
def ends_as(kind: str, text: str | None = None) -> Iterator[None]:
    with pytest.raises(ToolError, match=text) as caught:
        yield
    assert caught.value.kind == kind


unheard = CallContext(lambda text: None)
"""Of a call whose progress the test does not look at."""
