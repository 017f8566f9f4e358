"""Asks MCPServers for their tools, where no pod of our image says them at `/ready`.

It is an MCP handshake without credentials: at the Service of a hosted server; a remote one is not
asked if it needs a Secret or OAuth tokens.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import Any

from diptych_operator.controller.cache import ObjectCache
from diptych_operator.controller.work_queue import WorkQueue
from diptych_operator.resources.kinds import MCP_SERVER
from diptych_operator.resources.mcp_server import McpServer
from diptych_operator.status.mcp_server import Handshake
from diptych_operator.status.pods import pod_address

TICK = 5.0
"""Seconds between two checks for servers that are due."""
PERIOD = 30.0
"""Seconds after which a server that has answered is asked again; another one at each tick."""
AT_ONCE = 20


class HandshakePoll:
    """Keeps `ObjectCache.handshakes`; a changed answer queues the server."""

    def __init__(self, cache: ObjectCache, queue: WorkQueue) -> None:
        self._cache = cache
        self._queue = queue
        self._due: dict[tuple[str, str, int], float] = {}
        """By uid, Deployment's version and generation: when a server is asked again."""

    async def run(self) -> None:
        """Ask all servers, forever."""
        while True:
            await self.ask_due()
            await asyncio.sleep(TICK)

    async def ask_due(self) -> None:
        """Ask the servers that are due."""
        servers = [McpServer.read(content) for _, content in self._cache.all(MCP_SERVER)]
        servers = [one for one in servers if not (one.runs_our_image or one.needs_credentials)]
        due = {self._mark(one): one for one in servers}
        now = time.monotonic()
        self._due = {mark: at for mark, at in self._due.items() if mark in due}
        asked = [(mark, one) for mark, one in due.items() if self._due.get(mark, 0.0) <= now]
        for start in range(0, len(asked), AT_ONCE):
            await asyncio.gather(*(self._ask(*one) for one in asked[start : start + AT_ONCE]))

    def _mark(self, server: McpServer) -> tuple[str, str, int]:
        deployment = self._cache.deployment(server)
        version = deployment["metadata"].get("resourceVersion", "") if deployment else ""
        return server.uid, version, server.generation

    async def _ask(self, mark: tuple[str, str, int], server: McpServer) -> None:
        found = await self._handshake(server)
        if found is not None and found.reason is None:
            self._due[mark] = time.monotonic() + PERIOD
        known = self._cache.handshakes
        if self._cache.owner(server.key) is None or found == known.get(server.key):
            return
        if found is None:
            known.pop(server.key, None)
        else:
            known[server.key] = found
        self._queue.add(server.key)

    async def _handshake(self, server: McpServer) -> Handshake | None:
        """Ask a server; None if it has no pod that could answer."""
        if server.is_hosted and not any(map(pod_address, self._cache.pods(server.key))):
            return None
        return await _ask_server(server.url, server.headers)


async def _ask_server(url: str, headers: Iterable[Mapping[str, Any]]) -> Handshake:
    """Ask any MCP server. The SDK, which takes memory, is loaded with the first."""
    from diptych_operator.controller.mcp_handshake import handshake  # noqa: PLC0415

    return await handshake(url, {one["name"]: str(one.get("value", "")) for one in headers})
