"""The Python API: an agent as an object.

    agent = Agent(name="helper", model={"name": "m", "endpoint": "http://…/v1"}, tools=[add])
    print(await agent.run("What is 2 + 2?"))

It is the same agent that a manifest describes, checked by the same rules, without an HTTP server.

Not here: the loop (`loop`), how an agent is built (`serve.hosted_agent`).
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

import orjson

from diptych.adapters.openai_chat.completions import open_session
from diptych.config.loader import (
    LoadedAgents,
    LocalOptions,
    config_from_content,
    load_agents,
)
from diptych.config.manifest import API_VERSION, KIND
from diptych.config.secret_sources import Reference
from diptych.config.settings import AgentConfig, ToolConfig
from diptych.config.source_location import FieldPath, SourceLocation
from diptych.config.variables import MOCK
from diptych.errors import ConfigError, DiptychError
from diptych.http.memory import session_events
from diptych.loop.codec import TERMINAL, Record
from diptych.loop.messages import Message
from diptych.ports import Item, Model
from diptych.runtime.answers import collect, whole_answer
from diptych.runtime.request import RunRequest
from diptych.runtime.subscription import HANDED_OVER
from diptych.serve.hosted_agent import HostedAgent, InProcessBackends, check_mock_scripts
from diptych.serve.server import ListenAddress, Sockets, serve_agents

FUNCTIONS = "functions"  # the name of the tool server of plain Python functions
ToolSource: TypeAlias = Callable[..., Any] | Mapping[str, Any]

_IN_PROCESS = {"name": "in-process", "endpoint": "http://in-process.invalid"}
"""The model of the manifest in place of a model object, which has no endpoint; never asked."""
_STORE_PATH: FieldPath = ("spec", "sessions", "redis")
_STORE_REF = {"name": "argument-of-agent", "key": "store"}
"""The reference of the manifest in place of a URL that is given as an argument."""


class RunError(DiptychError):
    """A run gave no answer here; `code` is that of its failure, `aborted`, or `handed_over`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class Memory:
    """The recorded events of an agent."""

    def __init__(self, agent: "Agent") -> None:
        self._agent = agent

    async def get_session_events(self, session_id: str) -> list[Record]:
        """Give a session's events, as `/memory/events` does; none for an unknown session."""
        hosted = await self._agent.start()
        return await session_events(hosted.stores.log, session_id)


class Agent:
    """An agent in this process. Its first use starts it; `aclose` or `async with` ends it.

    `model` is either the `spec.model` of a manifest, or any object that fulfils
    `diptych.ports.Model`. `mock_responses` (or DEBUG_MOCK_RESPONSES) replaces it by a script.
    `tools` holds plain typed functions, or entries of `spec.tools`; `agents` holds entries of
    `spec.agents`. Other arguments are fields of `spec.loop`, in snake_case.

    Runs and sessions are in memory and end with this object, unless `store` names a Redis: by its
    URL (`redis://…`, `rediss://…`, `redis+sentinel://…`), or by a reference to it, as in
    `spec.sessions.redis`. A Redis stores a session for `retention` (default "24h") after its last
    run. All agents with the same name on the same Redis share their runs, and finish those that
    another one hands over: in this process, in others, and as pods in the namespace `default`.

    Raises `ConfigError` when the arguments make no valid agent.
    """

    memory: Memory
    _open: Callable[[], AbstractAsyncContextManager[HostedAgent]]
    _hosted: HostedAgent | None
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
        location = SourceLocation(f"Agent({name!r})")
        if isinstance(store, str):
            _check_store_url(store, location)
        config = _config(name, spec, location, _environ(mock_responses, store))
        in_process = InProcessBackends(None if isinstance(model, Mapping) else model, servers)
        self._prepare(partial(_host_one, config, in_process))

    @classmethod
    def from_file(cls, file: str | Path, *, name: str | None = None) -> Self:
        """Make the agent that a file describes: its first one, or the one called `name`.

        The file's agents are all served, on free loopback ports, while this one is in use. Raises
        `ConfigError`.
        """
        loaded = load_agents([Path(file)], LocalOptions(os.environ))
        if name is not None and name not in loaded.names:
            known = ", ".join(loaded.names)
            raise ConfigError(f"{file}: there is no Agent called {name}; there is {known}")
        agent = cls.__new__(cls)
        agent._prepare(  # noqa: SLF001
            partial(_host_file, loaded, name or loaded.names[0])
        )
        return agent

    async def run(self, message: str, *, session_id: str | None = None) -> str:
        """Start a run with a message, and give its answer (at `max_steps`, the text of loop.md §2).

        Raises `RunError`, also with the code `handed_over` when this agent is closed meanwhile and
        its store has the run for another one; `StoreError` while the store cannot be used.
        """
        records: list[Record] = []
        async with aclosing(self.stream(message, session_id=session_id)) as items:
            async for item in items:
                collect(records, item)
        return _answer(records)

    async def stream(self, message: str, *, session_id: str | None = None) -> AsyncGenerator[Item]:
        """Start a run with a message, and give each of its events and notices as it happens.

        The last one is the run's terminal event, or the notice `handed_over` (see `run`). Raises
        `StoreError`.
        """
        runs = (await self.start()).runs
        entry = await runs.start(RunRequest((Message("user", message),), session_id=session_id))
        async with aclosing(runs.subscribe(entry.run_id)) as batches:
            async for batch in batches:
                for item in batch:
                    yield item

    async def start(self) -> HostedAgent:
        """Connect to tools and agents, once; the other methods call this."""
        async with self._starting:
            if self._hosted is None:
                hosted = await self._stack.enter_async_context(self._open())
                await hosted.wait_for_first_connect()
                self._hosted = hosted
            return self._hosted

    async def aclose(self) -> None:
        """End the agent, its runs and connections."""
        async with self._starting:
            self._hosted = None
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

    def _prepare(self, open_: Callable[[], AbstractAsyncContextManager[HostedAgent]]) -> None:
        self.memory = Memory(self)
        self._open = open_
        self._hosted = None
        self._stack = AsyncExitStack()
        self._starting = asyncio.Lock()


def _sessions(store: str | Mapping[str, Any] | None, retention: str | None) -> dict[str, Any]:
    redis = {"urlFrom": {"secretKeyRef": _STORE_REF}} if isinstance(store, str) else store
    sessions = {"redis": redis, "retention": retention}
    return {name: value for name, value in sessions.items() if value is not None}


def _environ(
    mock_responses: Sequence[Any] | None, store: str | Mapping[str, Any] | None
) -> dict[str, str]:
    """Give the environment, with the arguments that a manifest takes from there or by reference."""
    environ = dict(os.environ)
    if mock_responses is not None:
        environ[MOCK] = orjson.dumps(list(mock_responses)).decode()
    if isinstance(store, str):
        environ[Reference("Secret", **_STORE_REF).variable] = store
    return environ


def _config(
    name: str, spec: Mapping[str, Any], location: SourceLocation, environ: Mapping[str, str]
) -> AgentConfig:
    """Check the arguments by the manifest's rules; error lines name its fields."""
    content = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name},
        "spec": {key: value for key, value in spec.items() if value},
    }
    config = config_from_content(content, location, LocalOptions(environ))
    check_mock_scripts([config])
    return config


def _check_store_url(url: str, location: SourceLocation) -> None:
    """Refuse a wrong URL now: nobody corrects it later, as in a Secret."""
    from diptych.adapters.redis.settings import read_url  # noqa: PLC0415 - heavy, and only needed here

    try:
        read_url(url)
    except ConfigError as error:
        raise ConfigError(f"{location.describe(_STORE_PATH)}: {error}") from None


@asynccontextmanager
async def _host_one(
    config: AgentConfig, in_process: InProcessBackends
) -> AsyncGenerator[HostedAgent]:
    async with open_session() as http, HostedAgent(config, http, in_process=in_process) as hosted:
        yield hosted


@asynccontextmanager
async def _host_file(loaded: LoadedAgents, name: str) -> AsyncGenerator[HostedAgent]:
    sockets = Sockets(ListenAddress(), len(loaded.names))
    async with serve_agents(loaded.resolve(sockets.urls), sockets) as agents:
        await asyncio.gather(*(served.agent.wait_for_first_connect() for served in agents))
        yield next(served.agent for served in agents if served.agent.name == name)


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
