"""The life of a serving process, from its sockets to a clean end at a signal.

A process serves one agent (in a pod), or several at a port each (on a laptop).
"""

import asyncio
import contextlib
import ctypes
import errno
import gc
import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Any

from starlette.types import ASGIApp

from diptych.core.errors import ConfigError
from diptych.http.guards import LoopbackGuard
from diptych.http.team_router import TeamMember, TeamRouter
from diptych.manifest.settings import AgentConfig, ProcessSettings
from diptych.manifest.telemetry import TelemetrySettings
from diptych.net.memory_budget import MemoryBudget
from diptych.net.proxies import proxy_notices
from diptych.serve.adapters import check_mock_scripts, check_store_urls
from diptych.serve.hosted_agent import HostedAgent, ProcessParts
from diptych.serve.http_server import HttpServer, run_http_server
from diptych.serve.memory_limit import memory_limit, room_for_requests
from diptych.serve.tracing import opened_traces, traced_http_session

SEND_BUFFER_BYTES = 2**17  # that the kernel keeps for a slow reader; its own default is megabytes
_NO_IPV6 = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL})
_POLL_SECONDS = 0.05
_PR_SET_DUMPABLE = 4  # linux/prctl.h
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where agents listen: at `port` and the following ones, or at free ports if it is 0.

    `setting` is the port's name in errors.
    """

    host: str = "127.0.0.1"
    port: int = 0
    setting: str = "--port"

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False


class Sockets:
    """Bound sockets that do not listen yet, so that URLs are known before agents are built.

    Raises `ConfigError` for an address that cannot be bound.
    """

    def __init__(self, address: ListenAddress, count: int) -> None:
        self.address = address
        self._sockets = [
            _bind(address, address.port + n if address.port else 0) for n in range(count)
        ]

    @property
    def urls(self) -> list[str]:
        """The URLs at which this machine reaches them."""
        is_any = self.address.host in ("0.0.0.0", "::", "localhost")  # noqa: S104
        return self._at("127.0.0.1" if is_any else self.address.host)

    @property
    def addresses(self) -> list[str]:
        """The listening addresses, which need not be reachable URLs: `http://0.0.0.0:8000`."""
        return self._at(self.address.host)

    def _at(self, host: str) -> list[str]:
        host = f"[{host}]" if ":" in host else host
        return [f"http://{host}:{sock.getsockname()[1]}" for sock in self._sockets]

    def __iter__(self) -> Iterator[socket.socket]:
        return iter(self._sockets)

    def close(self) -> None:
        for sock in self._sockets:
            sock.close()


@contextlib.asynccontextmanager
async def serve_agents(
    configs: Sequence[AgentConfig],
    sockets: Sockets,
    metrics: Sockets | None = None,
    telemetry: TelemetrySettings | None = None,
) -> AsyncIterator[list[HostedAgent]]:
    """Serve agents while the block lasts; at its end, stop their runs and close everything.

    With sockets for `metrics` these are served only there. With `telemetry` traces are sent. Raises
    `ConfigError` before any port opens.
    """
    settings = ProcessSettings(telemetry=telemetry)
    async with _serve(configs, sockets, metrics, settings) as (agents, _server):
        yield agents


@contextlib.asynccontextmanager
async def _serve(
    configs: Sequence[AgentConfig],
    sockets: Sockets,
    metrics: Sockets | None,
    settings: ProcessSettings,
    *,
    has_docs: bool = False,
) -> AsyncIterator[tuple[list[HostedAgent], HttpServer]]:
    memory_budget = MemoryBudget(room_for_requests(settings.memory_limit or memory_limit()))
    async with contextlib.AsyncExitStack() as stack:
        for each in filter(None, (sockets, metrics)):
            stack.callback(each.close)
        check_mock_scripts(configs)
        check_store_urls(configs)
        for notice in proxy_notices():
            _logger.warning(notice)
        # At the very end the last spans are sent: runs end before.
        traces = await stack.enter_async_context(opened_traces(settings.telemetry))
        http = await stack.enter_async_context(traced_http_session(traces))
        shared = ProcessParts(
            memory_budget,
            traces,
            on_loopback=sockets.address.is_loopback,
            has_metrics=metrics is None,
            has_docs=has_docs,
        )
        agents = [
            HostedAgent(config, http, url=url, shared=shared)
            for config, url in zip(configs, sockets.urls, strict=True)
        ]
        apps = _apps(agents, sockets, metrics, memory_budget)
        server = await stack.enter_async_context(run_http_server(apps, memory_budget))
        for agent in agents:
            await stack.enter_async_context(agent)
        stack.push_async_callback(server.stop)  # before the agents: open responses need the store
        stack.push_async_callback(_close_runs, agents, 0.0)
        yield agents, server


async def serve_until_signal(  # noqa: PLR0913 - the options of a process
    configs: Sequence[AgentConfig],
    sockets: Sockets,
    on_ready: Callable[[Sequence[HostedAgent]], Coroutine[Any, Any, None]],
    settings: ProcessSettings | None = None,
    *,
    metrics: Sockets | None = None,
    has_docs: bool = False,
) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP.

    `nohup` is respected. Active runs then have some seconds to end; a second signal ends the wait.
    """
    settings = settings or ProcessSettings()
    make_undumpable()
    stop = set_at_signals()
    serving = _serve(configs, sockets, metrics, settings, has_docs=has_docs)
    async with serving as (agents, server):
        async with asyncio.TaskGroup() as group:
            starting = [
                group.create_task(on_ready(agents)),
                group.create_task(freeze_loaded_objects(agents)),
                *(group.create_task(agent.run_schedules()) for agent in agents),
            ]
            await stop.wait()
            for task in starting:
                task.cancel()
        stop.clear()
        await drain(agents, server, stop, settings.shutdown_grace)


def set_at_signals() -> asyncio.Event:
    """Return an event that SIGINT, SIGTERM and, without `nohup`, SIGHUP set."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, stop.set)
    return stop


async def wait_idle(
    busy: Callable[[], int], seconds: float, second_signal: asyncio.Event | None = None
) -> None:
    """Wait until nothing is busy: at most `seconds`, and until a second signal."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while busy() and not (second_signal and second_signal.is_set()):  # noqa: ASYNC110 - rare
                await asyncio.sleep(_POLL_SECONDS)


async def freeze_loaded_objects(agents: Sequence[HostedAgent]) -> None:
    """Exclude all objects loaded so far from garbage collection.

    Collecting them takes some 90 ms and blocks everything (docs/performance.md).
    """
    await asyncio.gather(*(agent.wait_for_first_connect() for agent in agents))
    gc.collect()
    gc.freeze()
    gc.enable()  # who starts a process may have it off till here


async def drain(
    agents: Sequence[HostedAgent],
    server: HttpServer,
    second_signal: asyncio.Event,
    grace: float,
) -> None:
    """Accept requests in flight, then no new runs; give active runs `grace` seconds."""
    interrupting = asyncio.create_task(second_signal.wait())
    arriving = asyncio.create_task(server.wait_for_first_requests())
    await asyncio.wait([arriving, interrupting], return_when=asyncio.FIRST_COMPLETED)
    arriving.cancel()
    closing = asyncio.create_task(_close_runs(agents, grace))
    if active := sum(agent.runs.active_count for agent in agents):
        _logger.info("ending: %d runs get %g s; a second signal ends them now", active, grace)
    await asyncio.wait([closing, interrupting], return_when=asyncio.FIRST_COMPLETED)
    interrupting.cancel()
    await _close_runs(agents, 0.0)
    await closing


async def _close_runs(agents: Sequence[HostedAgent], grace: float) -> None:
    await asyncio.gather(*(agent.runs.close(grace) for agent in agents))


def _apps(
    agents: Sequence[HostedAgent],
    sockets: Sockets,
    metrics: Sockets | None,
    memory_budget: MemoryBudget,
) -> list[tuple[ASGIApp, socket.socket]]:
    """Make an app for each agent, and one for its metrics if these have a socket.

    The first socket answers for all agents, if there are several.
    """
    of_agents: list[ASGIApp] = [agent.app() for agent in agents]
    if len(agents) > 1:
        members = {
            agent.name: TeamMember(agent.profile, app, agent.runs.entry, agent.rights)
            for agent, app in zip(agents, of_agents, strict=True)
        }
        router = TeamRouter(members, memory_budget)
        of_agents[0] = LoopbackGuard(router) if sockets.address.is_loopback else router
    apps = list(zip(of_agents, sockets, strict=True))
    if metrics:
        apps += [(agent.metrics_app(), sock) for agent, sock in zip(agents, metrics, strict=True)]
        for agent, url in zip(agents, metrics.urls, strict=True):
            _logger.info("the metrics of %s are at %s/metrics", agent.name, url)
    return apps


def _bind(address: ListenAddress, port: int) -> socket.socket:
    """Bind an address; `::` means IPv6 and IPv4, or IPv4 alone where there is no IPv6."""
    try:
        return _bound(address.host, port)
    except OSError as error:
        if address.host == "::" and error.errno in _NO_IPV6:
            return _bind(replace(address, host="0.0.0.0"), port)  # noqa: S104
        is_taken = error.errno in {errno.EADDRINUSE, errno.EACCES} and address.setting != "port"
        other = "--port 0" if address.setting == "--port" else f"{address.setting}=0"
        several = "" if port == address.port else " (each agent has a port)"
        raise ConfigError(
            f"{address.setting} {address.port}: cannot listen on {address.host}:{port}{several}: "
            f"{error.strerror or error}" + (f"; {other} takes a free port" if is_taken else "")
        ) from error


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only if the protocol is named; without it a reply may wait 40 ms.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        if host == "::":
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind((host, port))
    except OSError:
        sock.close()
        raise
    return sock


def make_undumpable() -> None:
    """Keep the user's other processes out of this one's memory and environment, on Linux.

    Stdio servers run as the agent's user and could read its secrets in `/proc` or by ptrace. It
    also disables core dumps; child programs are dumpable again (prctl(2)).
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0)
