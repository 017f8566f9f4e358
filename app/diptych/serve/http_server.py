"""The HTTP servers of a process: one uvicorn per app, started and stopped together.

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
OF_ONE_APP = 512  # connections of each app that joined later
_POLL_SECONDS = 0.005
_REQUEST_POLL_SECONDS = 0.05


@contextlib.asynccontextmanager
async def run_http_servers(
    apps: Sequence[tuple[ASGIApp, socket.socket]], memory_budget: MemoryBudget | None = None
) -> AsyncIterator["HttpServers"]:
    """Run a server for each app at its bound socket.

    Raises if one cannot start. The connections' memory counts against `memory_budget`.
    """
    connections = Connections(memory_budget)
    async with run_servers([(_server_config(app, connections), at) for app, at in apps]) as servers:
        yield servers


@contextlib.asynccontextmanager
async def run_servers(
    configs: Sequence[tuple[uvicorn.Config, socket.socket]],
) -> AsyncIterator["HttpServers"]:
    """Run a server for each config at its bound socket. Raises if one cannot start."""
    servers = [_Server(config) for config, _ in configs]
    tasks = [
        asyncio.create_task(server.serve([sock]))
        for server, (_, sock) in zip(servers, configs, strict=True)
    ]
    running = HttpServers(servers, tasks)
    try:
        for server, task in zip(servers, tasks, strict=True):
            while not server.started and not task.done():  # noqa: ASYNC110 - uvicorn has no event
                await asyncio.sleep(_POLL_SECONDS)
            if task.done():
                await task  # it could not start: raises why
        yield running
    finally:
        await running.stop()


class HttpServers:
    """The running servers."""

    def __init__(self, servers: Sequence["_Server"], tasks: Sequence[asyncio.Task[None]]) -> None:
        self._servers = servers
        self._tasks = tasks

    async def listen(
        self, app: ASGIApp, sock: socket.socket, memory_budget: MemoryBudget
    ) -> asyncio.Server:
        """Serve one more app at a bound socket, with connections of its own to limit.

        Closing the returned server refuses new connections; open ones are served as before.
        """
        return await self._servers[0].listen(app, sock, Connections(memory_budget, OF_ONE_APP))

    async def wait_for_first_requests(self) -> None:
        """Wait until every connection has sent its first request, at most 5 s.

        A client that has just connected does not know that the server is closing: its request would
        be lost.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_REQUEST_SECONDS):
                while any(server.awaits_first_request for server in self._servers):  # noqa: ASYNC110
                    await asyncio.sleep(_REQUEST_POLL_SECONDS)
                await asyncio.sleep(_REQUEST_POLL_SECONDS)  # until the app has seen the last one

    async def stop(self) -> None:
        """Stop all servers concurrently.

        A cancellation is raised only once they have stopped: a cancelled uvicorn aborts its
        responses and logs a traceback for each. Connections that do not end in time are cut first,
        for the same reason.
        """
        for server in self._servers:
            server.should_exit = True
        cutting = asyncio.get_running_loop().call_later(CLOSE_SECONDS, self._cut_connections)
        stopping = asyncio.gather(*self._tasks)
        try:
            await asyncio.shield(stopping)
        except asyncio.CancelledError:
            await stopping
            raise
        finally:
            cutting.cancel()

    def _cut_connections(self) -> None:
        for server in self._servers:
            for connection in server.server_state.connections:
                connection.transport.abort()


class _Server(uvicorn.Server):
    """A server without signal handlers, as several run side by side."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def listen(
        self, app: ASGIApp, sock: socket.socket, connections: Connections
    ) -> asyncio.Server:
        config = _server_config(app, connections)
        config.load()

        def protocol() -> asyncio.Protocol:
            return BoundedProtocol(connections, config, self.server_state, {})

        loop = asyncio.get_running_loop()
        server = await loop.create_server(protocol, sock=sock, backlog=config.backlog)
        self.servers = [each for each in self.servers if each.is_serving()]  # of `uvicorn.Server`
        self.servers.append(server)
        return server

    @property
    def awaits_first_request(self) -> bool:
        return any(_awaits_first_request(each) for each in self.server_state.connections)


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
