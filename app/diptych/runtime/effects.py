"""What one run has on its way outside: the model asked, calls made.

Each comes back as an event in the run's inbox, whatever becomes of it.

Not here: when to ask and what to call (`loop`), what is recorded before and after (`runner`).
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
from diptych.loop.actions.leading_reasoning import Lead
from diptych.loop.catalog import Tool
from diptych.loop.events import AskModel, CallKind, Event, Failed, Replied, Returned
from diptych.loop.messages import JSON, Call, CallOutput, Delegation, Result, ToolCall, Usage
from diptych.loop.state import Run, conversation
from diptych.loop.text import RESULT_BYTES, bounded, well_formed
from diptych.ports import Agents, DelegationRequest, Model, Notice, Tools
from diptych.runtime.answer_text import AnswerReplay, TextBatcher

STOP_SECONDS = 0.9  # that cancelled work has to tell its server: an abort takes effect in 1 s
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Backends:
    """What a run reaches: the model, the tools and the other agents."""

    model: Model
    tools: Tools
    agents: Agents


@dataclass(frozen=True, slots=True)
class TaskCrashed:
    """A task ended by an exception that nobody foresaw: a bug, to be raised where it is seen."""

    cause: BaseException


class Effects:
    """Asks and calls for one run; what comes of it goes to `put`, what is told live to `notice`.

    `late_at` is the run's deadline by the event loop's clock, None for no limit.
    """

    def __init__(
        self,
        outside: Backends,
        put: Callable[[Event | TaskCrashed], None],
        notice: Callable[[Notice], None],
        late_at: float | None,
    ) -> None:
        self._outside = outside
        self._put = put
        self._notice = notice
        self._late_at = late_at
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stopping = False

    def ask(self, command: AskModel) -> None:
        self._spawn(self._ask(command))

    def ask_answer(
        self, command: AskModel, pieces: TextBatcher, differs: Callable[[], None]
    ) -> None:
        """Have an answer streamed into `pieces`; `differs` as `AnswerReplay` has it."""
        self._spawn(self._stream(command, pieces, AnswerReplay(command.told, differs)))

    def call(self, call: Call, run: Run, context_id: str | None) -> None:
        self._spawn(self._call(call, run, context_id))

    async def stop(self) -> None:
        """Cancel what is on its way, once; what does not end in time is left to end alone."""
        if self._is_stopping:
            return
        self._is_stopping = True
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_SECONDS)

    # The model

    async def _ask(self, command: AskModel) -> None:
        try:
            reply = await self._outside.model.complete(command.messages, command.index)
        except ModelError as error:
            self._put(Failed(error.code, error.message))
            return
        self._notice_reasoning(reply.reasoning or strip_lead(reply.text)[1])
        self._put(Replied(reply.text, reply.usage, reply.finish_reason))

    async def _stream(
        self, command: AskModel, pieces: TextBatcher, retelling: AnswerReplay
    ) -> None:
        lead, usage, finish_reason = Lead(), Usage(), "stop"
        try:
            stream = self._outside.model.stream(command.messages, command.index)
            async with aclosing(stream) as deltas:
                async for delta in deltas:
                    self._notice_reasoning(delta.reasoning)
                    text = lead.strip(delta.text) if lead.is_open else delta.text
                    pieces.add(retelling.unheard(text))
                    usage = delta.usage or usage
                    finish_reason = delta.finish_reason or finish_reason
        except ModelError as error:
            self._put(Failed(error.code, error.message))
            return
        if lead.is_open:
            pieces.add(retelling.unheard(lead.rest()))
        pieces.add(retelling.rest())
        self._notice_reasoning(lead.reasoning)
        self._put(Replied("", usage, finish_reason))

    def _notice_reasoning(self, text: str) -> None:
        if text:
            self._notice(Notice("reasoning", {"content": text}))

    # Calls

    async def _call(self, call: Call, run: Run, context_id: str | None) -> None:
        try:
            answer = await self._send(call, run, context_id)
        except CallError as error:
            result = Result(call.id, _result_text(error.message), error=error.kind)
        except asyncio.CancelledError:
            if self._is_stopping:
                raise
            result = Result(call.id, "it was cancelled from within", error="unknown")
        except LoopError:
            raise
        except Exception:  # noqa: BLE001 - none escapes the loop, whatever an adapter forgot (§5)
            _log.exception("a call broke")
            result = Result(call.id, "it broke inside the agent", error="unknown")
        else:
            result = Result(call.id, _result_text(answer.text), _held(answer.value))
        kind: CallKind = "agent" if isinstance(call, Delegation) else "tool"
        self._put(Returned(result, kind, target(call)))

    async def _send(self, call: Call, run: Run, context_id: str | None) -> CallOutput:
        about: dict[str, JSON] = {"call_id": call.id, "target": target(call)}

        def tell(notice_type: str, field: str, text: str) -> None:
            self._notice(Notice(notice_type, {**about, field: well_formed(text)}))

        if isinstance(call, Delegation):
            return await self._outside.agents.delegate(
                self._errand(call, run, context_id),
                lambda text: tell("delegation_progress", "content", text),
            )
        return await self._outside.tools.call(
            _offered(call, run), call.arguments, lambda text: tell("tool_progress", "message", text)
        )

    def _errand(self, call: Delegation, run: Run, context_id: str | None) -> DelegationRequest:
        limit = run.settings.memory_context_limit
        left = None
        if self._late_at is not None:
            left = max(self._late_at - asyncio.get_running_loop().time(), 0.0)
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
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (cause := task.exception()) is not None:
            self._put(TaskCrashed(cause))


def target(call: Call) -> str:
    """Give the name that the model called."""
    return call.agent if isinstance(call, Delegation) else call.name


def _offered(call: ToolCall, run: Run) -> Tool:
    tool = run.catalog.tool(call.name)
    if tool is None:
        raise LoopError(f"{call} was commanded, and nobody offers it")
    return tool


def _held(value: JSON) -> JSON:
    """Give a value that a record can hold (not too deep, no numbers over 64 bits, not too long).

    Of any other the model has the text all the same.
    """
    try:
        return value if len(orjson.dumps(value)) <= RESULT_BYTES else None
    except TypeError:
        return None


def _result_text(text: str) -> str:
    return bounded(well_formed(text))
