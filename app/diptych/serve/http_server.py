"""The HTTP server of a process: one uvicorn, which serves each app at a socket of its own.

`BoundedProtocol`, uvicorn's protocol with limits, refuses a request or passes it unchanged to the
app, and joins writes of one turn of the event loop.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp

from diptych.net.memory_budget import MemoryBudget
from diptych.serve.connections import Connections
from diptych.serve.http_protocol import BoundedProtocol

CLOSE_SECONDS = 5  # that open responses get to end, once all runs have ended or are handed over
FIRST_REQUEST_SECONDS = 5.0  # that a new connection gets for its first request, as Go's server does
_POLL_SECONDS = 0.005
_REQUEST_POLL_SECONDS = 0.05


@contextlib.asynccontextmanager
async def run_http_server(
    apps: Sequence[tuple[ASGIApp, socket.socket]], memory_budget: MemoryBudget | None = None
) -> AsyncIterator["HttpServer"]:
    """Serve each app at its bound socket.

    Raises if one cannot be served. The connections' memory counts against `memory_budget`.
    """
    connections = Connections(memory_budget)
    (app, sock), *others = apps
    async with run_server(_server_config(app, connections), sock) as server:
        for app, sock in others:
            await server.listen(app, sock, connections)
        yield server


@contextlib.asynccontextmanager
async def run_server(config: uvicorn.Config, sock: socket.socket) -> AsyncIterator["HttpServer"]:
    """Run a server at a bound socket. Raises if it cannot start."""
    server = HttpServer(config)
    server.serving = asyncio.create_task(server.serve([sock]))
    try:
        while not server.started and not server.serving.done():  # noqa: ASYNC110 - no event for it
            await asyncio.sleep(_POLL_SECONDS)
        if server.serving.done():
            await server.serving  # it could not start: raises why
        yield server
    finally:
        await server.stop()


class HttpServer(uvicorn.Server):
    """A running server; it leaves signals to its process."""

    serving: asyncio.Task[None]

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def listen(
        self, app: ASGIApp, sock: socket.socket, connections: Connections
    ) -> asyncio.Server:
        """Serve one more app at a bound socket.

        Closing the returned server refuses new connections; open ones are served as before.
        """
        config = _server_config(app, connections)
        config.load()

        def protocol() -> asyncio.Protocol:
            return BoundedProtocol(connections, config, self.server_state, {})

        loop = asyncio.get_running_loop()
        server = await loop.create_server(protocol, sock=sock, backlog=config.backlog)
        self.servers = [each for each in self.servers if each.is_serving()]  # of `uvicorn.Server`
        self.servers.append(server)
        return server

    async def wait_for_first_requests(self) -> None:
        """Wait until every connection has sent its first request, at most 5 s.

        A client that has just connected does not know that the server is closing: its request would
        be lost.
        """
        connections = self.server_state.connections
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_REQUEST_SECONDS):
                while any(map(_awaits_first_request, connections)):  # noqa: ASYNC110
                    await asyncio.sleep(_REQUEST_POLL_SECONDS)
                await asyncio.sleep(_REQUEST_POLL_SECONDS)  # until the app has seen the last one

    async def stop(self) -> None:
        """Stop serving.

        A cancellation is raised only once it has stopped: a cancelled uvicorn aborts its responses
        and logs a traceback for each. Connections that do not end in time are cut first, for the
        same reason.
        """
        self.should_exit = True
        cutting = asyncio.get_running_loop().call_later(CLOSE_SECONDS, self._cut_connections)
        try:
            await asyncio.shield(self.serving)
        except asyncio.CancelledError:
            await self.serving
            raise
        finally:
            cutting.cancel()

    def _cut_connections(self) -> None:
        for connection in self.server_state.connections:
            connection.transport.abort()


def _awaits_first_request(connection: Any) -> bool:  # noqa: ANN401 - its union has no `cycle`
    """Whether a connection (uvicorn's protocol object) has not finished its first request."""
    cycle = connection.cycle  # of the latest request; None before the first
    return cycle is None or cycle.more_body


def _server_config(app: ASGIApp, connections: Connections) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=cast("type[asyncio.Protocol]", partial(BoundedProtocol, connections)),
        lifespan="off",
        ws="none",  # the library that serves them costs memory, and nothing here does
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=75,  # longer than the usual idle time of a proxy's pool
        timeout_graceful_shutdown=CLOSE_SECONDS + 2,  # what is cut by then ends by itself
    )
