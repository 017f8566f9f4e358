"""The port `Tools` over MCP: the tools of all servers of an agent, in the manifest's order.

Each server has a supervisor that keeps reconnecting; an unavailable server does not affect the
others.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from diptych.core.catalog import Tool, Unavailable
from diptych.core.errors import ConfigError, ToolError
from diptych.core.messages import CallOutput, JSONObject
from diptych.manifest.settings import ToolServerConfig
from diptych.net.redaction import SECRETS, redacted_output
from diptych.ports import CallContext

if TYPE_CHECKING:
    from diptych.mcp.sign_in import SignIns
    from diptych.mcp.supervisor import ServerSupervisor

START_PATH, CALLBACK_PATH = "/oauth/start", "/oauth/callback"
CLIENT_PATH = "/oauth/client.json"
"""Where the agent serves sign-ins to browsers, and its client id metadata document."""
SIGN_IN = "sign_in"
"""Our own tool, offered until a server's tools are known: they are once somebody has signed in."""


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """Delays and timeouts in seconds.

    `initial_delay` and `max_delay` bound the backoff between attempts to connect; `initial_delay`
    is also the minimum between two listings of tools. Every `refresh_interval` the tools are listed
    again, which doubles as a health check. `connect_timeout` covers connecting and listing tools,
    `start_timeout` the start of a command, `close_timeout` the shutdown.
    """

    initial_delay: float = 0.2
    max_delay: float = 10.0
    refresh_interval: float = 15.0
    connect_timeout: float = 5.0
    start_timeout: float = 60.0
    close_timeout: float = 1.8


class McpTools:
    """All tool servers of an agent. Use between `start` and `aclose`, or in an `async with`.

    `sign_ins` gets the OAuth tokens of servers with `auth`. Raises `ConfigError` if two servers
    have the same name, or a function cannot be a tool.
    """

    def __init__(
        self,
        servers: Sequence[ToolServerConfig],
        *,
        settings: ConnectionSettings | None = None,
        sign_ins: "SignIns | None" = None,
    ) -> None:
        self._sign_ins = sign_ins
        self._supervisors = _supervisors(servers, settings or ConnectionSettings(), sign_ins)
        if len(self._supervisors) < len(servers):
            raise ConfigError("tool servers: two have the same name")

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def start(self) -> None:
        """Start connecting to all servers, in the background (see `wait_for_first_attempt`)."""
        for supervisor in self._supervisors.values():
            supervisor.start()

    async def aclose(self) -> None:
        """End all connections, child processes, tasks and running calls."""
        await asyncio.gather(*(supervisor.close() for supervisor in self._supervisors.values()))
        if self._sign_ins:
            await self._sign_ins.aclose()

    async def wait_for_first_attempt(self, timeout: float = 5.0) -> None:  # noqa: ASYNC109 - not an error
        """Wait until every server has been tried once, or `timeout` seconds have passed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                for supervisor in self._supervisors.values():
                    await supervisor.first_attempt.wait()

    def snapshot(self) -> tuple[tuple[Tool, ...], tuple[Unavailable, ...]]:
        """Return the tools of the connected servers, and the unavailable servers and tools."""
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
        """Reconnect to unavailable servers now, without waiting for the backoff."""
        for supervisor in self._supervisors.values():
            supervisor.reconnect_now()

    async def call(self, tool: Tool, arguments: JSONObject, context: CallContext) -> CallOutput:
        """Call a tool once, within its time limit. Cancelling this cancels the call at its server.

        A call that was definitely not sent is retried on a new connection; a call that may have
        been sent is never retried. Raises `ToolError`: `unknown` if a tool that is neither
        read-only nor idempotent may have run, and its result cannot be read.
        """
        supervisor = self._supervisors.get(tool.server)
        if supervisor is None:
            raise ToolError("unavailable", f"tool server {tool.server} no longer exists")

        def report(text: str) -> None:
            context.progress(SECRETS.redact(text))

        own = replace(context, progress=report)
        return await redacted_output(supervisor.call(tool, arguments, own))


def _supervisors(
    servers: Sequence[ToolServerConfig], settings: ConnectionSettings, sign_ins: "SignIns | None"
) -> dict[str, "ServerSupervisor"]:
    if not servers:
        return {}
    from diptych.mcp.supervisor import ServerSupervisor  # noqa: PLC0415 - it loads the MCP SDK

    return {
        server.name: sign_ins.supervisor(server, settings)
        if server.auth and sign_ins
        else ServerSupervisor(server, settings)
        for server in servers
    }
