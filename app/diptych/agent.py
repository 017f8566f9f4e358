"""The library's face: an agent as a Python object.

    agent = Agent(name="helper", model={"name": "m", "endpoint": "http://…/v1"}, tools=[add])
    print(await agent.run("What is 2 + 2?"))

It is the same agent that a manifest describes, checked by the same rules, without a server of
its own. Not here: the loop (`loop`), how an agent is put together (`pod`).
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson

from diptych.adapters.openai_chat.completions import open_session
from diptych.adapters.scripted import VARIABLE
from diptych.config.loader import (
    LaptopOptions,
    LoadedAgents,
    SourceLocation,
    configured,
    load_agents,
)
from diptych.config.manifest import API_VERSION, KIND
from diptych.config.secret_sources import Reference
from diptych.config.settings import AgentConfig, ToolConfig
from diptych.errors import ConfigError, DiptychError
from diptych.http.memory import session_events
from diptych.loop.codec import TERMINAL, Record
from diptych.loop.messages import Message
from diptych.ports import Item, Model
from diptych.runtime.answers import collect, whole_answer
from diptych.runtime.request import RunRequest
from diptych.runtime.subscription import HANDED_OVER
from diptych.serve.hosted_agent import Extras, HostedAgent, check_scripts
from diptych.serve.server import ListenAddress, Sockets, served

FUNCTIONS = "functions"  # the server that plain Python functions are tools of
ToolSource = Callable[..., Any] | Mapping[str, Any]

_IN_PROCESS = {"name": "in-process", "endpoint": "http://in-process.invalid"}
"""Stands in a manifest for a model object, which has no endpoint; it is never asked."""
_STORE: tuple[str, ...] = ("spec", "sessions", "redis")
_STORE_REF = {"name": "argument-of-agent", "key": "store"}
"""What a manifest would refer to for the URL that is given here."""


class RunError(DiptychError):
    """A run gave no answer here; `code` is that of its end, `aborted`, or `handed_over`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class Memory:
    """What an agent has on record."""

    def __init__(self, agent: "Agent") -> None:
        self._agent = agent

    async def get_session_events(self, session_id: str) -> list[Record]:
        """Give a session's events, as `/memory/events` does; none for an unknown session."""
        pod = await self._agent.start()
        return await session_events(pod.stores.log, session_id)


class Agent:
    """An agent in this process. It starts when it is first used; `aclose` or `async with` ends it.

    `model` is either what a manifest has as `spec.model`, or any object that fulfils
    `diptych.ports.Model`. `mock_responses` (or DEBUG_MOCK_RESPONSES) scripts the model instead.
    `tools` are plain typed functions, or what a manifest has under `spec.tools`; `agents` is what
    it has under `spec.agents`. Other settings are those of `spec.loop`, in snake_case.

    Runs and sessions live in memory and end with this object, unless `store` names a Redis: by its
    URL (`redis://…`, `rediss://…`, `redis+sentinel://…`), or by a reference to it, as a manifest
    has it under `spec.sessions.redis`. There a session is kept for `retention` ("24h" if not said)
    after its last run. All agents of one name share what is in one Redis, and finish what another
    one leaves: in this process, in others, and as pods in the namespace `default`.

    Raises `ConfigError` when they make no valid agent.
    """

    memory: Memory
    _opening: Callable[[], AbstractAsyncContextManager[HostedAgent]]
    _pod: HostedAgent | None
    _stack: AsyncExitStack
    _starting: asyncio.Lock

    def __init__(  # noqa: PLR0913 - each is a field that a manifest has
        self,
        name: str,
        *,
        model: Model | Mapping[str, Any] | None = None,
        instructions: str = "",
        description: str = "",
        tools: Sequence[ToolSource] = (),
        agents: Sequence[Mapping[str, Any]] = (),
        store: str | Mapping[str, Any] | None = None,
        retention: str | None = None,
        mock_responses: Sequence[Any] | None = None,
        **loop: Any,  # noqa: ANN401 - checked by the manifest's own rules
    ) -> None:
        functions = tuple(tool for tool in tools if callable(tool))
        servers = (ToolConfig(FUNCTIONS, functions=functions),) if functions else ()
        spec = {
            "description": description,
            "instructions": instructions,
            "model": model if model is None or isinstance(model, Mapping) else _IN_PROCESS,
            "tools": [tool for tool in tools if not callable(tool)],
            "agents": list(agents),
            "loop": {_camel(key): value for key, value in loop.items()},
            "sessions": _sessions(store, retention),
        }
        given = _Given(mock_responses, store if isinstance(store, str) else None)
        extras = Extras(None if isinstance(model, Mapping) else model, servers)
        self._prepare(partial(_alone, _configured(name, spec, given), extras))

    @classmethod
    def from_file(cls, file: str | Path, *, name: str | None = None) -> Self:
        """Make the agent that a manifest describes; with several in the file, the first or `name`.

        The others are served on free loopback ports while this one is in use. Raises
        `ConfigError`.
        """
        loaded = load_agents([Path(file)], LaptopOptions(os.environ))
        if name is not None and name not in loaded.names:
            known = ", ".join(loaded.names)
            raise ConfigError(f"{file}: there is no Agent called {name}; there is {known}")
        agent = cls.__new__(cls)
        agent._prepare(  # noqa: SLF001
            partial(_one_of, loaded, name or loaded.names[0])
        )
        return agent

    async def run(self, message: str, *, session_id: str | None = None) -> str:
        """Ask, and give the answer (at `max_steps`, the text of loop.md §2).

        Raises `RunError`, also (`handed_over`) when this agent is closed meanwhile and its store
        keeps the run for another one; `StoreError` while the store cannot be used.
        """
        records: list[Record] = []
        async with aclosing(self.stream(message, session_id=session_id)) as items:
            async for item in items:
                collect(records, item)
        return _answer(records)

    async def stream(self, message: str, *, session_id: str | None = None) -> AsyncGenerator[Item]:
        """Ask, and give every event and notice of the run as it happens, up to the last one.

        The last one is the run's terminal event, or the notice `handed_over`: see `run`. Raises
        `StoreError`.
        """
        pod = await self.start()
        entry = await pod.runs.start(RunRequest((Message("user", message),), session_id=session_id))
        async with aclosing(pod.runs.subscribe(entry.run_id)) as batches:
            async for batch in batches:
                for item in batch:
                    yield item

    async def start(self) -> HostedAgent:
        """Connect to tools and agents, once; other methods do it by themselves."""
        async with self._starting:
            if self._pod is None:
                pod = await self._stack.enter_async_context(self._opening())
                await pod.tried()
                self._pod = pod
            return self._pod

    async def aclose(self) -> None:
        """End everything that belongs to the agent."""
        async with self._starting:
            self._pod = None
            await self._stack.aclose()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    def _prepare(self, opening: Callable[[], AbstractAsyncContextManager[HostedAgent]]) -> None:
        self.memory = Memory(self)
        self._opening = opening
        self._pod = None
        self._stack = AsyncExitStack()
        self._starting = asyncio.Lock()


@dataclass(frozen=True, slots=True)
class _Given:
    """Arguments that a manifest takes from elsewhere: from the environment, and from a Secret."""

    mock_responses: Sequence[Any] | None
    store_url: str | None


def _sessions(store: str | Mapping[str, Any] | None, retention: str | None) -> dict[str, Any]:
    redis = {"urlFrom": {"secretKeyRef": _STORE_REF}} if isinstance(store, str) else store
    sessions = {"redis": redis, "retention": retention}
    return {name: value for name, value in sessions.items() if value is not None}


def _configured(name: str, spec: Mapping[str, Any], given: _Given) -> AgentConfig:
    """Check the arguments by the manifest's rules; complaints name its fields."""
    place = SourceLocation(f"Agent({name!r})")
    content = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name},
        "spec": {key: value for key, value in spec.items() if value},
    }
    environ = dict(os.environ)
    if given.mock_responses is not None:
        environ[VARIABLE] = orjson.dumps(list(given.mock_responses)).decode()
    if given.store_url is not None:
        _check_store(given.store_url, place)
        environ[Reference("Secret", **_STORE_REF).variable] = given.store_url
    config = configured(content, place, LaptopOptions(environ))
    check_scripts([config])
    return config


def _check_store(url: str, place: SourceLocation) -> None:
    """Refuse what is no URL of a store: here nobody comes to put it right in a Secret."""
    from diptych.adapters.redis.settings import read_url  # noqa: PLC0415 - heavy, and only needed here

    try:
        read_url(url)
    except ConfigError as error:
        raise ConfigError(f"{place.at(_STORE)}: {error}") from None


@asynccontextmanager
async def _alone(config: AgentConfig, extras: Extras) -> AsyncGenerator[HostedAgent]:
    async with open_session() as http, HostedAgent(config, http, extras=extras) as pod:
        yield pod


@asynccontextmanager
async def _one_of(loaded: LoadedAgents, name: str) -> AsyncGenerator[HostedAgent]:
    sockets = Sockets(ListenAddress(port=0), len(loaded.names))
    async with served(loaded.resolve(sockets.urls), sockets) as sites:
        await asyncio.gather(*(site.pod.tried() for site in sites))
        yield next(site.pod for site in sites if site.pod.name == name)


def _answer(records: Sequence[Record]) -> str:
    end = records[-1]
    match end.event_type:
        case "failed":
            raise RunError(str(end.metadata["code"]), str(end.content))
        case "aborted":
            raise RunError("aborted", str(end.content))
        case event_type if event_type in TERMINAL:
            return whole_answer(records) or ""
        case _:
            raise RunError(HANDED_OVER, "this agent was closed; the run goes on at another one")


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)
