"""The effects of one run: requests to the model, calls of tools and agents, each in its own task.

A task that is not cancelled ends with one item in the run's inbox. The text of an answer goes
through a `TextBatcher`.

Not here: when to ask and what to call (`loop.reducer`), what is recorded before and after
(`runner`).
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import orjson

from diptych.errors import CallError, LoopError, ModelError
from diptych.loop.actions import strip_lead
from diptych.loop.actions.leading_reasoning import ReasoningFilter
from diptych.loop.catalog import Tool
from diptych.loop.events import AskModel, CallKind, Event, Failed, Replied, Returned
from diptych.loop.messages import JSON, Call, CallOutput, Delegation, Result, ToolCall, Usage
from diptych.loop.state import Run, conversation
from diptych.loop.text import RESULT_BYTES, bounded, well_formed
from diptych.ports import Agents, DelegationRequest, Model, Notice, Tools
from diptych.runtime.answer_text import AnswerReplay, TextBatcher

CANCEL_SECONDS = 0.9  # for cancelled tasks to tell their servers: an abort takes effect in 1 s
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Backends:
    """What a run can reach: the model, the tools and the other agents."""

    model: Model
    tools: Tools
    agents: Agents


@dataclass(frozen=True, slots=True)
class TaskCrashed:
    """A task raised what no adapter should: a bug, to be raised where the run is driven."""

    cause: BaseException


class Effects:
    """Asks and calls for one run. Events go to `put`, notices to `notify`.

    `deadline` is a time of the event loop's clock, None for no limit.
    """

    def __init__(
        self,
        backends: Backends,
        put: Callable[[Event | TaskCrashed], None],
        notify: Callable[[Notice], None],
        deadline: float | None,
    ) -> None:
        self._backends = backends
        self._put = put
        self._notify = notify
        self._deadline = deadline
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_cancelled = False

    def ask(self, command: AskModel) -> None:
        """Ask for a phase-1 reply."""
        self._spawn(self._ask(command))

    def stream_answer(
        self, command: AskModel, text: TextBatcher, on_difference: Callable[[], None]
    ) -> None:
        """Stream an answer into `text`; `on_difference` as in `AnswerReplay`."""
        self._spawn(self._stream(command, text, AnswerReplay(command.recorded, on_difference)))

    def call(self, call: Call, run: Run, context_id: str | None) -> None:
        """Call a tool, or delegate under a context id."""
        self._spawn(self._call(call, run, context_id))

    async def cancel_all(self) -> None:
        """Cancel all tasks, once; those that do not end in 0.9 s are left to end alone."""
        if self._is_cancelled:
            return
        self._is_cancelled = True
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CANCEL_SECONDS)

    # The model

    async def _ask(self, command: AskModel) -> None:
        try:
            reply = await self._backends.model.complete(command.messages, command.index)
        except ModelError as error:
            self._put(Failed(error.code, error.message))
            return
        self._notify_reasoning(reply.reasoning or strip_lead(reply.text)[1])
        self._put(Replied(reply.text, reply.usage, reply.finish_reason))

    async def _stream(self, command: AskModel, text: TextBatcher, replay: AnswerReplay) -> None:
        reasoning, usage, finish_reason = ReasoningFilter(), Usage(), "stop"
        try:
            stream = self._backends.model.stream(command.messages, command.index)
            async with aclosing(stream) as deltas:
                async for delta in deltas:
                    self._notify_reasoning(delta.reasoning)
                    piece = reasoning.feed(delta.text) if reasoning.is_open else delta.text
                    text.add(replay.new_text(piece))
                    usage = delta.usage or usage
                    finish_reason = delta.finish_reason or finish_reason
        except ModelError as error:
            self._put(Failed(error.code, error.message))
            return
        if reasoning.is_open:
            text.add(replay.new_text(reasoning.finish()))
        text.add(replay.finish())
        self._notify_reasoning(reasoning.reasoning)
        self._put(Replied("", usage, finish_reason))

    def _notify_reasoning(self, text: str) -> None:
        if text:
            self._notify(Notice("reasoning", {"content": text}))

    # Calls

    async def _call(self, call: Call, run: Run, context_id: str | None) -> None:
        try:
            output = await self._send(call, run, context_id)
        except CallError as error:
            result = Result(call.id, _result_text(error.message), error=error.kind)
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
            result = Result(call.id, _result_text(output.text), _recordable(output.value))
        kind: CallKind = "agent" if isinstance(call, Delegation) else "tool"
        self._put(Returned(result, kind, target(call)))

    async def _send(self, call: Call, run: Run, context_id: str | None) -> CallOutput:
        about: dict[str, JSON] = {"call_id": call.id, "target": target(call)}

        def notify(notice_type: str, field: str, text: str) -> None:
            self._notify(Notice(notice_type, {**about, field: well_formed(text)}))

        if isinstance(call, Delegation):
            return await self._backends.agents.delegate(
                self._delegation(call, run, context_id),
                lambda text: notify("delegation_progress", "content", text),
            )
        return await self._backends.tools.call(
            _tool_of(call, run),
            call.arguments,
            lambda text: notify("tool_progress", "message", text),
        )

    def _delegation(self, call: Delegation, run: Run, context_id: str | None) -> DelegationRequest:
        limit = run.settings.memory_context_limit
        left = None
        if self._deadline is not None:
            left = max(self._deadline - asyncio.get_running_loop().time(), 0.0)
        return DelegationRequest(
            agent=call.agent,
            task=call.task,
            context_id=context_id or "",
            context=conversation(run)[:-1][-limit:] if limit else (),  # without the reply
            path=run.origin.path,
            seconds_left=left,
            traceparent=run.origin.traceparent,
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


def target(call: Call) -> str:
    """Give the name that the model called."""
    return call.agent if isinstance(call, Delegation) else call.name


def _tool_of(call: ToolCall, run: Run) -> Tool:
    tool = run.catalog.tool(call.name)
    if tool is None:
        raise LoopError(f"{call} was commanded, but the catalog has no such tool")
    return tool


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
