"""The port `Tools` over MCP: the tools of all servers of an agent, in the manifest's order.

Each server has a supervisor, which connects to it again and again; a server that is unavailable
does not affect the others.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

from diptych.core.catalog import Tool, Unavailable
from diptych.core.errors import ConfigError, ToolError
from diptych.core.messages import CallOutput, JSONObject
from diptych.manifest.settings import ToolServerConfig
from diptych.net.redaction import SECRETS, redacted_output
from diptych.ports import Progress

if TYPE_CHECKING:
    from diptych.mcp.supervisor import ServerSupervisor

__all__ = ["ConnectionSettings", "McpTools"]


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """Times, in seconds.

    Attempts to connect are `initial_delay` to `max_delay` apart (see `Backoff`), listings of tools
    at least `initial_delay`. Every `refresh_interval` a server is asked for its tools, which also
    shows whether it is there. `connect_timeout` is for connecting and for listing tools,
    `start_timeout` for the first answer of a command, `close_timeout` for ending everything.
    """

    initial_delay: float = 0.2
    max_delay: float = 10.0
    refresh_interval: float = 15.0
    connect_timeout: float = 5.0
    start_timeout: float = 60.0
    close_timeout: float = 1.8


class McpTools:
    """All tool servers of an agent. Used between `start` and `aclose`, or in an `async with`.

    Raises `ConfigError` when two servers have one name, or a function cannot be a tool.
    """

    def __init__(
        self, servers: Sequence[ToolServerConfig], *, settings: ConnectionSettings | None = None
    ) -> None:
        self._supervisors = _supervisors(servers, settings or ConnectionSettings())
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
        snapshots = [supervisor.snapshot() for supervisor in self._supervisors.values()]
        tools = tuple(tool for offered, _ in snapshots for tool in offered)
        return tools, tuple(entry for _, unavailable in snapshots for entry in unavailable)

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

        def report(text: str) -> None:
            progress(SECRETS.redact(text))

        return await redacted_output(supervisor.call(tool, arguments, report))


def _supervisors(
    servers: Sequence[ToolServerConfig], settings: ConnectionSettings
) -> dict[str, "ServerSupervisor"]:
    if not servers:
        return {}
    from diptych.mcp.supervisor import ServerSupervisor  # noqa: PLC0415 - it loads the MCP SDK

    return {server.name: ServerSupervisor(server, settings) for server in servers}
