"""Serves the tools of a Python file or of a stdio server over streamable HTTP: `MCPServer` pods.

`/ready` has what the operator writes into the MCPServer's status: the tools with their digests,
the server's name and version, or the reason why there are none.
"""

import asyncio
import logging
from collections.abc import Callable

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from diptych.core.errors import ConfigError
from diptych.http.guards import LoopbackGuard
from diptych.manifest.settings import ToolServerConfig
from diptych.mcp.relay import ToolRelay
from diptych.serve.http_server import run_http_server
from diptych.serve.process import Sockets, set_at_signals, wait_idle

STARTING = "is starting"  # the reason while the tools are loaded; the operator knows it
_logger = logging.getLogger(__name__)


async def serve_tools_until_signal(
    load: Callable[[], ToolServerConfig], sockets: Sockets, path: str, *, grace: float
) -> None:
    """Serve the tools of what `load` returns at `path` until SIGINT or SIGTERM.

    If `load` raises `ConfigError` the process stays, and `/ready` says why. Calls under way then
    have `grace` seconds to end; a second signal ends the wait.
    """
    stop = set_at_signals()
    tools = ServedTools(load)
    app: ASGIApp = tools.app(path)
    if sockets.address.is_loopback:
        app = LoopbackGuard(app)
    [sock] = sockets
    async with run_http_server([(app, sock)]), asyncio.TaskGroup() as group:
        offering = group.create_task(tools.offer())
        _logger.info("the tool server listens at %s%s", sockets.addresses[0], path)
        await stop.wait()
        stop.clear()
        await wait_idle(lambda: tools.calls, grace, stop)
        offering.cancel()


class ServedTools:
    """A tool server's HTTP application. `calls` counts the requests under way."""

    def __init__(self, load: Callable[[], ToolServerConfig]) -> None:
        self.calls = 0
        self._load = load
        self._reason = STARTING
        self._relay: ToolRelay | None = None
        self._manager: StreamableHTTPSessionManager | None = None

    def app(self, path: str) -> Starlette:
        return Starlette(
            routes=[
                Route("/health", self._health),
                Route("/ready", self._ready),
                Route(path, self),
            ]
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._manager is None:
            await JSONResponse({"error": self._reason}, 503)(scope, receive, send)
            return
        is_call = scope["method"] == "POST"
        self.calls += is_call
        try:
            await self._manager.handle_request(scope, receive, send)
        finally:
            self.calls -= is_call

    async def offer(self) -> None:
        """Load the tools, and offer them until cancelled: the SDK's parts end in one task."""
        try:
            # On a thread, as an import may take long; probes are answered meanwhile.
            config = await asyncio.to_thread(self._load)
            relay = ToolRelay(config)
        except ConfigError as error:
            self._reason = "; ".join(error.problems)
            _logger.error("the tools cannot be served: %s", self._reason)
            return
        manager = StreamableHTTPSessionManager(relay.server)
        async with relay, manager.run():
            self._relay, self._manager = relay, manager
            try:
                await asyncio.Event().wait()
            finally:
                self._relay = self._manager = None
                self._reason = "is ending"

    async def _health(self, _: Request) -> JSONResponse:
        return JSONResponse({"status": "ok"})

    async def _ready(self, _: Request) -> JSONResponse:
        relay = self._relay
        reason = relay.reason if relay else self._reason
        if relay is None or reason is not None:
            return JSONResponse({"status": "not ready", "reason": reason}, 503)
        info = relay.server_info
        digests = relay.digests().items()
        return JSONResponse(
            {
                "status": "ready",
                "tools": [{"name": name, "digest": digest} for name, digest in digests],
                "serverInfo": {"name": info.name, "version": info.version} if info else None,
            }
        )
