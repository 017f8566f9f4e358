"""Agents served from this process: sockets, servers, signals, and a clean end.

One process may serve several agents, a port each (on a laptop), or one (a pod).
Not here: what an agent is made of (`pod`), which agents there are (`configuration`).
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
from diptych.config.settings import AgentConfig
from diptych.errors import ConfigError
from diptych.serve.hosted_agent import HostedAgent, check_scripts

GRACE_SECONDS = 20.0  # that runs get to end after SIGTERM, if nothing else is said
SEND_BUFFER = 2**17  # bytes that the kernel keeps for a slow reader; by itself it takes megabytes
_STARTED_POLL = 0.005  # seconds
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where agents listen: from `port` up, or on free ports if it is 0."""

    host: str = "127.0.0.1"
    port: int = 8000

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False


@dataclass(frozen=True, slots=True)
class ServedAgent:
    """An agent that is being served, and its base URL."""

    pod: HostedAgent
    url: str


class Sockets:
    """Ports that are taken and not open yet, so that URLs are known before anything is served.

    Raises `ConfigError` for an address that cannot be had.
    """

    def __init__(self, place: ListenAddress, count: int) -> None:
        self.place = place
        self._sockets = [
            _bound(place.host, place.port + n if place.port else 0) for n in range(count)
        ]

    @property
    def urls(self) -> list[str]:
        return [_url(self.place, s.getsockname()[1]) for s in self._sockets]

    def __iter__(self) -> Iterator[socket.socket]:
        return iter(self._sockets)

    def close(self) -> None:
        for bound in self._sockets:
            bound.close()


@contextlib.asynccontextmanager
async def served(
    configs: Sequence[AgentConfig], sockets: Sockets
) -> AsyncIterator[list[ServedAgent]]:
    """Serve agents while the block lasts; at its end, let their runs end and leave nothing.

    Raises `ConfigError` before any port opens.
    """
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(sockets.close)
        check_scripts(configs)
        http = await stack.enter_async_context(open_session())
        sites = [
            ServedAgent(HostedAgent(config, http, url=url), url)
            for config, url in zip(configs, sockets.urls, strict=True)
        ]
        hang_up = await stack.enter_async_context(_listening(sites, sockets))
        for site in sites:
            await stack.enter_async_context(site.pod)
        stack.push_async_callback(hang_up)  # first: who reads to the end needs the store
        stack.push_async_callback(_close, sites, 0.0)
        yield sites


async def serve(
    configs: Sequence[AgentConfig],
    sockets: Sockets,
    on_ready: Callable[[Sequence[ServedAgent]], Coroutine[Any, Any, None]],
    *,
    grace: float = GRACE_SECONDS,
) -> None:
    """Serve until SIGINT or SIGTERM; live runs get `grace` seconds, a second signal ends them."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with served(configs, sockets) as sites:
        async with asyncio.TaskGroup() as group:
            starting = [group.create_task(on_ready(sites)), group.create_task(_settle(sites))]
            await stop.wait()
            for task in starting:
                task.cancel()
        stop.clear()
        await _drain(sites, stop, grace)


async def _settle(sites: Sequence[ServedAgent]) -> None:
    """Leave what is loaded by now, and stays, out of garbage collection.

    To look through it takes some 90 ms, in which nothing else is done (docs/performance.md).
    """
    await asyncio.gather(*(site.pod.tried() for site in sites))
    gc.collect()
    gc.freeze()


async def _drain(sites: Sequence[ServedAgent], hurry: asyncio.Event, grace: float) -> None:
    """Take no new runs, and give those that are there time to end."""
    closing = asyncio.create_task(_close(sites, grace))
    hurrying = asyncio.create_task(hurry.wait())
    if live := sum(site.pod.runs.active_count for site in sites):
        _log.info("ending: %d runs get %g s; a second signal ends them now", live, grace)
    await asyncio.wait([closing, hurrying], return_when=asyncio.FIRST_COMPLETED)
    hurrying.cancel()
    await _close(sites, 0.0)
    await closing


async def _close(sites: Sequence[ServedAgent], seconds: float) -> None:
    await asyncio.gather(*(site.pod.runs.close(seconds) for site in sites))


@contextlib.asynccontextmanager
async def _listening(
    sites: Sequence[ServedAgent], sockets: Sockets
) -> AsyncIterator[Callable[[], Coroutine[Any, Any, None]]]:
    """Have a server for each agent; gives what ends them, as the block's end does.

    They are ended together, so that it takes as long as one.
    """
    on_loopback = sockets.place.is_loopback
    servers = [_Server(_server_config(site.pod.app(on_loopback=on_loopback))) for site in sites]
    serving = [
        asyncio.create_task(server.serve([bound]))
        for server, bound in zip(servers, sockets, strict=True)
    ]

    async def hang_up() -> None:
        for server in servers:
            server.should_exit = True
        await asyncio.gather(*serving)

    try:
        for server, task in zip(servers, serving, strict=True):
            while not server.started and not task.done():  # noqa: ASYNC110 - uvicorn has no event
                await asyncio.sleep(_STARTED_POLL)
            if task.done():
                await task  # it could not start: raises why
        yield hang_up
    finally:
        await hang_up()


def _server_config(app: FastAPI) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        lifespan="off",
        ws="none",  # the library that serves them costs memory, and nothing here does
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=75,  # longer than the usual idle time of a proxy's pool
        timeout_graceful_shutdown=5,
    )


class _Server(uvicorn.Server):
    """A server that leaves signals alone: several run side by side here."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio sets TCP_NODELAY: without it a reply may wait for 40 ms.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise ConfigError(
            f"--port {port}: cannot listen on {host}:{port}: {error.strerror or error}"
        ) from error
    return bound


def _url(place: ListenAddress, port: int) -> str:
    """Give the URL under which this machine reaches a port."""
    host = "127.0.0.1" if place.host in ("0.0.0.0", "localhost") else place.host  # noqa: S104
    host = "[::1]" if host == "::" else f"[{host}]" if ":" in host else host
    return f"http://{host}:{port}"
