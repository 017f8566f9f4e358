"""The effects of one run: requests to the model, calls of tools and agents, each in its own task.

A task that is not cancelled ends with one item in the run's inbox.

Not here: one request to the model (`model_caller`), when to ask and what to call (`loop.reducer`),
what is recorded before and after (`runner`).
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from diptych.errors import CallError, LoopError
from diptych.loop import prompt
from diptych.loop.approval_events import ChildApproval
from diptych.loop.budget import Budget
from diptych.loop.catalog import Tool
from diptych.loop.commands import AskModel, Judge, MakeCall
from diptych.loop.events import CallKind, Event, Failed, Returned
from diptych.loop.messages import JSON, Call, CallOutput, ChildRun, Delegation, Result, ToolCall
from diptych.loop.rendering import without_native_calls
from diptych.loop.state import Run, conversation
from diptych.loop.text import RESULT_BYTES, bounded, well_formed
from diptych.policy.rules import Policy
from diptych.ports import Agents, ChildEvent, DelegationRequest, Model, Notice, Tools
from diptych.runtime.agent_budgets import AgentBudgets
from diptych.runtime.answer_stream import TextBatcher
from diptych.runtime.budget_meter import BudgetMeter
from diptych.runtime.call_notices import delegation_notice, target
from diptych.runtime.child_approvals import child_approval
from diptych.runtime.deadline import Deadline
from diptych.runtime.hook_caller import HookCaller
from diptych.runtime.hooks import Hooks
from diptych.runtime.model_caller import ModelCaller, ModelHabits
from diptych.runtime.step_gate import StepGate

CANCEL_SECONDS = 0.9  # for cancelled tasks to tell their servers: an abort takes effect in 1 s
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Backends:
    """What a run can reach: the model, the tools and the other agents.

    `habits` is what all runs have learned of the model. `policy` says which calls are made, `hooks`
    are asked about them. `gate` holds the runs that are taken step by step. Of a run, `budget`
    counts what it uses; of an agent, `budgets` gives each run that.
    """

    model: Model
    tools: Tools
    agents: Agents
    habits: ModelHabits = field(default_factory=ModelHabits)
    policy: Policy = field(default_factory=Policy)
    hooks: Hooks = field(default_factory=Hooks)
    gate: StepGate = field(default_factory=StepGate)
    budgets: AgentBudgets | None = None
    budget: BudgetMeter = field(default_factory=BudgetMeter)


@dataclass(frozen=True, slots=True)
class TaskCrashed:
    """A task raised what no adapter should: a bug, to be raised where the run is driven."""

    cause: BaseException


@dataclass(frozen=True, slots=True)
class TextArrived:
    """Text of the answer is due to be taken and recorded."""


class Effects:
    """Asks and calls for one run. Events go to `put`, notices to `notify`."""

    def __init__(
        self,
        backends: Backends,
        put: Callable[[Event | TaskCrashed | TextArrived], None],
        notify: Callable[[Notice], None],
        deadline: Deadline,
        run_id: str = "",
    ) -> None:
        self.children: dict[str, ChildRun] = {}
        """What is known of the tasks of delegations in flight, by call."""
        self._run_id = run_id
        self._backends = backends
        self._put = put
        self._notify = notify
        self._deadline = deadline
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_cancelled = False
        self._leaves_tasks = False
        self._text = TextBatcher(lambda: put(TextArrived()))
        self._hooks = HookCaller(backends.hooks, run_id, put)
        self._model = ModelCaller(backends, self._text, put, notify)

    def ask(self, command: AskModel | Judge, run: Run) -> None:
        """Ask the model of a run, or its hooks; see `ModelCaller` and `HookCaller`."""
        if not isinstance(command, AskModel):
            self._spawn(self._hooks.judge(command, run))
            return
        request = replace(command.request, seconds_left=self._deadline.seconds_left)
        self._spawn(self._ask(replace(command, request=request), run))

    @property
    def has_text(self) -> bool:
        """Whether text of the answer has arrived, or become void, and was not taken."""
        return bool(self._text)

    def take_text(self) -> tuple[bool, str]:
        """Give all text of the answer that has arrived, and whether all before it is void."""
        return self._text.take()

    def call(self, command: MakeCall, run: Run) -> None:
        """Call a tool, or delegate under the context id that the run has for it."""
        self._spawn(self._call(command, run))

    async def cancel_all(self, *, leaves_tasks: bool = False) -> None:
        """Cancel all tasks, once; those that do not end in 0.9 s are left to end alone.

        With `leaves_tasks` other agents go on with theirs: another process takes the run over.
        """
        if self._is_cancelled:
            return
        self._is_cancelled = True
        self._leaves_tasks = leaves_tasks
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CANCEL_SECONDS)

    async def _ask(self, command: AskModel, run: Run) -> None:
        await self._backends.gate.pass_through(self._run_id)
        if self._backends.hooks.providers and command.purpose != "summary":
            messages = await self._hooks.with_context(command.request.messages, run)
            if isinstance(messages, Failed):
                self._put(messages)
                return
            command = replace(command, request=replace(command.request, messages=messages))
        await self._model.ask(command, run)

    # Calls

    async def _call(self, command: MakeCall, run: Run) -> None:
        call = command.call
        try:
            output = await self._send(command, run)
        except CallError as error:
            child = getattr(error, "child", None)
            result = Result(call.id, _result_text(error.message), error=error.kind, child=child)
        except asyncio.CancelledError:
            if self._is_cancelled:
                raise
            result = Result(call.id, "the call was cancelled from within", error="unknown")
        except LoopError:
            raise
        except Exception:
            _logger.exception("a call failed with an unexpected error")
            result = Result(call.id, "the call failed inside the agent", error="unknown")
        else:
            result = _result(call, output)
        kind: CallKind = "agent" if isinstance(call, Delegation) else "tool"
        self.children.pop(call.id, None)
        judged = await self._hooks.after_call(call, result, run)
        if isinstance(judged, Failed):
            self._put(judged)
        else:
            self._put(Returned(judged[0], kind, target(call), judged[1]))

    async def _send(self, command: MakeCall, run: Run) -> CallOutput:
        call = command.call
        about: dict[str, JSON] = {"call_id": call.id, "target": target(call)}

        def watch(seen: str | ChildRun | ChildEvent) -> None:
            if isinstance(seen, ChildRun):
                self.children[call.id] = seen
                return
            if isinstance(seen, ChildEvent) and (event := self._approval_below(call, seen)):
                self._put(event)
            self._notify(delegation_notice(call, seen))

        if isinstance(call, Delegation):
            delegation = self._delegation(call, run, is_resumed=command.is_retry)
            return await self._backends.agents.delegate(delegation, watch)
        return await self._backends.tools.call(
            _tool_of(call, run),
            call.arguments,
            lambda text: self._notify(
                Notice("tool_progress", {**about, "message": well_formed(text)})
            ),
        )

    def _approval_below(self, call: Call, seen: ChildEvent) -> ChildApproval | None:
        child = self.children.get(call.id)
        return child_approval(call, child, seen) if child else None

    def _delegation(self, call: Delegation, run: Run, *, is_resumed: bool) -> DelegationRequest:
        limit = run.settings.memory_context_limit
        context = conversation(run)[:-1][-limit:] if limit else ()  # without the reply
        return DelegationRequest(
            agent=call.agent,
            task=call.task,
            context_id=run.contexts.get(call.id, ""),
            context=tuple(without_native_calls(context, run.nonce)),
            path=run.origin.path,
            seconds_left=self._deadline.seconds_left,
            traceparent=run.origin.traceparent,
            subject=run.subject,
            run_id=self._run_id,
            call_id=call.id,
            budget=run.shares.get(call.id, Budget()),
            deadline_pauses=self._deadline.pauses,
            is_resumed=is_resumed,
            leaves_task=lambda: self._leaves_tasks,
        )

    # Tasks

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (cause := task.exception()) is not None:
            self._put(TaskCrashed(cause))


def _tool_of(call: ToolCall, run: Run) -> Tool:
    tool = run.catalog.tool(call.name)
    if tool is None:
        raise LoopError(f"{call} was commanded, but the catalog has no such tool")
    return tool


def _result(call: Call, output: CallOutput) -> Result:
    text, reason = _result_text(output.text), output.finish_reason
    if reason != "stop":
        text = f"{text}\n\n[{prompt.NOT_WHOLE[reason].format(target(call))}]"
    value = _recordable(output.value)
    return Result(call.id, text, value, finish_reason=reason, child=output.child)


def _recordable(value: JSON) -> JSON:
    """Give the value if a record can hold it: not too deep, no numbers over 64 bits, not too long.

    For any other the model still has the text.
    """
    try:
        return value if len(orjson.dumps(value)) <= RESULT_BYTES else None
    except TypeError:
        return None


def _result_text(text: str) -> str:
    return bounded(well_formed(text))
