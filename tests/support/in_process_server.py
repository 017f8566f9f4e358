"""A server in the test's own event loop, which can also die."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import uvicorn
from starlette.applications import Starlette


class InProcessServer(uvicorn.Server):
    def __init__(self, app: Starlette) -> None:
        super().__init__(uvicorn.Config(app, log_level=60, lifespan="off", ws="none"))
        self.up, self.leaving = asyncio.Event(), asyncio.Event()
        self.url = ""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    async def main_loop(self) -> None:
        await self.leaving.wait()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def die(self) -> None:
        """Take every connection down at once, as a killed process would."""
        for listener in self.servers:
            listener.close()
        for connection in tuple(self.server_state.connections):
            with suppress(AttributeError):
                connection.transport.abort()
        await asyncio.sleep(0.01)


@asynccontextmanager
async def in_process(app: Starlette, port: int = 0) -> AsyncIterator[InProcessServer]:
    """Serve an app at `url`; requests must have ended when the block does."""
    listener = socket.create_server(("127.0.0.1", port))
    server = InProcessServer(app)
    server.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    serving = asyncio.create_task(server.serve([listener]))
    await server.up.wait()
    try:
        yield server
    finally:
        server.leaving.set()
        await serving
