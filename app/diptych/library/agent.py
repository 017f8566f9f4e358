"""The Python API: an agent as an object.

    agent = Agent("helper", model="openai:gpt-5-mini", tools=[add])
    print(agent.run_sync("What is 2 + 2?"))

It is the same agent that a manifest describes, checked by the same rules, without an HTTP server.
"""

import asyncio
import logging
import os
import weakref
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self, TypedDict, TypeVar, Unpack, overload

from pydantic import BaseModel

from diptych.a2a.local_agent import LocalAgent
from diptych.core.codec import TERMINAL, Record
from diptych.core.errors import ConfigError
from diptych.core.run_settings import HookPoint
from diptych.http.session_memory import session_events
from diptych.library.arguments import (
    STORE_PATH,
    agents_spec,
    checked_config,
    data_argument,
    environment,
    loop_spec,
    sessions_spec,
)
from diptych.library.control import AgentControl, frozen_record, run_request
from diptych.library.events import AnswerEvent, Event, TextEvent, TextResetEvent
from diptych.library.following import (
    Decision,
    Following,
    OnApproval,
    check_on_approval,
    decision_request,
)
from diptych.library.hooks import HookFunctions, function_hooks
from diptych.library.lifetime import Lifetime, Opening, let_all_go, refuse_in_loop, run_sync
from diptych.library.models import ModelSource, choose_model
from diptych.library.results import (
    OutputForm,
    RunError,
    RunResult,
    check_end,
    read_result,
    waiting_error,
)
from diptych.library.tools import ToolSource, sort_tools
from diptych.manifest.documents import SourceLocation
from diptych.manifest.loader import LocalOptions, load_agents
from diptych.manifest.settings import AgentConfig
from diptych.runs.answers import TURN
from diptych.runs.request import RunRequest
from diptych.runs.service import RunService
from diptych.serve.adapters import SystemClock, check_store_url
from diptych.serve.hosted_agent import HostedAgent, InProcessBackends
from diptych.serve.local_agents import host_file, host_one
from diptych.stores.memory.store import MemoryStore

# Without a handler, Python would print the audit of an unconfigured program to stderr.
logging.getLogger("diptych.audit").addHandler(logging.NullHandler())

OutputModel = TypeVar("OutputModel", bound=BaseModel)
Output = TypeVar("Output")


class RunOptions(TypedDict, total=False):
    """The options of `run` and `run_sync` but for `output`, for their overloads."""

    session_id: str | None
    max_steps: int | None
    max_retries: int | None
    on_approval: OnApproval | None


class Memory:
    """The recorded events of an agent."""

    def __init__(self, agent: "Agent") -> None:
        self._agent = weakref.ref(agent)  # an agent that is dropped closes at once: without a cycle
        self._name = agent.name

    async def get_session_events(self, session_id: str) -> list[Record]:
        """Return a session's events, as `/memory/events` does; none for an unknown session.

        They cannot be changed.
        """
        agent = self._agent()
        if agent is None:
            raise ConfigError(f"Agent({self._name!r}) is gone: keep the object to read its memory")
        hosted = await agent.start()
        return [frozen_record(r) for r in await session_events(hosted.stores.log, session_id)]


class Agent(AgentControl):
    """An agent in this process.

    It opens at its first use and closes with its event loop; `async with` and `aclose` close it
    earlier. In the next loop it opens again. `run_sync` has a loop of its own, which lasts as long
    as the process; there, `with` and `close` close the agent.

    `model` (or `model_api`) is `"provider:name"`, a mapping as in `spec.model`, a `ModelAPI`, an
    object with `complete` and `stream` (`Model`), or one with `generate(prompt, **parameters)`.
    `mock_responses` (or DEBUG_MOCK_RESPONSES) replaces it by a script. `action_format` is that of
    `spec.model`.

    `tools` holds functions, plain or marked by `tool`, URLs of MCP servers, their commands as
    lists, or entries of `spec.tools`. `agents` holds other `Agent` objects, which run in this
    process and close with their loop, URLs of A2A agents, or entries of `spec.agents`. `policy`
    holds entries of `spec.policy`. `queue_mode` and `when_busy` are those of `spec.sessions`. Other
    arguments are fields of `spec.loop`, in snake_case.

    `before_call`, `after_call`, `after_step` and `validate_answer` are hooks. `context` returns
    texts for one request to the model, `transform_context` the messages to send in place of those
    it is given; neither is recorded. All are functions, sync or async, one or several
    (docs/hooks.md). Each has `hook_seconds` (default 2).

    Runs and sessions are in memory and end with this object, unless `store` names a folder, as
    `sqlite:DIR`, or a Redis: by its URL (`redis://…`, `rediss://…`, `redis+sentinel://…`), or by a
    reference to it, as in `spec.sessions.redis`. A folder has a file for each agent, which one
    object at a time may have open. A Redis stores a session for `retention` (default "24h") after
    its last run. All agents with the same name on the same Redis share their runs, and finish those
    that another one hands over: in this process, in others, and as pods in the namespace `default`.

    Raises `ConfigError` when the arguments make no valid agent.
    """

    name: str
    description: str
    memory: Memory
    _opening: Opening
    _lifetimes: dict[asyncio.AbstractEventLoop, Lifetime]

    def __init__(  # noqa: PLR0913 - each is a field that a manifest has
        self,
        name: str,
        *,
        model: ModelSource | None = None,
        model_api: ModelSource | None = None,
        instructions: str = "",
        description: str = "",
        tools: Sequence[ToolSource] = (),
        agents: "Sequence[Agent | str | Mapping[str, Any]]" = (),
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
        transform_context: HookFunctions | None = None,
        hook_seconds: float | None = None,
        **loop: Any,  # noqa: ANN401 - checked by the manifest's own rules
    ) -> None:
        store, folder = data_argument(name, store)
        if model is not None and model_api is not None:
            raise ConfigError(f"Agent({name!r}): model and model_api are the same; give one")
        chosen = choose_model(name, model if model_api is None else model_api, action_format)
        sources = sort_tools(name, tools)
        if isinstance(agents, str | Mapping) or not isinstance(agents, Iterable):
            raise ConfigError(f"Agent({name!r}): agents: must be a list; write agents=[…]")
        local = [each for each in agents if isinstance(each, Agent)]
        others = [each for each in agents if not isinstance(each, Agent)]
        spec = {
            "description": description,
            "instructions": instructions,
            "model": chosen.spec,
            "tools": sources.servers,
            "agents": agents_spec(name, others, [each.name for each in local]),
            "policy": [*policy, *sources.rules],
            "loop": loop_spec(name, loop, Agent.__init__),
            "sessions": sessions_spec(store, retention, queue_mode, when_busy),
        }
        location = SourceLocation(f"Agent({name!r})")
        if isinstance(store, str):
            check_store_url(store, location.describe(STORE_PATH))
        environ = environment(mock_responses, store, chosen.environ)
        config = checked_config(name, spec, location, environ)
        config = replace(config, data=folder)
        at: dict[HookPoint, HookFunctions | None] = {
            "beforeCall": before_call,
            "afterCall": after_call,
            "afterStep": after_step,
            "validateAnswer": validate_answer,
        }
        in_process = InProcessBackends(
            chosen.model,
            sources.function_server(),
            tuple(LocalAgent(each.name, each.description, each._runs) for each in local),  # noqa: SLF001
            function_hooks(at, context, transform_context, hook_seconds),
            tells_turns=True,
        )
        self._prepare(name, description, partial(_host, config, in_process, []))

    @classmethod
    def from_file(cls, file: str | Path, *, name: str | None = None) -> Self:
        """Make the agent that a file describes: its first one, or the one called `name`.

        The file's agents are all served, on free loopback ports, while this one is open. Raises
        `ConfigError`.
        """
        loaded = load_agents([Path(file)], LocalOptions(os.environ, asked=name))
        if name is not None and name not in loaded.names:
            known = ", ".join(loaded.names)
            raise ConfigError(f"{file}: there is no Agent called {name}; there is {known}")
        agent = cls.__new__(cls)
        manifest = loaded.manifests[loaded.names.index(name) if name else 0][0]
        found, description = manifest.metadata.name, manifest.spec.description
        agent._prepare(found, description, partial(host_file, loaded, found))  # noqa: SLF001
        return agent

    @overload
    async def run(self, message: str, **options: Unpack[RunOptions]) -> RunResult[str]: ...

    @overload
    async def run(
        self, message: str, *, output: type[OutputModel], **options: Unpack[RunOptions]
    ) -> RunResult[OutputModel]: ...

    @overload
    async def run(
        self, message: str, *, output: Mapping[str, Any], **options: Unpack[RunOptions]
    ) -> RunResult[Any]: ...

    async def run(  # noqa: PLR0913 - the options of a run
        self,
        message: str,
        *,
        session_id: str | None = None,
        output: OutputForm | None = None,
        max_steps: int | None = None,
        max_retries: int | None = None,
        on_approval: OnApproval | None = None,
    ) -> RunResult[Any]:
        """Start a run with a message, and return its result at its end.

        With `output` the answer is JSON: an object of a pydantic model, or the value for a JSON
        schema. `max_steps` (at most 100) and `max_retries` replace the agent's own. `on_approval`
        is asked about calls that wait for approval; without a decision the run returns with its
        `approvals`, and `decide` goes on with it.

        Cancelling this call does not stop the run, which goes on until the agent closes. To be able
        to stop it, start it by `begin`, which returns its id: `cancel(run_id)` aborts it, and
        `decide(run_id, {})` waits for its result.

        Raises `RunError`, with the code `invalid_output` if the model gave no such answer,
        `max_steps` if it came to none, and `handed_over` when this agent is closed meanwhile and
        its store has the run for another one; `InvalidRequest` for a schema or number that cannot
        be used; `StoreError` while the store cannot be used.
        """
        check_on_approval(on_approval)
        request = run_request(message, session_id, output, max_steps, max_retries)
        return await self._run(request, output, on_approval)

    @overload
    def run_sync(self, message: str, **options: Unpack[RunOptions]) -> RunResult[str]: ...

    @overload
    def run_sync(
        self, message: str, *, output: type[OutputModel], **options: Unpack[RunOptions]
    ) -> RunResult[OutputModel]: ...

    @overload
    def run_sync(
        self, message: str, *, output: Mapping[str, Any], **options: Unpack[RunOptions]
    ) -> RunResult[Any]: ...

    def run_sync(  # noqa: PLR0913 - the options of a run
        self,
        message: str,
        *,
        session_id: str | None = None,
        output: OutputForm | None = None,
        max_steps: int | None = None,
        max_retries: int | None = None,
        on_approval: OnApproval | None = None,
    ) -> RunResult[Any]:
        """Do what `run` does in a program that is not async, from any thread.

        Ctrl-C ends the wait, not the run, which goes on until `close` or the end of the process.
        Raises `RuntimeError` in a running event loop.
        """
        refuse_in_loop("run")
        check_on_approval(on_approval)
        request = run_request(message, session_id, output, max_steps, max_retries)
        return run_sync(lambda: self._run(request, output, on_approval))

    async def stream(  # noqa: PLR0913 - the options of a run
        self,
        message: str,
        *,
        session_id: str | None = None,
        output: OutputForm | None = None,
        max_steps: int | None = None,
        max_retries: int | None = None,
        on_approval: OnApproval | None = None,
    ) -> AsyncGenerator[Event]:
        """Start a run with a message (as `run`), and yield its events live, up to `RunEndEvent`.

        Calls that wait for approval wait on, until somebody decides. Leaving the stream early does
        not stop the run: `cancel` does, with the `run_id` of its `RunStartEvent`. Raises as `run`,
        but not for the run's own failure.
        """
        check_on_approval(on_approval)
        request = run_request(message, session_id, output, max_steps, max_retries)
        run_id = await self._begin(request)
        following = Following(await self.start(), run_id, on_approval, stops_waiting=False)
        async with aclosing(following.events()) as events:
            async for event in events:
                yield event

    async def stream_text(
        self,
        message: str,
        *,
        session_id: str | None = None,
        max_steps: int | None = None,
        max_retries: int | None = None,
        on_approval: OnApproval | None = None,
    ) -> AsyncGenerator[str]:
        """Start a run with a message (as `run`), and yield its answer piece by piece.

        Raises as `run`; `RunError` with the code `input_required` where calls wait and nobody
        decides, and `answer_reset` where text that was yielded became void.
        """
        check_on_approval(on_approval)
        request = run_request(message, session_id, None, max_steps, max_retries)
        run_id = await self._begin(request)
        following = Following(await self.start(), run_id, on_approval)
        sent, is_next = 0, False
        async with aclosing(following.events()) as events:
            async for event in events:
                match event:
                    case TextEvent(text) | AnswerEvent(text):
                        piece = text[sent:] if isinstance(event, AnswerEvent) else text
                        if piece:
                            yield TURN + piece if is_next else piece
                            is_next = False
                        sent += len(piece)
                        if isinstance(event, AnswerEvent):
                            sent, is_next = 0, True
                    case TextResetEvent() if sent:
                        raise RunError("answer_reset", "the answer began anew", run_id)
        if following.approvals:
            raise waiting_error(following.approvals, run_id)
        check_end(following.records)
        if (end := following.records[-1]).event_type == "max_steps":
            yield f"{TURN if is_next else ''}{end.content}"

    @overload
    async def decide(
        self,
        run: RunResult[Output],
        decisions: Mapping[str, Decision],
        *,
        on_approval: OnApproval | None = None,
    ) -> RunResult[Output]: ...

    @overload
    async def decide(
        self,
        run: str,
        decisions: Mapping[str, Decision],
        *,
        on_approval: OnApproval | None = None,
    ) -> RunResult[str]: ...

    async def decide(
        self,
        run: RunResult[Any] | str,
        decisions: Mapping[str, Decision],
        *,
        on_approval: OnApproval | None = None,
    ) -> RunResult[Any]:
        """Decide on calls that wait, by their ids, and return the result of the run then.

        `run` is its result so far, or its id. Another agent object of the same name and `store` may
        decide, also in another process. Raises as `run`, and `ApprovalNotFound`, `AlreadyDecided`,
        `RunEnded`, `RunNotFound`.
        """
        check_on_approval(on_approval)
        run_id, form = (run, None) if isinstance(run, str) else (run.run_id, run.form)
        requests = {call: decision_request(each) for call, each in decisions.items()}
        hosted = await self.start()
        for call_id, request in requests.items():
            await hosted.runs.answer(run_id, call_id, request)
        return await self._result(run_id, form, on_approval)

    @overload
    def decide_sync(
        self,
        run: RunResult[Output],
        decisions: Mapping[str, Decision],
        *,
        on_approval: OnApproval | None = None,
    ) -> RunResult[Output]: ...

    @overload
    def decide_sync(
        self,
        run: str,
        decisions: Mapping[str, Decision],
        *,
        on_approval: OnApproval | None = None,
    ) -> RunResult[str]: ...

    def decide_sync(
        self,
        run: RunResult[Any] | str,
        decisions: Mapping[str, Decision],
        *,
        on_approval: OnApproval | None = None,
    ) -> RunResult[Any]:
        """Do what `decide` does for a run of `run_sync`."""
        refuse_in_loop("decide")
        return run_sync(lambda: self.decide(run, decisions, on_approval=on_approval))

    async def resume(
        self,
        run_id: str,
        *,
        max_steps: int | None = None,
        on_approval: OnApproval | None = None,
    ) -> RunResult[str]:
        """Go on with a run that failed or was aborted, as a new run of its session.

        A run is resumed once: asked again, this returns the result of the same new run. Raises as
        `run`, and `NotResumable`, `RunNotFound`.
        """
        check_on_approval(on_approval)
        hosted = await self.start()
        entry = await hosted.runs.resume(run_id, max_steps=max_steps)
        return await self._result(entry.run_id, None, on_approval)

    async def start(self) -> HostedAgent:
        """Connect to tools and agents, once in each event loop; the other methods call this."""
        loop = asyncio.get_running_loop()
        lifetime = self._lifetimes.get(loop)
        if lifetime is None or lifetime.is_over:
            for former in [each for each in self._lifetimes if each.is_closed()]:
                del self._lifetimes[former]
            lifetime = self._lifetimes[loop] = Lifetime(self.name, self._opening)
        return await lifetime.hosted()

    async def aclose(self) -> None:
        """End the agent in this event loop, its runs and connections."""
        if lifetime := self._lifetimes.pop(asyncio.get_running_loop(), None):
            await lifetime.aclose()

    def close(self) -> None:
        """End the agent of `run_sync`, as `aclose` in a program that is not async; so does `with`.

        Raises `RuntimeError` in a running event loop.
        """
        refuse_in_loop("aclose", called="close")
        if self._lifetimes:
            run_sync(self.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _runs(self) -> RunService:
        return (await self.start()).runs

    async def _run(
        self, request: RunRequest, form: OutputForm | None, on_approval: OnApproval | None
    ) -> RunResult[Any]:
        return await self._result(await self._begin(request), form, on_approval)

    async def _result(
        self, run_id: str, form: OutputForm | None, on_approval: OnApproval | None
    ) -> RunResult[Any]:
        """Follow a run to its end, or to where it waits and nobody decides."""
        following = Following(await self.start(), run_id, on_approval)
        async with aclosing(following.events()) as events:
            seen = [event async for event in events]
        return read_result(following.records, seen, form, following.approvals)

    def _prepare(self, name: str, description: str, opening: Opening) -> None:
        self.name, self.description = name, description
        self.memory = Memory(self)
        self._opening = opening
        self._lifetimes = {}
        weakref.finalize(self, let_all_go, self._lifetimes).atexit = False


_LOST = (
    "this run was in memory of another event loop or process: use run_sync and decide_sync, or one "
    "asyncio.run, or give the agent a store="
)


@asynccontextmanager
async def _host(
    config: AgentConfig, in_process: InProcessBackends, kept: list[MemoryStore]
) -> AsyncGenerator[HostedAgent]:
    """Run an agent while the block lasts; its sessions in memory are kept for the next time."""
    memory = kept.pop() if kept else MemoryStore(SystemClock().token()[:8], lost=_LOST)
    try:
        async with host_one(config, in_process, memory) as hosted:
            yield hosted
    finally:
        entries = await memory.entries()
        if all(entry.status in TERMINAL for entry in entries):  # else a session has no owner
            kept.append(memory)
