"""The Python API: an agent as an object.

    agent = Agent(name="helper", model={"name": "m", "endpoint": "http://…/v1"}, tools=[add])
    print(await agent.run("What is 2 + 2?"))

It is the same agent that a manifest describes, checked by the same rules, without an HTTP server.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias, overload

from diptych.core.codec import Record
from diptych.core.errors import ConfigError
from diptych.core.run_settings import HookPoint
from diptych.http.session_memory import session_events
from diptych.library.arguments import (
    STORE_PATH,
    checked_config,
    data_argument,
    environment,
    loop_spec,
    model_spec,
    sessions_spec,
)
from diptych.library.control import AgentControl, run_request
from diptych.library.hooks import (
    CallInfo,
    Deny,
    HookFunctions,
    ResultInfo,
    RunInfo,
    StepInfo,
    function_hooks,
)
from diptych.library.run_result import (
    Output,
    OutputForm,
    RunError,
    read_answer,
    read_output,
)
from diptych.manifest.documents import SourceLocation
from diptych.manifest.loader import (
    LocalOptions,
    load_agents,
)
from diptych.manifest.settings import ToolServerConfig
from diptych.ports import Item, Model
from diptych.runs.answers import collect
from diptych.serve.adapters import check_store_url
from diptych.serve.hosted_agent import HostedAgent, InProcessBackends
from diptych.serve.local_agents import host_file, host_one

__all__ = ["Agent", "CallInfo", "Deny", "Memory", "ResultInfo", "RunError", "RunInfo", "StepInfo"]

FUNCTIONS = "functions"  # the name of the tool server of plain Python functions
ToolSource: TypeAlias = Callable[..., Any] | Mapping[str, Any]


class Memory:
    """The recorded events of an agent."""

    def __init__(self, agent: "Agent") -> None:
        self._agent = agent

    async def get_session_events(self, session_id: str) -> list[Record]:
        """Return a session's events, as `/memory/events` does; none for an unknown session."""
        hosted = await self._agent.start()
        return await session_events(hosted.stores.log, session_id)


class Agent(AgentControl):
    """An agent in this process. Its first use starts it; `aclose` or `async with` ends it.

    `model` is either the `spec.model` of a manifest, or any object that fulfils
    `diptych.ports.Model`. `mock_responses` (or DEBUG_MOCK_RESPONSES) replaces it by a script.
    `tools` holds plain typed functions, or entries of `spec.tools`; `agents` and `policy` hold
    entries of theirs. `action_format` is that of `spec.model`, for a model object. `queue_mode` and
    `when_busy` are those of `spec.sessions`. Other arguments are fields of `spec.loop`, in
    snake_case.

    `before_call`, `after_call`, `after_step` and `validate_answer` are hooks, and `context` gives
    the model what is not recorded: functions, sync or async, one or several (docs/hooks.md). Each
    has `hook_seconds` (default 2).

    Runs and sessions are in memory and end with this object, unless `store` names a folder, as
    `sqlite:DIR`, or a Redis: by its URL (`redis://…`, `rediss://…`, `redis+sentinel://…`), or by a
    reference to it, as in `spec.sessions.redis`. A folder has a file for each agent, which one
    object at a time may have open. A Redis stores a session for `retention` (default "24h") after
    its last run. All agents with the same name on the same Redis share their runs, and finish those
    that another one hands over: in this process, in others, and as pods in the namespace `default`.

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
        policy: Sequence[Mapping[str, Any]] = (),
        store: str | Mapping[str, Any] | None = None,
        retention: str | None = None,
        action_format: str | None = None,
        mock_responses: Sequence[Any] | None = None,
        queue_mode: str | None = None,
        when_busy: str | None = None,
        before_call: HookFunctions | None = None,
        after_call: HookFunctions | None = None,
        after_step: HookFunctions | None = None,
        validate_answer: HookFunctions | None = None,
        context: HookFunctions | None = None,
        hook_seconds: float | None = None,
        **loop: Any,  # noqa: ANN401 - checked by the manifest's own rules
    ) -> None:
        store, folder = data_argument(name, store)
        functions = tuple(tool for tool in tools if callable(tool))
        servers = (ToolServerConfig(FUNCTIONS, functions=functions),) if functions else ()
        spec = {
            "description": description,
            "instructions": instructions,
            "model": model_spec(model, action_format),
            "tools": [tool for tool in tools if not callable(tool)],
            "agents": list(agents),
            "policy": list(policy),
            "loop": loop_spec(name, loop, Agent.__init__),
            "sessions": sessions_spec(store, retention, queue_mode, when_busy),
        }
        location = SourceLocation(f"Agent({name!r})")
        if isinstance(store, str):
            check_store_url(store, location.describe(STORE_PATH))
        config = checked_config(name, spec, location, environment(mock_responses, store))
        config = replace(config, data=folder)
        at: dict[HookPoint, HookFunctions | None] = {
            "beforeCall": before_call,
            "afterCall": after_call,
            "afterStep": after_step,
            "validateAnswer": validate_answer,
        }
        hooks = function_hooks(at, context, hook_seconds)
        model_object = None if isinstance(model, Mapping) else model
        in_process = InProcessBackends(model_object, servers, hooks)
        self._prepare(partial(host_one, config, in_process))

    @classmethod
    def from_file(cls, file: str | Path, *, name: str | None = None) -> Self:
        """Make the agent that a file describes: its first one, or the one called `name`.

        The file's agents are all served, on free loopback ports, while this one is in use. Raises
        `ConfigError`.
        """
        loaded = load_agents([Path(file)], LocalOptions(os.environ, asked=name))
        if name is not None and name not in loaded.names:
            known = ", ".join(loaded.names)
            raise ConfigError(f"{file}: there is no Agent called {name}; there is {known}")
        agent = cls.__new__(cls)
        agent._prepare(  # noqa: SLF001
            partial(host_file, loaded, name or loaded.names[0])
        )
        return agent

    @overload
    async def run(
        self, message: str, *, session_id: str | None = None, max_steps: int | None = None
    ) -> str: ...

    @overload
    async def run(
        self,
        message: str,
        *,
        session_id: str | None = None,
        output: type[Output],
        max_steps: int | None = None,
    ) -> Output: ...

    @overload
    async def run(
        self,
        message: str,
        *,
        session_id: str | None = None,
        output: Mapping[str, Any],
        max_steps: int | None = None,
    ) -> Any: ...  # noqa: ANN401 - what the schema says

    async def run(
        self,
        message: str,
        *,
        session_id: str | None = None,
        output: OutputForm | None = None,
        max_steps: int | None = None,
    ) -> Any:
        """Start a run with a message; return its answer (at `max_steps`, the text of loop.md §2).

        `max_steps` bounds its steps, at most at the agent's own number. With `output` the answer is
        JSON: an object of a pydantic model, or the value for a JSON schema. Raises `RunError`,
        with the code `invalid_output` if the model gave no such answer, `max_steps` if it came to
        none, and `handed_over` when this agent is closed meanwhile and its store has the run for
        another one; `InvalidRequest` for a schema that cannot be used, and for more steps than the
        agent's; `StoreError` while the store cannot be used.
        """
        records: list[Record] = []
        stream = self.stream(message, session_id=session_id, output=output, max_steps=max_steps)
        async with aclosing(stream) as items:
            async for item in items:
                collect(records, item)
        return read_answer(records) if output is None else read_output(output, records)

    async def stream(
        self,
        message: str,
        *,
        session_id: str | None = None,
        output: OutputForm | None = None,
        max_steps: int | None = None,
    ) -> AsyncGenerator[Item]:
        """Start a run with a message (`output` as in `run`), and yield its events and notices live.

        The last one is its terminal event, or `handed_over`. Raises `InvalidRequest`, `StoreError`.
        """
        request = run_request(message, session_id, output, max_steps)
        hosted = await self.start()
        runs = hosted.runs
        entry = await runs.start(hosted.in_current_trace(request))
        async with aclosing(runs.subscribe(entry.run_id)) as batches:
            async for batch in batches:
                for item in batch:
                    yield item

    async def start(self) -> HostedAgent:
        """Connect to tools and agents, once; the other methods call this."""
        async with self._starting:
            if self._hosted is None:
                hosted = await self._stack.enter_async_context(self._open())
                await hosted.wait_until_tried()
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
