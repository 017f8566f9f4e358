"""Builds an agent from its configuration: adapters, run service, web application.

This is the composition root: the only place that knows both the ports and the adapters.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from types import TracebackType
from typing import TYPE_CHECKING, Self

import aiohttp
from fastapi import FastAPI
from prometheus_client import Metric
from starlette.types import Scope

from diptych.access.grants import Right
from diptych.access.tokens import Issuer
from diptych.core.budget import Prices
from diptych.core.catalog import Catalog, Unavailable
from diptych.core.errors import ConfigError, StoreError
from diptych.http.agent_profile import AgentProfile
from diptych.http.health import Readiness
from diptych.manifest.settings import AgentConfig, ToolServerConfig
from diptych.mcp import McpTools
from diptych.net.memory_budget import MemoryBudget
from diptych.net.name_server import NameServerWatch, has_host_name
from diptych.policy.unmatched import Unmatched, unmatched
from diptych.ports import Model
from diptych.ports.entries import TAKEN_SECONDS
from diptych.runs.backends import Backends, StepGate
from diptych.runs.catalog_recorder import starting_format
from diptych.runs.hooks import Hooks
from diptych.runs.request import RunRequest
from diptych.runs.service import RunService
from diptych.serve.access import AgentAccess
from diptych.serve.adapters import (
    RedisServers,
    SystemClock,
    agent_budgets,
    agent_client,
    agent_model,
    agent_store,
    in_process_name,
    sign_ins,
    stores,
)
from diptych.serve.app import AppDependencies, create_app, create_metrics_app
from diptych.serve.current_model import CurrentModel
from diptych.serve.schedules import ScheduledRuns, Schedules
from diptych.serve.tracing import agent_traces, observers
from diptych.stores.memory.store import MemoryStore
from diptych.telemetry.metrics import Metrics, render

if TYPE_CHECKING:
    from diptych.a2a.local_agent import LocalAgent
    from diptych.a2a.push import PushSender
    from diptych.runs.http_hooks import HttpHooks
    from diptych.serve.adapters import Store
    from diptych.telemetry.agent_traces import AgentTraces
    from diptych.telemetry.process_traces import ProcessTraces

FIRST_CONNECT_SECONDS = 5.0  # `/ready` waits so long for the first try of every server and agent
DUE_PUSHES_SECONDS = 15.0  # between two looks for push notifications that nobody sends
OFFERS_SECONDS = 5.0  # between two looks at what tool servers offer
START_SECONDS = 65.0  # a command has 60 s to start; whoever asks one question waits for it
VERSION = version("diptych")
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class InProcessBackends:
    """Python objects that a configuration cannot hold: a model, tools, agents, hooks.

    With `tells_turns` subscribers get a notice before each request to the model. Raises
    `ConfigError` for a function that cannot be a tool.
    """

    model: Model | None = None
    tool_servers: tuple[ToolServerConfig, ...] = ()
    agents: "tuple[LocalAgent, ...]" = ()
    hooks: Hooks = field(default_factory=Hooks)
    tells_turns: bool = False

    def __post_init__(self) -> None:
        McpTools(self.tool_servers)


@dataclass(frozen=True, slots=True)
class ProcessParts:
    """Parts that a process's agents share, besides the client for models, and how they are served.

    An agent on loopback is open. Without `has_metrics` the metrics have a port of their own.
    """

    memory_budget: MemoryBudget = field(default_factory=MemoryBudget)
    traces: "ProcessTraces | None" = None
    redis: RedisServers = field(default_factory=RedisServers)
    pool_issuers: Callable[[], Sequence[Issuer]] = tuple
    on_loopback: bool = True
    has_metrics: bool = True
    has_docs: bool = False


class HostedAgent:
    """An agent that runs inside `async with`.

    `http` is the process's client for models. `url` is the agent's base URL, for its delegations;
    empty if it is not served. `memory` holds runs and sessions if the agent has no other store.
    Raises `ConfigError` for an invalid script, and if no caller could authenticate.
    """

    def __init__(  # noqa: PLR0913 - what an agent may be given
        self,
        config: AgentConfig,
        http: aiohttp.ClientSession,
        *,
        url: str = "",
        in_process: InProcessBackends | None = None,
        shared: ProcessParts | None = None,
        memory: MemoryStore | None = None,
    ) -> None:
        in_process, shared = in_process or InProcessBackends(), shared or ProcessParts()
        self._shared = shared
        self._access = AgentAccess(config.access, http, shared.pool_issuers)
        self._is_open = shared.on_loopback or config.access.mode == "open"
        if not (self._is_open or self._access.proves_somebody):
            raise ConfigError(
                f"{config.name}: would listen beyond loopback with no way to say who asks; give "
                "spec.access.keys or spec.access.issuers, or --open to let everybody do everything"
            )
        in_process_model = in_process_name(config, in_process.model)
        self._in_process_model = in_process_model
        self._traces = agent_traces(shared.traces, config, VERSION, in_process_model)
        self.name = config.name
        self.url = url
        self._config = config
        self._is_scripted = config.mock_responses is not None
        self._agents = agent_client(config, url, in_process.agents)
        clock = SystemClock()
        store = agent_store(config, shared.redis)
        self._memory_note = store if isinstance(store, str) else ""
        self.data_problem = self._memory_note if config.data else ""  # why its folder is not used
        self._store: Store | None = None if isinstance(store, str) else store
        self._sign_ins = sign_ins(config, url, self._store, on_loopback=shared.on_loopback)
        self._tools = McpTools([*config.tools, *in_process.tool_servers], sign_ins=self._sign_ins)
        self._memory = memory or MemoryStore(clock.token()[:8])
        self.stores = stores(self._store, self._memory, clock)
        self._metrics = Metrics(
            in_process_model=in_process_model, prices=config.definition.settings.prices
        )
        observe, observe_model, observe_hook = observers(self._metrics, self._traces, shared.traces)
        self._scheduled = ScheduledRuns()
        self.step_gate = StepGate()
        self._http_hooks = _http_hooks(config, self._traces)
        hooks = Hooks(self._http_hooks.hooks) if self._http_hooks else in_process.hooks
        hooks = replace(hooks, observe=observe_hook)
        self._budgets = agent_budgets(config, self._store, clock)
        settings = replace(config.definition.settings, hooks=hooks.points)
        self._model = CurrentModel(
            config,
            settings,
            lambda changed: agent_model(changed, http, in_process.model, observe_model),
            self._on_new_model,
        )
        self.runs = RunService(
            replace(config.definition, settings=settings),
            replace(self._backends(hooks), tells_turns=in_process.tells_turns),
            self.stores,
            [*observe, self._scheduled.observe],
            shared.memory_budget,
        )
        policy = self._access.policy(self.name, self._metrics.count_refused)
        self._policy = None if self._is_open else policy
        self._name_server = NameServerWatch(lambda: bool(self._behind_names(self._unavailable())))
        self._first_connect: asyncio.Task[None] | None = None
        self._pushes: PushSender | None = None
        self._watches: list[asyncio.Task[None]] = []  # for `/ready`, and for the log

    def _backends(self, hooks: Hooks) -> Backends:
        return Backends(
            self._model.model,
            self._tools,
            self._agents,
            policy=self._config.policy,
            hooks=hooks,
            step_gate=self.step_gate,
            budgets=self._budgets,
            tracing=self._traces,
            newest_model=self._model.of_runs if self._config.model_file else None,
        )

    def _on_new_model(self, config: AgentConfig) -> None:
        prices = config.definition.settings.prices
        self._metrics.prices = prices
        self._budgets.estimate.prices = prices or Prices()
        if config.model:
            self._budgets.estimate.reply_tokens = config.model.max_tokens

    async def __aenter__(self) -> Self:
        if self._store:
            await self._store.start()
        self._tools.start()
        await self._agents.start()
        await self._access.start()
        self.runs.start_background()
        self._first_connect = asyncio.create_task(self._try_all(FIRST_CONNECT_SECONDS))
        if self._config.named_calls:
            self._watches.append(asyncio.create_task(self._log_unmatched()))
        if self.url:  # others have no `/ready`
            self._watches.append(asyncio.create_task(self._name_server.run()))
            self._watches.append(asyncio.create_task(self._take_due_pushes()))
            self._model.watch()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.runs.close()
        finally:
            if self._pushes:
                await self._pushes.aclose()
            await self._budgets.aclose()
            for task in filter(None, (self._first_connect, *self._watches)):
                task.cancel()
            self._model.stop_watching()
            await asyncio.gather(self._tools.aclose(), self._agents.aclose(), self._access.aclose())
            if self._http_hooks:
                await self._http_hooks.aclose()
            if self._store:
                await self._store.aclose()

    def in_current_trace(self, request: RunRequest) -> RunRequest:
        """Return the request with the current span as its parent, if tracing is on."""
        if self._traces is None or (trace := self._traces.current_traceparent()) is None:
            return request
        return replace(request, origin=replace(request.origin, traceparent=trace))

    def _push_sender(self) -> "PushSender":
        from diptych.a2a.push import PushSender  # noqa: PLC0415 - heavy, and rarely needed

        self._pushes = self._pushes or PushSender(
            self.runs,
            self._store or self._memory,
            self._config.chat.webhook_hosts,
            self._config.definition.settings.output_schema,
        )
        return self._pushes

    async def _take_due_pushes(self) -> None:
        """Send what other processes have left unsent, until cancelled."""
        if self._store is None:
            return
        while True:
            await asyncio.sleep(DUE_PUSHES_SECONDS)
            with contextlib.suppress(StoreError):
                for push in await self._store.take_due_pushes(TAKEN_SECONDS):
                    self._push_sender().send(push)

    async def run_schedules(self) -> None:
        """Start the runs of the agent's schedules, until cancelled."""
        await Schedules(self._config.schedules, self.runs, self.stores.log).run()

    async def wait_for_first_connect(self) -> None:
        """Wait until every tool server and agent has been tried once, at most 5 s."""
        if self._first_connect:
            await asyncio.wait([self._first_connect])

    async def wait_until_tried(self) -> None:
        """Wait until every tool server and agent has been tried once, even commands that start
        slowly.
        """
        await self._try_all(START_SECONDS)

    @property
    def profile(self) -> AgentProfile:
        config = self._config
        issuers = () if self._is_open else tuple(i.url for i in config.access.issuers)
        urls = config.public_url, config.exposed_url
        return AgentProfile(
            config.name,
            config.description,
            VERSION,
            *urls,
            not self._is_open,
            issuers,
            models=self._model_names,
            examples=config.examples,
            inputs=config.model.inputs if config.model else (),
            output_schema=config.definition.settings.output_schema,
            catalog=self._catalog,
            has_push=bool(self.url),
        )

    def _model_names(self) -> tuple[str, ...]:
        if self._in_process_model:
            return (self._in_process_model,)
        return tuple(each.name for each in self._model.endpoints)

    def app(self) -> FastAPI:
        """Build the agent's web application, which takes 20 ms and half a MiB."""
        config, shared = self._config, self._shared
        dependencies = AppDependencies(
            self.profile,
            self.runs,
            self.stores,
            self.readiness,
            self._render_metrics if shared.has_metrics else None,
            limits=config.access.limits,
            memory_budget=shared.memory_budget,
            access=self._policy,
            chat=config.chat,
            budgets=self._budgets,
            triggers=config.triggers,
            has_docs=shared.has_docs,
            sign_ins=self._sign_ins,
            push_sender=self._push_sender if self.url else None,
        )
        return create_app(dependencies, on_loopback=shared.on_loopback)

    def metrics_app(self) -> FastAPI:
        """Build the application that serves the metrics on their own port."""
        return create_metrics_app(self._render_metrics, on_loopback=self._shared.on_loopback)

    async def rights(self, scope: Scope) -> frozenset[Right]:
        """Return the rights of a request's caller."""
        return frozenset(Right) if self._policy is None else await self._policy.rights(scope)

    def readiness(self) -> Readiness:
        """Return whether the agent takes runs, and which tool servers, agents and keys are
        missing.
        """
        unavailable = self._unavailable()
        if silence := self._name_server.silence():  # what it hides has this one cause
            hidden = self._behind_names(unavailable)
            seen = (one for one in unavailable if one not in hidden)
            unavailable = (Unavailable("dns", *silence), *seen)
        without_effect = unmatched(self._config.named_calls, self._catalog())
        reason = self._not_ready_reason()
        return Readiness(
            is_ready=not reason,
            reason=reason,
            unavailable=(
                *unavailable,
                *(Unavailable("rule", u.place, u.reason) for u in without_effect if not u.is_glob),
            ),
            notes=[
                *self._notes(),
                *(f"{u.place}: {u.reason}" for u in without_effect if u.is_glob),
            ],
            action_format=starting_format(self._model.settings, self._model.model),
            scheduled=tuple(self._scheduled.ends.values()),
        )

    def metrics(self) -> Iterable[Metric]:
        """Return the metrics as they are now."""
        return self._metrics.collect(
            self.runs.active_count, self._memory.dropped, self._budgets.of_day
        )

    def _render_metrics(self) -> tuple[bytes, str]:
        return render({"": self.metrics()})

    def _unavailable(self) -> tuple[Unavailable, ...]:
        store = self._store
        problem = (store.unavailable_reason() or store.full_reason()) if store else ""
        return (
            *((Unavailable("store", store.name, problem),) if store and problem else ()),
            *self._model.unavailable(),
            *self._catalog().unavailable,
            *(
                _unavailable_key(name)
                for name, read in self._model.mounted_keys.items()
                if read() is None
            ),
        )

    def _behind_names(self, unavailable: Sequence[Unavailable]) -> list[Unavailable]:
        """Return the dependencies whose URLs need the name server."""
        config = self._config
        urls = {
            **{("model", one.name): one.endpoint for one in self._model.endpoints},
            **{("server", one.name): one.url for one in config.tools},
            **{("agent", one.name): one.url for one in config.agents},
            ("store", "redis"): config.store.url() if config.store else None,
        }
        found = ((one, urls.get((one.kind, one.name))) for one in unavailable)
        return [one for one, url in found if url and has_host_name(url)]

    def _catalog(self) -> Catalog:
        (tools, servers_away), (agents, agents_away) = (
            self._tools.snapshot(),
            self._agents.snapshot(),
        )
        return Catalog(tools, agents, (*servers_away, *agents_away))

    async def _log_unmatched(self) -> None:
        """Log fields that match no tool or agent, at the start and whenever the catalog changes."""
        await self.wait_for_first_connect()
        logged: Sequence[Unmatched] = ()
        while True:
            found = unmatched(self._config.named_calls, self._catalog())
            for each in (one for one in found if one not in logged):
                logger.warning("agent %s: %s: %s", self.name, each.place, each.reason)
            logged = found
            await asyncio.sleep(OFFERS_SECONDS)

    def _not_ready_reason(self) -> str:
        if self.runs.is_closing:
            return "shutting down"
        if self._store and (reason := self._store.unavailable_reason()):
            return reason
        if self._first_connect and self._first_connect.done():
            return ""
        return "trying tool servers and agents for the first time"

    def _notes(self) -> list[str]:
        notes = list(self._store.notes()) if self._store else [self._memory_note]
        if self._is_open and self._config.access.mode == "open":
            notes.append("access is open: everybody who reaches this agent may do everything")
        if self._sign_ins and not (self._store and self._config.token_keys):
            notes.append(
                "OAuth tokens are in this process only: DIPTYCH_TOKEN_KEY and a store keep them"
            )
        if self._is_scripted:
            notes.append("DEBUG_MOCK_RESPONSES is on: a script answers instead of a model")
        notes += self._model.notes()
        model = self._model.model
        if self._model.settings.action_format == "auto" and model.takes_tools is False:
            tool = model.refused_tool
            what = "tools" if tool is None else f"the tool {tool!r}" if tool else "these tools"
            notes.append(f"the model's endpoint refuses {what}: calls are asked for as JSON")
        return notes

    async def _try_all(self, seconds: float) -> None:
        await asyncio.gather(
            self._tools.wait_for_first_attempt(seconds),
            self._agents.wait_for_first_attempt(seconds),
        )


def _http_hooks(config: AgentConfig, traces: "AgentTraces | None") -> "HttpHooks | None":
    """Build a manifest's HTTP hooks, if any; an agent in Python has functions instead."""
    if not config.hooks:
        return None
    from diptych.runs.http_hooks import HttpHooks  # noqa: PLC0415 - heavy, and rarely needed

    return HttpHooks(config.name, config.hooks, traces.add_traceparent if traces else None)


def _unavailable_key(name: str) -> Unavailable:
    return Unavailable("key", name, "is not there; it is taken up when it comes")
