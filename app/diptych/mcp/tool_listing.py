"""Reads a server's list of tools, where one that is not valid MCP takes no other with it.

The SDK refuses such a list as a whole. What it refused is taken out before it reads the list again.
Results of calls pass here, too, on their way to the SDK (`readable_results`).
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, Self, TypeAlias

import mcp_types
from mcp import Client
from mcp.client import Transport
from mcp.server import MCPServer
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from diptych.core.messages import JSON
from diptych.mcp.invalid_answers import invalid_tools
from diptych.mcp.readable_results import mend_result

MAX_PAGES = 100
"""A listing of tools that never ends is cut here."""

_MAX_REFUSED = 1_000  # tools of one connection
_MAX_READINGS = 3  # of one page: a server may list other tools each time
_UNNAMED = "one without a name"
_OF_CALLS = frozenset({"content", "structuredContent", "toolResult"})  # and of no other result
Message: TypeAlias = SessionMessage | Exception


class ToolListing:
    """The list of tools over one connection.

    `left_out` are the tools of the newest listing that are not valid: where, by their names. `cut`
    says why there may be others that it does not have.
    """

    def __init__(self) -> None:
        self.left_out: dict[str, str] = {}
        self.cut: str | None = None
        self._refused: dict[str, str] = {}  # where tools are not valid, by all that they say
        self._page: list[JSON] = []  # the newest, as the SDK has seen it

    def over(self, server: MCPServer[Any] | Transport) -> MCPServer[Any] | Transport:
        """Give a server, or the transport to one, whose lists are read without what is refused."""
        return server if isinstance(server, MCPServer) else self._watched(server)

    async def read(self, client: Client) -> list[mcp_types.Tool]:
        """Read all pages. Raises as `Client.list_tools`.

        The last page has no cursor. One that comes again would never end: the list is cut there.
        """
        self.left_out, self.cut = {}, None
        tools: list[mcp_types.Tool] = []
        cursors: list[str | None] = [None]
        for _ in range(MAX_PAGES):
            page = await self._read_page(client, cursors[-1])
            tools += page.tools
            if page.next_cursor is None:
                return tools
            if page.next_cursor in cursors:
                self.cut = "its list of tools repeats a page, and was cut there"
                return tools
            cursors.append(page.next_cursor)
        self.cut = f"its list of tools was cut after {MAX_PAGES} pages"
        return tools

    async def _read_page(self, client: Client, cursor: str | None) -> mcp_types.ListToolsResult:
        for _ in range(_MAX_READINGS - 1):
            try:
                return await client.list_tools(cursor=cursor)
            except ValidationError as error:
                found = invalid_tools(error)
                if not found or len(self._refused) + len(found) > _MAX_REFUSED:
                    raise
                self._refused |= {repr(self._page[index]): found[index] for index in found}
        return await client.list_tools(cursor=cursor)

    @asynccontextmanager
    async def _watched(self, transport: Transport) -> AsyncIterator[tuple[Any, Any]]:
        async with transport as (reads, writes):
            yield _WatchedReads(reads, self._mend), writes

    def _mend(self, message: Message) -> None:
        """Take what is refused out of a list of tools, or of the result of a call."""
        if isinstance(message, SessionMessage) and isinstance(
            message.message, mcp_types.JSONRPCResponse
        ):
            result = message.message.result
            if isinstance(listed := result.get("tools"), list):
                result["tools"] = self._page = list(self._valid(listed))
            elif not _OF_CALLS.isdisjoint(result):
                mend_result(result)

    def _valid(self, listed: list[JSON]) -> Iterator[JSON]:
        for tool in map(_with_type, listed):
            place = self._refused.get(repr(tool)) if self._refused else None
            if place is None:
                yield tool
            else:
                name = tool.get("name") if isinstance(tool, dict) else None
                self.left_out[name if isinstance(name, str) else _UNNAMED] = place


def _with_type(tool: JSON) -> JSON:
    """Give a tool whose schema says that it takes an object, as any must; some leave that out."""
    schema = tool.get("inputSchema") if isinstance(tool, dict) else None
    if not isinstance(tool, dict) or not isinstance(schema, dict) or "type" in schema:
        return tool
    return {**tool, "inputSchema": {"type": "object", **schema}}


class _WatchedReads:
    """A stream of messages, each of which is shown before it is read. It fulfils `ReadStream`."""

    def __init__(self, reads: Any, show: Callable[[Message], None]) -> None:  # noqa: ANN401 - private
        self._reads = reads
        self._show = show

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any attribute of a stream
        return getattr(self._reads, name)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        message: Message = await self._reads.__anext__()
        self._show(message)
        return message

    async def receive(self) -> Message:
        message: Message = await self._reads.receive()
        self._show(message)
        return message

    async def __aenter__(self) -> Self:
        await self._reads.__aenter__()
        return self

    async def __aexit__(self, *about: object) -> None:
        await self._reads.__aexit__(*about)
