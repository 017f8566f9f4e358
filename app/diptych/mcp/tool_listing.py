"""Reads a server's list of tools, skipping those that are not valid MCP.

The SDK rejects a whole list for one invalid tool, so such tools are removed before it parses the
list. Results of calls are repaired on their way to the SDK, too (`output.repair_result`).
"""

import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, Self, TypeAlias

import mcp_types
from mcp import Client
from mcp.client import Transport
from mcp.server import MCPServer
from mcp.shared.message import SessionMessage
from mcp_types.methods import validate_server_result
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from diptych.core.messages import JSON
from diptych.mcp.output import repair_result

MAX_PAGES = 100
MAX_PAGE_TOOLS = 1_000
_MAX_ERRORS = 1_000  # validation errors to inspect: 600,000 take 300 MB
_UNNAMED = "one without a name"
_OF_CALLS = frozenset({"content", "structuredContent", "toolResult"})  # fields of call results only
_FIELD = re.compile(r"\w{1,32}", re.ASCII)
Message: TypeAlias = SessionMessage | Exception


class ToolListing:
    """The list of tools over one connection.

    `left_out` maps the invalid tools of the newest listing to the location of the mistake.
    `cut` says why the list may be incomplete.
    """

    def __init__(self) -> None:
        self.left_out: dict[str, str] = {}
        self.cut: str | None = None
        self._version = ""  # of the protocol

    def over(self, server: MCPServer[Any] | Transport) -> MCPServer[Any] | Transport:
        """Wrap a transport so that results are repaired before the SDK parses them."""
        return server if isinstance(server, MCPServer) else self._repairing(server)

    async def read(self, client: Client) -> list[mcp_types.Tool]:
        """Read all pages; of tools with one name, the first counts. Raises as `Client.list_tools`.

        The last page has no cursor. A repeated cursor would never end, so the list is cut there.
        """
        self.left_out, self.cut, self._version = {}, None, client.protocol_version
        tools: dict[str, mcp_types.Tool] = {}
        cursors: list[str | None] = [None]
        for _ in range(MAX_PAGES):
            page = await client.list_tools(cursor=cursors[-1])
            for tool in page.tools:
                tools.setdefault(tool.name, tool)
            if page.next_cursor is None:
                break
            if page.next_cursor in cursors:
                self.cut = "its list of tools repeats a page and was cut there"
                break
            cursors.append(page.next_cursor)
        else:
            self.cut = f"its list of tools was cut after {MAX_PAGES} pages"
        return list(tools.values())

    @asynccontextmanager
    async def _repairing(self, transport: Transport) -> AsyncIterator[tuple[Any, Any]]:
        async with transport as (reads, writes):
            yield _RepairingReads(reads, self._repair), writes

    def _repair(self, message: Message) -> None:
        """Repair a call's result or a list of tools, in place."""
        if isinstance(message, SessionMessage) and isinstance(
            message.message, mcp_types.JSONRPCResponse
        ):
            result = message.message.result
            if isinstance(listed := result.get("tools"), list):
                if len(listed) > MAX_PAGE_TOOLS:
                    self.cut = f"its list of tools was cut after {MAX_PAGE_TOOLS} on one page"
                listed = [_with_type(tool) for tool in listed[:MAX_PAGE_TOOLS]]
                result["tools"] = list(self._valid(result, listed))
            elif not _OF_CALLS.isdisjoint(result):
                repair_result(result)
            if self._version in MODERN_PROTOCOL_VERSIONS:
                result.setdefault("resultType", "complete")  # as MCP says for older servers

    def _valid(self, result: dict[str, Any], listed: list[JSON]) -> Iterator[JSON]:
        for tool in listed:
            place = self._mistake({**result, "tools": [tool]})
            if place is None:
                yield tool
            else:
                name = tool.get("name") if isinstance(tool, dict) else None
                self.left_out[name if isinstance(name, str) else _UNNAMED] = place

    def _mistake(self, result: dict[str, Any]) -> str | None:
        """Return the location of a tool's mistake; None if the tool is valid."""
        try:
            validate_server_result("tools/list", self._version, result)
        except ValidationError as error:
            places = _places(error)
            if not places or any(place[:2] == ("tools", 0) for place in places):
                return _path([place[2:] for place in places if place[0] == "tools"])
        return None


def not_valid(error: ValidationError) -> str:
    """Return `not valid MCP`, and the location of the first mistake, if known.

    A location is like `tools.3.inputSchema.type`: field names, never the server's text. A value
    that matches none of several types yields an error for each; then the value's own location is
    returned.
    """
    places = _places(error)
    path = _path([place for place in places if place[:2] == places[0][:2]])
    return f"not valid MCP, at {path}" if path else "not valid MCP"


def _places(error: ValidationError) -> list[tuple[int | str, ...]]:
    if error.error_count() > _MAX_ERRORS:
        return []
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    return [each["loc"][:4] for each in errors]


def _path(places: list[tuple[int | str, ...]]) -> str:
    """Join the common prefix of the locations, up to the first step that is not a field name."""
    path = []
    for steps in zip(*places, strict=False):
        if len(set(steps)) > 1 or not _FIELD.fullmatch(str(steps[0])):
            break
        path.append(str(steps[0]))
    return ".".join(path)


def _with_type(tool: JSON) -> JSON:
    """Add `"type": "object"`, which some servers omit, to a tool's input schema."""
    schema = tool.get("inputSchema") if isinstance(tool, dict) else None
    if not isinstance(tool, dict) or not isinstance(schema, dict) or "type" in schema:
        return tool
    return {**tool, "inputSchema": {"type": "object", **schema}}


class _RepairingReads:
    """A `ReadStream` that passes each message to `repair` before returning it."""

    def __init__(self, reads: Any, repair: Callable[[Message], None]) -> None:  # noqa: ANN401 - private
        self._reads = reads
        self._repair = repair

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any attribute of a stream
        return getattr(self._reads, name)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        message: Message = await self._reads.__anext__()
        self._repair(message)
        return message

    async def receive(self) -> Message:
        message: Message = await self._reads.receive()
        self._repair(message)
        return message

    async def __aenter__(self) -> Self:
        await self._reads.__aenter__()
        return self

    async def __aexit__(self, *about: object) -> None:
        await self._reads.__aexit__(*about)
