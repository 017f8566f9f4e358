"""The only asynchronous logic of a run: it obeys the loop's commands and feeds events back.

One order for everything: decide (`advance`), record, tell, do. Nothing is acted on before it is
on record, but that the model is asked meanwhile. All that happens to a run, its abort and its
deadline too, comes through one inbox.

Not here: what is decided (`loop`), who owns a run and who listens to it (`runs`).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from diptych.actions import strip_lead
from diptych.actions.lead import Lead
from diptych.answering import Pieces, Retelling
from diptych.errors import CallError, LoopError, ModelError
from diptych.events import (
    Aborted,
    AnswerReset,
    AskModel,
    Called,
    CallKind,
    Event,
    Failed,
    MakeCall,
    Replied,
    Returned,
    Stop,
    Streamed,
    Warn,
    Write,
)
from diptych.loop import Phase, Run, advance, conversation, ended, ending
from diptych.messages import JSON, Answer, Call, Delegation, Result, Usage
from diptych.ports import Agents, Errand, Model, Notice, Tools
from diptych.texts import RESULT_BYTES, bounded, well_formed

STOP_SECONDS = 0.9  # that cancelled work has to tell its server: an abort takes effect in 1 s
OUT_OF_TIME = Failed("deadline_exceeded", "the run ran out of time")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outside:
    """What a run reaches: the model, the tools and the other agents."""

    model: Model
    tools: Tools
    agents: Agents


class Sink(Protocol):
    """Where a run's facts go. Events are on record, and told, when `record` returns."""

    async def record(self, events: Sequence[Event]) -> None: ...

    def notice(self, notice: Notice) -> None: ...

    def new_context_id(self) -> str: ...


class Runner:
    """Takes one run to its end.

    `late_at` is its deadline by the event loop's clock, None for no limit.
    """

    def __init__(self, run: Run, outside: Outside, sink: Sink, late_at: float | None) -> None:
        self.run = run
        self._outside = outside
        self._sink = sink
        self._late_at = late_at
        self._inbox: asyncio.Queue[Event | _Flush | _Leave | _Crash] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._pieces = Pieces(lambda: self._inbox.put_nowait(_Flush()))
        self._is_to_stop = False
        self._is_stopping = False
        self._has_left = False

    def end(self, stop: Stop) -> None:
        """End the run: what is on its way is cancelled and recorded as `interrupted`."""
        self._is_to_stop = True
        self._inbox.put_nowait(stop)

    def leave(self) -> None:
        """Stop, and leave the run for another owner to take up from its record."""
        self._is_to_stop = True
        self._inbox.put_nowait(_Leave())

    async def drive(self, *first: Event) -> Run:
        """Obey and feed back until the run is done, or left. Raises a bug, or `StoreError`.

        Begins with the events that are given. One that is to stop before it is driven begins
        nothing.
        """
        timer: asyncio.TimerHandle | None = None
        if self._late_at is not None:
            loop = asyncio.get_running_loop()
            if self._late_at <= loop.time():
                self.end(OUT_OF_TIME)
            timer = loop.call_at(self._late_at, self.end, OUT_OF_TIME)
        try:
            for event in first:
                await self._go_on(event)
            while self.run.phase is not Phase.DONE and not self._has_left:
                await self._receive(await self._inbox.get())
        finally:
            if timer:
                timer.cancel()
            await self._stop_tasks()
        return self.run

    async def _go_on(self, event: Event) -> None:
        """Decide what an event means, record and tell it and all that follows from it alone, obey.

        The model is asked meanwhile: that may be done twice, and a slow store must not delay it.
        """
        run, commands = advance(self.run, event)
        events, todo, later = [event], deque(commands), list[MakeCall | Warn]()
        while todo:
            match todo.popleft():
                case Write(following):
                    run, more = advance(run, following)
                    events.append(following)
                    todo.extend(more)
                case AskModel() as ask:
                    self._begin_asking(ask)
                case command:
                    later.append(command)
        await self._sink.record(events)
        self.run = run
        for command in later:
            await self._obey(command)

    async def _receive(self, item: "Event | _Flush | _Leave | _Crash") -> None:
        match item:
            case _Crash(cause):
                raise cause
            case _Flush():
                await self._flush()
            case Aborted() | Failed():
                await self._end(item)
            case _Leave():
                await self._stop_tasks()
                await self._keep_arrived()
                self._has_left = True
            case Replied() if self._pieces:
                await self._flush()
                await self._go_on(item)
            case _:
                await self._go_on(item)

    async def _end(self, end: Stop) -> None:
        """Stop what is on its way, keep what has come back all the same, and end."""
        await self._stop_tasks()
        await self._keep_arrived()
        await self._note(*ending(self.run, end))

    async def _keep_arrived(self) -> None:
        """Record what came back before all was stopped; nothing new is begun."""
        while not self._inbox.empty():
            item = self._inbox.get_nowait()
            if (isinstance(item, Returned) and self.run.phase is Phase.CALL) or (
                isinstance(item, AnswerReset) and self.run.phase is Phase.ANSWER
            ):
                await self._note(item)
        await self._flush()

    async def _note(self, *events: Event) -> None:
        """Record and tell events, and begin nothing that follows from them."""
        run = ended(self.run, events)
        await self._sink.record(events)
        self.run = run

    async def _obey(self, command: MakeCall | Warn) -> None:
        if self._is_to_stop:  # its end is in the inbox, and nothing is begun
            return
        match command:
            case Warn(text):
                self._sink.notice(Notice("format_warning", {"message": text}))
            case MakeCall():
                await self._begin_call(command)

    # The model

    def _begin_asking(self, command: AskModel) -> None:
        if not self._is_to_stop:
            self._spawn(self._stream_answer(command) if command.answer else self._ask(command))

    async def _ask(self, command: AskModel) -> None:
        try:
            reply = await self._outside.model.complete(command.messages, command.index)
        except ModelError as error:
            self._inbox.put_nowait(Failed(error.code, error.message))
            return
        self._notice_reasoning(reply.reasoning or strip_lead(reply.text)[1])
        self._inbox.put_nowait(Replied(reply.text, reply.usage, reply.finish_reason))

    async def _stream_answer(self, command: AskModel) -> None:
        lead, usage, finish_reason = Lead(), Usage(), "stop"
        retelling = Retelling(command.told, self._start_answer_over)
        try:
            stream = self._outside.model.stream(command.messages, command.index)
            async with aclosing(stream) as deltas:
                async for delta in deltas:
                    self._notice_reasoning(delta.reasoning)
                    text = lead.strip(delta.text) if lead.is_open else delta.text
                    self._pieces.add(retelling.unheard(text))
                    usage = delta.usage or usage
                    finish_reason = delta.finish_reason or finish_reason
        except ModelError as error:
            self._inbox.put_nowait(Failed(error.code, error.message))
            return
        if lead.is_open:
            self._pieces.add(retelling.unheard(lead.rest()))
        self._pieces.add(retelling.rest())
        self._notice_reasoning(lead.reasoning)
        self._inbox.put_nowait(Replied("", usage, finish_reason))

    def _start_answer_over(self) -> None:
        run = self.run
        self._inbox.put_nowait(AnswerReset(run.answer_seq, run.answer_attempts + 1))

    async def _flush(self) -> None:
        text = self._pieces.take()
        if text and self.run.phase is Phase.ANSWER:
            await self._note(Streamed(text))

    def _notice_reasoning(self, text: str) -> None:
        if text:
            self._sink.notice(Notice("reasoning", {"content": text}))

    # Calls

    async def _begin_call(self, command: MakeCall) -> None:
        """Tell, record and send a call, in that order."""
        call, step = command.call, command.step
        action = "delegate" if isinstance(call, Delegation) else "tool_call"
        progress: dict[str, JSON] = {
            "step": step,
            "max_steps": self.run.terms.max_steps,
            "action": action,
        }
        self._sink.notice(Notice("progress", {**progress, "target": _target(call)}))
        context_id = self._sink.new_context_id() if isinstance(call, Delegation) else None
        if not command.again:
            await self._note(Called(call, step, context_id))
        self._spawn(self._make_call(call, context_id))

    async def _make_call(self, call: Call, context_id: str | None) -> None:
        try:
            answer = await self._send(call, context_id)
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
        self._inbox.put_nowait(Returned(result, kind, _target(call)))

    async def _send(self, call: Call, context_id: str | None) -> Answer:
        about: dict[str, JSON] = {"call_id": call.id, "target": _target(call)}
        if isinstance(call, Delegation):

            def heard(text: str) -> None:
                content = well_formed(text)
                self._sink.notice(Notice("delegation_progress", {**about, "content": content}))

            return await self._outside.agents.delegate(self._errand(call, context_id), heard)

        def told(text: str) -> None:
            self._sink.notice(Notice("tool_progress", {**about, "message": well_formed(text)}))

        tool = self.run.offers.tool(call.name)
        if tool is None:
            raise LoopError(f"{call} was commanded, and nobody offers it")
        return await self._outside.tools.call(tool, call.arguments, told)

    def _errand(self, call: Delegation, context_id: str | None) -> Errand:
        limit = self.run.terms.memory_context_limit
        left = None
        if self._late_at is not None:
            left = max(self._late_at - asyncio.get_running_loop().time(), 0.0)
        return Errand(
            agent=call.agent,
            task=call.task,
            context_id=context_id or "",
            context=conversation(self.run)[:-1][-limit:] if limit else (),  # without the reply
            path=self.run.origin.path,
            seconds_left=left,
            traceparent=self.run.origin.traceparent,
        )

    # Tasks

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (cause := task.exception()) is not None:
            self._inbox.put_nowait(_Crash(cause))

    async def _stop_tasks(self) -> None:
        """Cancel what is on its way, once; what does not end in time is left to end alone."""
        if self._is_stopping:
            return
        self._is_stopping = True
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_SECONDS)


@dataclass(frozen=True, slots=True)
class _Flush:
    """It is time to record the text that has arrived."""


@dataclass(frozen=True, slots=True)
class _Leave:
    """Another owner is to go on."""


@dataclass(frozen=True, slots=True)
class _Crash:
    """A task ended by an exception that nobody foresaw: a bug, to be raised where it is seen."""

    cause: BaseException


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


def _target(call: Call) -> str:
    return call.agent if isinstance(call, Delegation) else call.name
