"""Serves agents from this process: sockets, servers, signals, shutdown.

One process serves several agents, with a port each (on a laptop), or one (in a pod).

Not here: what an agent is made of (`hosted_agent`), which agents there are (`config`).
"""

import asyncio
import contextlib
import gc
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

import uvicorn
from fastapi import FastAPI

from diptych.adapters.openai_chat.completions import open_session
from diptych.config.settings import AgentConfig, ProcessSettings
from diptych.errors import ConfigError
from diptych.serve.hosted_agent import HostedAgent, check_mock_scripts
from diptych.serve.undumpable import make_undumpable

SEND_BUFFER_BYTES = 2**17  # that the kernel keeps for a slow reader; its own default is megabytes
CLOSE_SECONDS = 5  # that open responses get to end, once all runs have ended or are handed over
_POLL_SECONDS = 0.005
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where agents listen: at `port` and those after it, or at free ports if it is 0."""

    host: str = "127.0.0.1"
    port: int = 0

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False


class Sockets:
    """Bound sockets that do not listen yet, so that URLs are known before anything is served.

    Raises `ConfigError` for an address that cannot be bound.
    """

    def __init__(self, address: ListenAddress, count: int) -> None:
        self.address = address
        self._sockets = [
            _bind(address.host, address.port + n if address.port else 0) for n in range(count)
        ]

    @property
    def urls(self) -> list[str]:
        return [_url(self.address, s.getsockname()[1]) for s in self._sockets]

    @property
    def addresses(self) -> list[str]:
        """Where they listen, which is not where this machine reaches them: `http://0.0.0.0:8000`."""
        host = f"[{self.address.host}]" if ":" in self.address.host else self.address.host
        return [f"http://{host}:{s.getsockname()[1]}" for s in self._sockets]

    def __iter__(self) -> Iterator[socket.socket]:
        return iter(self._sockets)

    def close(self) -> None:
        for sock in self._sockets:
            sock.close()


@contextlib.asynccontextmanager
async def serve_agents(
    configs: Sequence[AgentConfig], sockets: Sockets
) -> AsyncIterator[list[HostedAgent]]:
    """Serve agents while the block lasts; at its end, stop their runs and close everything.

    Raises `ConfigError` before any port opens.
    """
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(sockets.close)
        check_mock_scripts(configs)
        http = await stack.enter_async_context(open_session())
        agents = [
            HostedAgent(config, http, url=url)
            for config, url in zip(configs, sockets.urls, strict=True)
        ]
        stop_servers = await stack.enter_async_context(_run_servers(agents, sockets))
        for agent in agents:
            await stack.enter_async_context(agent)
        stack.push_async_callback(stop_servers)  # before the agents: open responses need the store
        stack.push_async_callback(_close_runs, agents, 0.0)
        yield agents


async def serve_until_signal(
    configs: Sequence[AgentConfig],
    sockets: Sockets,
    on_ready: Callable[[Sequence[HostedAgent]], Coroutine[Any, Any, None]],
    *,
    grace: float = ProcessSettings().shutdown_grace,
) -> None:
    """Serve until SIGINT or SIGTERM.

    Active runs then have `grace` seconds to end; a second signal ends the wait.
    """
    make_undumpable()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with serve_agents(configs, sockets) as agents:
        async with asyncio.TaskGroup() as group:
            starting = [
                group.create_task(on_ready(agents)),
                group.create_task(_freeze_loaded_objects(agents)),
            ]
            await stop.wait()
            for task in starting:
                task.cancel()
        stop.clear()
        await _drain(agents, stop, grace)


async def _freeze_loaded_objects(agents: Sequence[HostedAgent]) -> None:
    """Exclude what is loaded by now from garbage collection: it stays.

    A collection of it takes some 90 ms, in which nothing else runs (docs/performance.md).
    """
    await asyncio.gather(*(agent.wait_for_first_connect() for agent in agents))
    gc.collect()
    gc.freeze()


async def _drain(agents: Sequence[HostedAgent], second_signal: asyncio.Event, grace: float) -> None:
    """Take no new runs, and let the active ones end within `grace` seconds."""
    closing = asyncio.create_task(_close_runs(agents, grace))
    interrupting = asyncio.create_task(second_signal.wait())
    if active := sum(agent.runs.active_count for agent in agents):
        _logger.info("ending: %d runs get %g s; a second signal ends them now", active, grace)
    await asyncio.wait([closing, interrupting], return_when=asyncio.FIRST_COMPLETED)
    interrupting.cancel()
    await _close_runs(agents, 0.0)
    await closing


async def _close_runs(agents: Sequence[HostedAgent], grace: float) -> None:
    await asyncio.gather(*(agent.runs.close(grace) for agent in agents))


@contextlib.asynccontextmanager
async def _run_servers(
    agents: Sequence[HostedAgent], sockets: Sockets
) -> AsyncIterator[Callable[[], Coroutine[Any, Any, None]]]:
    """Run a server for each agent. Gives what stops them all, as the end of the block does."""
    on_loopback = sockets.address.is_loopback
    servers = [_Server(_server_config(agent.app(on_loopback=on_loopback))) for agent in agents]
    tasks = [
        asyncio.create_task(server.serve([sock]))
        for server, sock in zip(servers, sockets, strict=True)
    ]

    async def stop_servers() -> None:
        for server in servers:  # together, so that all take as long as one
            server.should_exit = True
        await asyncio.gather(*tasks)

    try:
        for server, task in zip(servers, tasks, strict=True):
            while not server.started and not task.done():  # noqa: ASYNC110 - uvicorn has no event
                await asyncio.sleep(_POLL_SECONDS)
            if task.done():
                await task  # it could not start: raises why
        yield stop_servers
    finally:
        await stop_servers()


def _server_config(app: FastAPI) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        lifespan="off",
        ws="none",  # the library that serves them costs memory, and nothing here does
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=75,  # longer than the usual idle time of a proxy's pool
        timeout_graceful_shutdown=CLOSE_SECONDS,
    )


class _Server(uvicorn.Server):
    """A server that handles no signals: several run side by side here."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only if the protocol is named; without it a reply may wait 40 ms.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise ConfigError(
            f"--port {port}: cannot listen on {host}:{port}: {error.strerror or error}"
        ) from error
    return sock


def _url(address: ListenAddress, port: int) -> str:
    """Give the URL at which this machine reaches a port."""
    is_any = address.host in ("0.0.0.0", "localhost")  # noqa: S104
    host = "127.0.0.1" if is_any else address.host
    host = "[::1]" if host == "::" else f"[{host}]" if ":" in host else host
    return f"http://{host}:{port}"
