"""A pool: many agents in one process, which come, change and go while it serves.

Each agent has a port of its own that all of its forms share: when it changes, the new form gets
ready, takes the port's requests over, and the former one drains as a process does at SIGTERM.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp
from starlette.types import ASGIApp, Receive, Scope, Send

from diptych.core.errors import ConfigError, InvalidRequest, RunNotFound
from diptych.http.errors import error_body, error_response
from diptych.http.health import Readiness, scheduled_value, unavailable_value
from diptych.http.team_router import TeamMember, TeamRouter
from diptych.manifest.pooled_agent import PooledAgent, pooled_config, read_pooled_agent
from diptych.manifest.secret_sources import value_from_file
from diptych.manifest.settings import AccessConfig, ProcessSettings
from diptych.net.memory_budget import MemoryBudget
from diptych.ports.ids import epoch_of
from diptych.serve.access import AgentAccess
from diptych.serve.adapters import check_mock_scripts
from diptych.serve.app import create_metrics_app
from diptych.serve.connections import Connections
from diptych.serve.hosted_agent import HostedAgent, ProcessParts
from diptych.serve.http_server import CLOSE_SECONDS, HttpServer, run_http_server
from diptych.serve.memory_limit import memory_limit, room_for_requests
from diptych.serve.pool_door import PoolDoor, PoolEntry, PoolState
from diptych.serve.process import (
    ListenAddress,
    Sockets,
    drain,
    freeze_loaded_objects,
    make_undumpable,
    set_at_signals,
    wait_idle,
)
from diptych.serve.tracing import opened_traces, traced_http_session
from diptych.telemetry.metrics import render

OF_ONE_AGENT = 0.5  # share of the memory for requests that one agent may take
OF_ONE_PORT = 512  # connections
POLL_SECONDS = 1.0  # between looks at the folder
_GONE = error_body("this agent has left the pool", "server_error", code="overloaded")
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """Where a pool finds its agents, and where it listens.

    `folder` has the documents of the agents, `*/<agent>.json`. `access` is the pool's own access
    file: whose tokens its door takes, and who may manage agents.
    """

    name: str
    folder: Path
    access: Path
    host: str


class _Form:
    """One form of an agent, and its requests in progress."""

    def __init__(self, document: PooledAgent, agent: HostedAgent) -> None:
        self.document = document
        self.agent = agent
        self._app: ASGIApp | None = None  # until the first request: most agents have few
        self._open_requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._open_requests += 1
        app = self._app = self._app or self.agent.app()
        try:
            await app(scope, receive, send)
        finally:
            self._open_requests -= 1

    async def has_run(self, run_id: str) -> None:
        """Raise a `DiptychError` if this form cannot find a run; only its own store is asked."""
        if epoch_of(run_id) != self.agent.stores.log.epoch:
            raise RunNotFound
        await self.agent.runs.entry(run_id)

    async def end(self, grace: float) -> None:
        """End as at SIGTERM: runs get `grace` seconds, open responses a few more."""
        await self.agent.runs.close(grace)
        await wait_idle(lambda: self._open_requests, CLOSE_SECONDS)
        await self.agent.__aexit__(None, None, None)


class _Member:
    """One agent of the pool: its port, its forms, and its newest document."""

    def __init__(self, pool: "Pool", name: str) -> None:
        self.name = name
        self.document: PooledAgent | None = None  # the newest; None once the agent is removed
        self.form: _Form | None = None  # that takes requests
        self._pool = pool
        self._ending: dict[_Form, asyncio.Task[None]] = {}
        self._access_text: str | None = None
        self._reason = ""  # why the newest document cannot be used
        self._is_settled = True
        self._working: asyncio.Task[None] | None = None
        self._server: asyncio.Server | None = None
        self._port = 0
        self._memory_budget = pool.shared.memory_budget.part(OF_ONE_AGENT)

    @property
    def entry(self) -> PoolEntry:
        document = self.document
        if document is None and self.form:
            return PoolEntry(self.name, self.form.document.digest, self._port, "draining")
        digest, port = (document.digest, document.port) if document else ("", 0)
        if not self._is_settled:
            return PoolEntry(self.name, digest, port, "starting" if document else "draining")
        now = self.form.agent.readiness() if self.form else Readiness(is_ready=False)
        missing = [unavailable_value(each) for each in now.unavailable]
        scheduled = [scheduled_value(each) for each in now.scheduled]
        state: PoolState = "failed" if self._reason else "ready"
        return PoolEntry(self.name, digest, port, state, self._reason, missing, scheduled)

    @property
    def forms(self) -> Sequence[_Form]:
        """All forms that run, even those that end."""
        return tuple(dict.fromkeys([*self._ending, *([self.form] if self.form else [])]))

    def use(self, document: PooledAgent | None) -> None:
        """Change to a new document; None removes the agent."""
        self.document, self._reason, self._is_settled = document, "", False
        if document:
            self._access_text = document.access_text  # even if the rest is wrong
        if self._working is None:
            self._working = asyncio.create_task(self._work())

    def fail(self, reason: str) -> None:
        """Note that the newest document cannot be used."""
        _logger.error("agent %s: %s", self.name, reason)
        self._reason = reason

    async def wait_settled(self) -> None:
        """Wait until the newest document serves or has failed."""
        if self._working:
            await asyncio.wait([self._working])

    async def stop_changing(self) -> None:
        """Drop a change in progress."""
        if self._working:
            self._working.cancel()
            await asyncio.wait([self._working])

    async def close(self) -> None:
        """End everything at once; the runs have been closed before."""
        forms = self.forms
        for task in self._ending.values():
            task.cancel()
        await asyncio.gather(*self._ending.values(), return_exceptions=True)
        await asyncio.gather(*(form.end(0.0) for form in forms))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request of the agent's port."""
        app = self.form or error_response(scope["path"], 503, _GONE)
        await app(scope, receive, send)

    async def _work(self) -> None:
        while not self._is_settled:
            document, reason = self.document, ""
            try:
                await (self._change(document) if document else self._remove())
            except ConfigError as error:
                reason = "; ".join(error.problems)
            except Exception:
                _logger.exception("agent %s cannot be served", self.name)
                reason = "an internal error of the pool; see its log"
            if document is self.document:
                self._is_settled = True
                if reason:
                    self.fail(reason)
        self._working = None

    async def _change(self, document: PooledAgent) -> None:
        former = self.form
        if former and former not in self._ending and former.document.runs_as(document):
            former.document = document
            return
        form = await self._started(document)
        try:
            self.form = form
            await self._listen(document.port)
        except BaseException:
            self.form = former
            await form.end(0.0)
            raise
        agent = form.agent
        member = TeamMember(agent.profile, form, form.has_run, agent.rights)
        self._pool.serve(self.name, member)
        _logger.info("agent %s serves at port %d", self.name, document.port)
        if former and former not in self._ending:
            self._end(former)

    async def _started(self, document: PooledAgent) -> _Form:
        """Build a form and start it: its tool servers and agents have been tried once."""
        pool = self._pool
        async with pool.building:
            config = pooled_config(document, lambda: self._access_text)
            check_mock_scripts([config])
            shared = replace(pool.shared, memory_budget=self._memory_budget)
            url = config.public_url or ""
            agent = HostedAgent(config, pool.http, url=url, shared=shared)
            form = _Form(document, agent)
            await asyncio.sleep(0)  # others are served between two that are built
        try:
            await agent.__aenter__()
            await agent.wait_for_first_connect()
        except BaseException:
            await agent.__aexit__(None, None, None)
            raise
        return form

    async def _listen(self, port: int) -> None:
        """Listen at a port, unless it does already. Raises `ConfigError`."""
        if self._server and self._server.is_serving() and self._port == port:
            return
        [sock] = Sockets(replace(self._pool.address, port=port), 1)
        if self._server:
            self._server.close()
        connections = Connections(self._memory_budget, OF_ONE_PORT)
        self._server = await self._pool.server.listen(self, sock, connections)
        self._port = port

    async def _remove(self) -> None:
        self._pool.members.pop(self.name, None)
        if self.form and self.form not in self._ending:
            self._end(self.form)
        self._forget_if_ended()

    def _end(self, form: _Form) -> None:
        async def end() -> None:
            try:
                await form.end(self._pool.grace)
            except Exception:
                _logger.exception("agent %s did not end well", self.name)
            del self._ending[form]
            if self.form is form:
                self.form = None
            if self._working is None:
                self._forget_if_ended()

        self._ending[form] = asyncio.create_task(end())

    def _forget_if_ended(self) -> None:
        if self.document is None and not self._ending:
            if self._server:
                self._server.close()
            self._pool.forget(self)


class Pool:
    """The agents of a pool, by the documents of its folder and those handed over by HTTP.

    Of both the newer generation counts. `members` are the serving agents, by name.
    """

    def __init__(
        self,
        settings: PoolSettings,
        http: aiohttp.ClientSession,
        shared: ProcessParts,
        grace: float,
    ) -> None:
        self.name = settings.name
        self.address = ListenAddress(settings.host, setting="port")
        self.http = http
        self.shared = shared
        self.grace = grace
        self.server: HttpServer
        self.building = asyncio.Lock()
        self.members: dict[str, TeamMember] = {}
        self._folder = settings.folder
        self._files: dict[Path, tuple[int, ...]] = {}  # versions
        self._of_files: dict[Path, PooledAgent] = {}
        self._all: dict[str, _Member] = {}
        self._removed: dict[str, int] = {}  # generations
        self._has_tried_files = False
        self._is_closing = False

    @property
    def is_ready(self) -> bool:
        """Whether every file that was there at the start has been tried, and it takes runs."""
        return self._has_tried_files and not self._is_closing

    @property
    def agents(self) -> list[HostedAgent]:
        """All agents that run, even those that end."""
        return [form.agent for member in self._all.values() for form in member.forms]

    def metrics(self) -> tuple[bytes, str]:
        forms = {name: member.form for name, member in sorted(self._all.items())}
        return render({name: form.agent.metrics() for name, form in forms.items() if form})

    def entries(self) -> Sequence[PoolEntry]:
        return [self._all[name].entry for name in sorted(self._all)]

    def put(self, name: str, document: bytes) -> PoolEntry:
        """Add or change an agent. Raises `InvalidRequest` for a malformed document."""
        self._use(read_pooled_agent(document, name))
        member = self._all.get(name)
        return member.entry if member else PoolEntry(name, "", 0, "draining")  # a newer removal

    def remove(self, name: str) -> PoolEntry | None:
        """Remove an agent; its runs get the time that they get at the end of a process."""
        member = self._all.get(name)
        if member is None:
            return None
        if member.document:
            self._removed[name] = member.document.generation
            _logger.info("agent %s is removed", name)
        member.use(None)
        return member.entry

    def serve(self, name: str, member: TeamMember) -> None:
        """Let the door serve an agent, or its new form."""
        members = sorted({**self.members, name: member}.items())
        self.members.clear()
        self.members.update(members)

    def forget(self, member: _Member) -> None:
        if self._all.get(member.name) is member:
            del self._all[member.name]

    async def run(self, server: HttpServer) -> None:
        """Serve the agents of the folder, and follow its changes, until cancelled."""
        self.server = server
        self._read_folder()
        await asyncio.gather(*(member.wait_settled() for member in tuple(self._all.values())))
        self._has_tried_files = True
        await freeze_loaded_objects(self.agents)
        while True:
            await asyncio.sleep(POLL_SECONDS)
            self._read_folder()

    async def stop_changing(self) -> None:
        """Drop changes in progress, and take none any more: the process ends."""
        self._is_closing = True
        await asyncio.gather(*(each.stop_changing() for each in tuple(self._all.values())))

    async def close(self) -> None:
        await asyncio.gather(*(member.close() for member in tuple(self._all.values())))

    def _use(self, document: PooledAgent) -> None:
        name = document.name
        member = self._all.get(name)
        if member and (newest := member.document):
            is_same = document.digest == newest.digest and member.entry.state != "failed"
            is_old = document.generation < newest.generation or is_same
        else:
            is_old = document.generation <= self._removed.get(name, document.generation - 1)
        if not (is_old or self._is_closing):
            self._member(name).use(document)

    def _member(self, name: str) -> _Member:
        return self._all.setdefault(name, _Member(self, name))

    def _read_folder(self) -> None:
        found = dict(_versions(self._folder))
        names = {path.stem for path in found}
        for path in self._files.keys() - found.keys():
            document, member = self._of_files.pop(path, None), self._all.get(path.stem)
            if member and member.document == document and path.stem not in names:
                self.remove(path.stem)
        changed = [path for path, version in found.items() if self._files.get(path) != version]
        self._files = found
        for path in changed:
            try:
                document = read_pooled_agent(path.read_bytes(), path.stem)
            except (OSError, InvalidRequest) as error:
                self._member(path.stem).fail(f"its file: {error}")
                continue
            self._of_files[path] = document
            self._use(document)


def _versions(folder: Path) -> Iterator[tuple[Path, tuple[int, ...]]]:
    """Find the documents of a folder, each with a version that changes with it."""
    for path in sorted(folder.glob("*/*.json")):
        with contextlib.suppress(OSError):
            status = path.stat()
            yield path, (status.st_mtime_ns, status.st_size, status.st_ino)


async def serve_pool_until_signal(
    settings: PoolSettings, process: ProcessSettings, sockets: Sockets, metrics: Sockets | None
) -> None:
    """Serve a pool until SIGINT, SIGTERM or SIGHUP, as `serve_until_signal` does agents."""
    make_undumpable()
    stop = set_at_signals()
    async with _serving(settings, process, sockets, metrics) as (pool, server):
        _logger.info("the pool listens at %s", sockets.addresses[0])
        async with asyncio.TaskGroup() as group:
            running = group.create_task(pool.run(server))
            await stop.wait()
            running.cancel()
        stop.clear()
        await pool.stop_changing()
        await drain(pool.agents, server, stop, process.shutdown_grace)


@contextlib.asynccontextmanager
async def _serving(
    settings: PoolSettings, process: ProcessSettings, sockets: Sockets, metrics: Sockets | None
) -> AsyncIterator[tuple[Pool, HttpServer]]:
    """Serve the door, and the metrics, of a pool whose agents `Pool.run` starts."""
    memory_budget = MemoryBudget(room_for_requests(process.memory_limit or memory_limit()))
    async with contextlib.AsyncExitStack() as stack:
        for each in filter(None, (sockets, metrics)):
            stack.callback(each.close)
        traces = await stack.enter_async_context(opened_traces(process.telemetry))
        http = await stack.enter_async_context(traced_http_session(traces))
        access = AgentAccess(AccessConfig(platform=value_from_file(settings.access)), http)
        shared = ProcessParts(
            memory_budget,
            traces,
            pool_issuers=access.issuers,
            on_loopback=False,
            has_metrics=False,
        )
        pool = Pool(settings, http, shared, process.shutdown_grace)
        policy = access.policy(settings.name, lambda _: None)
        door = PoolDoor(pool, TeamRouter(pool.members, memory_budget), policy, memory_budget)
        apps: list[tuple[ASGIApp, Sockets]] = [(door, sockets)]
        if metrics:
            apps.append((create_metrics_app(pool.metrics, on_loopback=False), metrics))
        bound = [(app, sock) for app, of_app in apps for sock in of_app]
        server = await stack.enter_async_context(run_http_server(bound, memory_budget))
        stack.push_async_callback(pool.close)
        stack.push_async_callback(server.stop)  # before the agents: open responses need the store
        yield pool, server
