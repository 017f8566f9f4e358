"""A bad network: a TCP proxy on loopback that delays, swallows and cuts what passes through."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class TcpProxy:
    """Passes bytes on to a port of loopback; what is set here holds at once, for all."""

    def __init__(self, to_port: int) -> None:
        self.port = 0
        self.delay = 0.0  # seconds that what the server says is late
        self.passing = asyncio.Event()  # cleared: connections stay, and nothing comes through
        self.passing.set()
        self._to_port = to_port
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    def cut(self) -> None:
        """Reset all connections."""
        for writer in tuple(self._writers):
            raw = writer.get_extra_info("socket")
            if raw is not None:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    async def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        server_writer: asyncio.StreamWriter | None = None
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._to_port)
            self._writers.add(server_writer)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_on(reader, server_writer, is_reply=False))
                group.create_task(self._pass_on(server_reader, writer, is_reply=True))
        except (OSError, ExceptionGroup):
            pass
        finally:
            for either in (writer, server_writer):
                if either is not None:
                    self._writers.discard(either)
                    either.transport.abort()

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_reply: bool
    ) -> None:
        late: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        async def write() -> None:
            while True:
                due, piece = await late.get()
                await asyncio.sleep(max(0.0, due - loop.time()))
                await self.passing.wait()
                writer.write(piece)
                await writer.drain()
                late.task_done()

        async with asyncio.TaskGroup() as group:
            group.create_task(write())
            while piece := await reader.read(65_536):
                late.put_nowait((loop.time() + (self.delay if is_reply else 0.0), piece))
            await late.join()  # what was said before the end comes through
            raise ConnectionResetError

    def keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def aclose(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


@asynccontextmanager
async def tcp_proxy(to_port: int) -> AsyncIterator[TcpProxy]:
    """Serve a proxy to a port of loopback."""
    proxy = TcpProxy(to_port)

    def met(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        proxy.keep(asyncio.create_task(proxy.meet(reader, writer)))

    server = await asyncio.start_server(met, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        await proxy.aclose()
        with suppress(OSError):
            await server.wait_closed()
