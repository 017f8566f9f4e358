"""The port `Tools`, over MCP: the tools of all servers of an agent.

Each server has a keeper that holds one session with it, however often that must be made anew; a
server that is away takes nothing else down. Here they are put together, in the manifest's order.

Not here: what a connection is (`session`, `link`), how it is made (`wire`,
`stdio`, `functions`), what an answer means (`answer`).
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from diptych.adapters.mcp.output import answer
from diptych.adapters.mcp.session import Keeper, Pace
from diptych.adapters.mcp.tool_rules import allows
from diptych.config.settings import ToolConfig
from diptych.errors import ConfigError, ToolError
from diptych.loop.catalog import Tool, Unavailable
from diptych.loop.messages import CallOutput, JSONObject
from diptych.ports import Progress

__all__ = ["McpTools", "Pace"]


class McpTools:
    """All tool servers of an agent. Used between `start` and `aclose`, or in an `async with`.

    Raises `ConfigError` when two servers have one name, or a function cannot be a tool.
    """

    def __init__(self, servers: Sequence[ToolConfig], *, pace: Pace | None = None) -> None:
        self._keepers = {server.name: Keeper(server, pace or Pace()) for server in servers}
        if len(self._keepers) < len(servers):
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
        """Begin to connect to all servers at once; wait for nothing (see `first_try`)."""
        for keeper in self._keepers.values():
            keeper.start()

    async def aclose(self) -> None:
        """End all connections, child processes and tasks, and the calls still running."""
        await asyncio.gather(*(keeper.close() for keeper in self._keepers.values()))

    async def first_try(self, timeout: float = 5.0) -> None:  # noqa: ASYNC109 - nothing to cancel
        """Return when every server has been tried once, or after `timeout` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                for keeper in self._keepers.values():
                    await keeper.tried.wait()

    def status(self) -> list[tuple[str, bool, str]]:
        """Say of each server its name, whether it can be used, and if not, why."""
        return [(name, k.reason is None, k.reason or "") for name, k in self._keepers.items()]

    def wake(self) -> None:
        """Connect now to the servers that are away, instead of when the next attempt is due."""
        for keeper in self._keepers.values():
            keeper.wake()

    def snapshot(self) -> tuple[tuple[Tool, ...], tuple[Unavailable, ...]]:
        """Give the tools of the servers that are connected, and the names of those that are not.

        Those are tried again at once, in the background: someone wants them.
        """
        tools: list[Tool] = []
        unavailable: list[Unavailable] = []
        for name, keeper in self._keepers.items():
            if (reason := keeper.reason) is None:
                tools += keeper.tools
            else:
                unavailable.append(Unavailable("server", name, reason))
                keeper.wake()
        return tuple(tools), tuple(unavailable)

    async def call(self, tool: Tool, arguments: JSONObject, progress: Progress) -> CallOutput:
        """Call a tool once, within its time limit. Cancelling it cancels it at its server.

        A call that provably never left is sent on a new connection, if there is one; one that was
        sent never is. Raises `ToolError`.
        """
        keeper = self._keepers.get(tool.server)
        if keeper is None:
            raise ToolError("unavailable", f"there is no tool server {tool.server} any more")
        if not allows(keeper.server, tool.name):
            raise ToolError("refused", f"{tool.name} is not allowed on tool server {tool.server}")
        return answer(tool.name, await keeper.call(tool.name, arguments, progress))
