"""Doubles of the ports, and builders of what tests need."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from diptych.budgets.agent_budgets import AgentBudgets
from diptych.core.catalog import Catalog, Peer, Tool, Unavailable
from diptych.core.codec import Record, decode
from diptych.core.errors import DelegationError
from diptych.core.events import Origin
from diptych.core.messages import CallOutput, Message
from diptych.core.model_request import ModelRequest
from diptych.core.prompt import OUTCOME_UNKNOWN
from diptych.models.scripted import ScriptedModel, read_script
from diptych.net.memory_budget import MemoryBudget
from diptych.policy.rules import Policy
from diptych.ports import CallContext, DelegationRequest, Item, Model, Notice, Progress
from diptych.ports.stores import Stores
from diptych.runs.backends import Backends
from diptych.runs.definition import AgentDefinition
from diptych.runs.hooks import Hooks
from diptych.runs.request import RunRequest
from diptych.runs.service import RunService
from diptych.stores.memory.store import Bounds, MemoryStore
from diptych.stores.sqlite import SqliteStore

EPOCH = "0000000a"


def tool(name: str, *, server: str = "box", **marks: Any) -> Tool:
    """A tool that takes any object."""
    schema = marks.pop("schema", {"type": "object"})
    return Tool(server, name, f"does {name}", schema, **marks)


def catalog(*names: str, agents: Sequence[str] = (), **rest: Any) -> Catalog:
    return Catalog(tuple(map(tool, names)), tuple(Peer(a, f"is {a}") for a in agents), **rest)


@dataclass
class CountingClock:
    """Time stands still unless a test moves it; tokens count up."""

    seconds: float = 1_000_000.0
    tokens: int = 0

    def now(self) -> float:
        return self.seconds

    def token(self) -> str:
        self.tokens += 1
        return f"{self.tokens:032x}"


@dataclass
class FunctionTools:
    """Tools that are coroutine functions of their arguments; remembers what was called."""

    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    tools: tuple[Tool, ...] | None = None
    unavailable: tuple[Unavailable, ...] = ()
    retries: int = 0
    called: list[tuple[str, Any]] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    asking: Collection[str] = ()  # those that take the call's context

    def snapshot(self) -> tuple[tuple[Tool, ...], tuple[Unavailable, ...]]:
        offered = self.tools if self.tools is not None else tuple(map(tool, self.functions))
        return offered, self.unavailable

    def retry_unavailable(self) -> None:
        self.retries += 1

    async def call(self, tool: Tool, arguments: Any, context: CallContext) -> CallOutput:
        self.called.append((tool.name, arguments))
        function = self.functions[tool.name]
        given = {"context": context} if tool.name in self.asking else {}
        try:
            value = await function(**arguments, **given)
        except asyncio.CancelledError:
            self.cancelled.append(tool.name)
            raise
        return value if isinstance(value, CallOutput) else CallOutput(str(value), value)


@dataclass
class FunctionAgents:
    """Agents that are coroutine functions of an errand."""

    functions: Mapping[str, Callable[[DelegationRequest, Progress], Any]] = field(
        default_factory=dict
    )
    unavailable: tuple[Unavailable, ...] = ()
    gets_conversation: Literal[False] | None = None
    delegations: list[DelegationRequest] = field(default_factory=list)

    def snapshot(self) -> tuple[tuple[Peer, ...], tuple[Unavailable, ...]]:
        about: Any = {"gets_conversation": self.gets_conversation}
        peers = tuple(Peer(n, f"is {n}", **about) for n in self.functions)
        return peers, self.unavailable

    async def delegate(self, request: DelegationRequest, progress: Progress) -> CallOutput:
        self.delegations.append(request)
        if request.is_taken_over:  # these agents keep no tasks
            raise DelegationError("unknown", OUTCOME_UNKNOWN)
        return CallOutput(await self.functions[request.agent](request, progress))


class ListeningModel(ScriptedModel):
    """A scripted model that remembers what it was told."""

    def __init__(self, *replies: Any) -> None:
        import json  # noqa: PLC0415

        super().__init__(read_script(json.dumps(list(replies))))
        self.requests: list[tuple[Message, ...]] = []

    async def complete(self, request: ModelRequest) -> Any:
        self.requests.append(request.messages)
        return await super().complete(request)

    async def stream(self, request: ModelRequest) -> Any:
        self.requests.append(request.messages)
        async for delta in super().stream(request):
            yield delta


@dataclass
class House:
    """Runs over doubles, with everything at hand."""

    runs: RunService
    store: MemoryStore | SqliteStore
    model: Any
    tools: FunctionTools
    agents: FunctionAgents

    async def ask(
        self, text: str = "hi", session_id: str | None = None, system: str = "", **origin: Any
    ) -> list[Item]:
        """Ask, and give all that was told up to the end."""
        ask = RunRequest((Message("user", text),), system, session_id, Origin(**origin))
        entry = await self.runs.start(ask)
        return await self.told(entry.run_id)

    async def told(self, run_id: str, after: int = 0) -> list[Item]:
        return [item async for batch in self.runs.subscribe(run_id, after) for item in batch]

    async def events(self, run_id: str) -> list[Any]:
        """Read a run's events back from its records."""
        records = await self.store.read(run_id)
        blobs = {
            r.content: await self.store.get_blob(str(r.content))
            for r in records
            if r.event_type == "offered"
        }
        return [decode(r.event_type, r.content, r.metadata, blobs.__getitem__) for r in records]


def house(  # noqa: PLR0913 - what a test may want else
    *replies: Any,
    model: Model | None = None,
    tools: FunctionTools | Mapping[str, Any] | None = None,
    agents: FunctionAgents | Mapping[str, Any] | None = None,
    definition: AgentDefinition | None = None,
    bounds: Bounds | None = None,
    policy: Policy | None = None,
    memory_budget: MemoryBudget | None = None,
    hooks: Hooks | None = None,
    budgets: AgentBudgets | None = None,
    local: SqliteStore | None = None,
) -> House:
    model = model or ListeningModel(*replies)
    tools = tools if isinstance(tools, FunctionTools) else FunctionTools(tools or {})
    agents = agents if isinstance(agents, FunctionAgents) else FunctionAgents(agents or {})
    memory = MemoryStore(EPOCH, bounds)
    clock = CountingClock()
    store = local or memory
    stores = Stores(store, store, store, store, clock)
    hooks, definition = hooks or Hooks(), definition or AgentDefinition("Be brief.")
    settings = replace(definition.settings, hooks=hooks.points)
    runs = RunService(
        replace(definition, settings=settings),
        Backends(model, tools, agents, policy=policy or Policy(), hooks=hooks, budgets=budgets),
        stores,
        memory_budget=memory_budget,
    )
    return House(runs, store, model, tools, agents)


def types(items: Sequence[Item]) -> list[str]:
    """The wire names of what was told, notices in brackets."""
    return [f"[{i.type}]" if isinstance(i, Notice) else i.event_type for i in items]


def facts(items: Sequence[Item]) -> list[str]:
    """The wire names of what is in `/memory/events`."""
    hidden = {"offered", "model_reply", "text", "completed"}
    return [i.event_type for i in items if isinstance(i, Record) and i.event_type not in hidden]
