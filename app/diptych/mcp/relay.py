"""Offers the tools of one tool server, a command or functions, to clients over streamable HTTP.

The supervisor restarts the command; each client has sessions of its own with the relay, in either
era of the protocol, and all share the one command. Only tools pass, no resources or prompts.
"""

from typing import Any, Self

import mcp_types
from mcp import MCPError
from mcp.server import Server, ServerRequestContext

from diptych.core import prompt
from diptych.core.errors import ToolError
from diptych.manifest.settings import ToolServerConfig
from diptych.mcp import ConnectionSettings
from diptych.mcp.output import NoAnswer
from diptych.mcp.supervisor import ServerSupervisor

_Context = ServerRequestContext[Any, Any]


class ToolRelay:
    """A tool server, offered as `server`. Raises `ConfigError` for functions that are no tools."""

    def __init__(self, config: ToolServerConfig) -> None:
        self._supervisor = ServerSupervisor(config, ConnectionSettings(), can_ask=False)
        self.server: Server[Any] = Server(
            config.name, on_list_tools=self._list_tools, on_call_tool=self._call_tool
        )

    async def __aenter__(self) -> Self:
        self._supervisor.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._supervisor.close()

    @property
    def reason(self) -> str | None:
        """Why the tools are unavailable; None if they are available."""
        return self._supervisor.reason

    @property
    def server_info(self) -> mcp_types.Implementation | None:
        return self._supervisor.server_info

    def digests(self) -> dict[str, str]:
        """Return the digests of the usable tools by name, as pins hold them."""
        return self._supervisor.digests()

    async def _list_tools(
        self, _: _Context, __: mcp_types.PaginatedRequestParams | None
    ) -> mcp_types.ListToolsResult:
        try:
            connection = await self._supervisor.open_connection()
            return mcp_types.ListToolsResult(tools=connection.tools)
        except ToolError as error:
            raise MCPError(mcp_types.INTERNAL_ERROR, error.message) from error

    async def _call_tool(
        self, context: _Context, params: mcp_types.CallToolRequestParams
    ) -> mcp_types.CallToolResult:
        try:
            return await self._supervisor.result(
                params.name, params.arguments or {}, context.session.report_progress
            )
        except NoAnswer as error:
            text = prompt.outcome_unknown(error.message)
            raise MCPError(mcp_types.INTERNAL_ERROR, text) from error
        except ToolError as error:
            if isinstance(error.__cause__, MCPError):  # the server's own answer
                raise error.__cause__ from error
            raise MCPError(mcp_types.INTERNAL_ERROR, error.message) from error
