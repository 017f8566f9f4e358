"""The port `Tools` over MCP: the tools of all servers of an agent, in the manifest's order.

Each server has a supervisor, which connects to it again and again; a server that is unavailable
does not affect the others.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from diptych.core import prompt
from diptych.core.catalog import Tool, Unavailable
from diptych.core.errors import ConfigError, ToolError
from diptych.core.messages import CallOutput, JSONObject
from diptych.manifest.settings import ToolServerConfig
from diptych.mcp.output import NoAnswer, call_output
from diptych.mcp.supervisor import ConnectionSettings, ServerSupervisor
from diptych.mcp.tool_rules import CHANGED, allows, named_by
from diptych.net.redaction import SECRETS, redacted_output
from diptych.ports import Progress

__all__ = ["ConnectionSettings", "McpTools"]


class McpTools:
    """All tool servers of an agent. Used between `start` and `aclose`, or in an `async with`.

    Raises `ConfigError` when two servers have one name, or a function cannot be a tool.
    """

    def __init__(
        self, servers: Sequence[ToolServerConfig], *, settings: ConnectionSettings | None = None
    ) -> None:
        settings = settings or ConnectionSettings()
        self._supervisors = {server.name: ServerSupervisor(server, settings) for server in servers}
        if len(self._supervisors) < len(servers):
            raise ConfigError("tool servers: each needs a name of its own")

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    def start(self) -> None:
        """Begin to connect to all servers; returns at once (see `wait_for_first_attempt`)."""
        for supervisor in self._supervisors.values():
            supervisor.start()

    async def aclose(self) -> None:
        """End all connections, child processes and tasks, and the calls still running."""
        await asyncio.gather(*(supervisor.close() for supervisor in self._supervisors.values()))

    async def wait_for_first_attempt(self, timeout: float = 5.0) -> None:  # noqa: ASYNC109 - not an error
        """Return when every server has been tried once, or after `timeout` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                for supervisor in self._supervisors.values():
                    await supervisor.first_attempt.wait()

    def snapshot(self) -> tuple[tuple[Tool, ...], tuple[Unavailable, ...]]:
        """Return the tools of the connected servers, and what is unavailable or left out."""
        tools: list[Tool] = []
        unavailable: list[Unavailable] = []
        for name, supervisor in self._supervisors.items():
            if (reason := supervisor.reason) is None:
                tools += supervisor.tools
                unavailable += supervisor.left_out
            else:
                offered = tuple(tool.name for tool in supervisor.tools)
                names = offered if supervisor.has_listed else named_by(supervisor.server)
                unavailable.append(Unavailable("server", name, reason, names))
        return tuple(tools), tuple(unavailable)

    def digests(self) -> dict[str, dict[str, str]]:
        """Return the digests of the tools of each connected server (`tool_rules.digest`)."""
        return {
            name: supervisor.digests()
            for name, supervisor in self._supervisors.items()
            if supervisor.reason is None
        }

    def retry_unavailable(self) -> None:
        """Connect to the servers that are unavailable now, and not when the backoff is over."""
        for supervisor in self._supervisors.values():
            supervisor.reconnect_now()

    async def call(self, tool: Tool, arguments: JSONObject, progress: Progress) -> CallOutput:
        """Call a tool once, within its time limit. Cancelling this cancels it at its server.

        A call that certainly was not sent is sent on a new connection, if there is one; a call that
        may have been sent is never sent again. Raises `ToolError`: `unknown` if a tool that is
        neither read-only nor idempotent may have run, and nothing of its answer can be read.
        """
        supervisor = self._supervisors.get(tool.server)
        if supervisor is None:
            raise ToolError("unavailable", f"there is no tool server {tool.server} any more")
        if not allows(supervisor.server, tool.name):
            raise ToolError("refused", f"{tool.name} is not allowed on tool server {tool.server}")
        if tool.name in supervisor.changed:
            raise ToolError("unavailable", f"unavailable: {tool.name} has {CHANGED} since pinned")
        return await redacted_output(self._call(supervisor, tool, arguments, progress))

    async def _call(
        self, supervisor: ServerSupervisor, tool: Tool, arguments: JSONObject, progress: Progress
    ) -> CallOutput:
        def report(text: str) -> None:
            progress(SECRETS.redact(text))

        try:
            result = await supervisor.call(tool.name, arguments, report)
            return call_output(tool.name, result)
        except NoAnswer as error:
            if tool.read_only or tool.idempotent:
                raise
            raise ToolError("unknown", prompt.outcome_unknown(error.message)) from error
