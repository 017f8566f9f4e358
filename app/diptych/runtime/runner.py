"""The only asynchronous logic of a run: it obeys the loop's commands and feeds events back.

One order for everything: decide (`advance`), record, tell, do. Nothing is acted on before it is
on record, but that the model is asked meanwhile. All that happens to a run, its abort and its
deadline too, comes through one inbox.

Not here: what is decided (`loop`), asking and calling (`outgoing`), who owns a run and who listens
to it (`runs`).
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from diptych.loop.events import (
    Aborted,
    AnswerReset,
    AskModel,
    Called,
    Emit,
    Event,
    Failed,
    MakeCall,
    Offered,
    Replied,
    ReplyRejected,
    Returned,
    Steered,
    Stop,
    Streamed,
    Warn,
)
from diptych.loop.messages import JSON, Delegation
from diptych.loop.reducer import advance, apply_all, closing_events
from diptych.loop.state import MAX_MESSAGES_PER_RUN, Phase, Run
from diptych.ports import Notice
from diptych.runtime.answer_text import TextBatcher
from diptych.runtime.effects import Backends, Effects, TaskCrashed, target

SOON_SECONDS = 0.1  # after which what can wait for company is recorded alone
BEGUN_SECONDS = 0.025  # the same, of a run's beginning: until then it is shown as queued
OUT_OF_TIME = Failed("deadline_exceeded", "the run ran out of time")
_REPEATED = (
    Offered,
    Replied,
    ReplyRejected,
)  # what comes again if it is lost: the model is asked again


class Sink(Protocol):
    """Where a run's facts go.

    Events are on record when `record` returns, and told, with the notices between them.
    """

    async def record(self, items: Sequence[Event | Notice]) -> None: ...

    def notice(self, notice: Notice) -> None: ...

    def new_context_id(self) -> str: ...


class Runner:
    """Takes one run to its end.

    `late_at` is its deadline by the event loop's clock, None for no limit. `run` is as far as it
    is on record.
    """

    def __init__(self, run: Run, outside: Backends, sink: Sink, late_at: float | None) -> None:
        self.run = run
        self._now = run  # a little further than what is on record
        self._unwritten: list[Event | Notice] = []  # what happened between the two
        self._writing = asyncio.Lock()
        self._soon: asyncio.Task[None] | None = None  # writes it, if nothing does before
        self._sink = sink
        self._late_at = late_at
        self._inbox: asyncio.Queue[Event | TaskCrashed | _Flush | _Leave] = asyncio.Queue()
        self._outgoing = Effects(outside, self._inbox.put_nowait, sink.notice, late_at)
        self._pieces = TextBatcher(self._flush_next)
        self._is_to_stop = False
        self._has_left = False

    def end(self, stop: Stop) -> None:
        """End the run: what is on its way is cancelled and recorded as `interrupted`."""
        self._is_to_stop = True
        self._inbox.put_nowait(stop)

    def steer(self, message: Steered) -> None:
        """Have a message join the conversation; one that is sent again joins once."""
        self._inbox.put_nowait(message)

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
                await self._receive(event)
            while self.run.phase is not Phase.DONE and not self._has_left:
                await self._receive(await self._inbox.get())
        except Exception:
            async with self._writing:  # whoever ends the run goes on from what is on record
                raise
        finally:
            if timer:
                timer.cancel()
            if self._soon:
                self._soon.cancel()
            await self._outgoing.stop()
        return self.run

    async def _receive(self, item: "Event | TaskCrashed | _Flush | _Leave") -> None:
        match item:
            case TaskCrashed(cause):
                raise cause
            case _Flush():
                await self._flush()
            case Aborted() | Failed():
                await self._end(item)
            case _Leave():
                await self._outgoing.stop()
                await self._keep_arrived()
                self._has_left = True
            case Replied() if self._pieces:
                await self._flush()
                await self._go_on(item)
            case Steered() if not self._hears(item):
                pass
            case _:
                await self._go_on(item)

    async def _go_on(self, event: Event) -> None:
        """Decide what an event means, record and tell it and all that follows from it alone, obey.

        The model is asked meanwhile: that may be done twice, and a slow store must not delay it.
        """
        self._now, commands = advance(self._now, event)
        items: list[Event | Notice] = [event]
        todo, calls = deque(commands), list[MakeCall]()
        while todo:
            match todo.popleft():
                case Emit(following):
                    self._now, more = advance(self._now, following)
                    items.append(following)
                    todo.extend(more)
                case AskModel() as ask:
                    self._begin_asking(ask)
                case MakeCall() as call:
                    calls.append(call)
                case Warn(text):
                    items.append(Notice("format_warning", {"message": text}))
        if all(isinstance(item, (*_REPEATED, Notice)) for item in items):
            is_first = isinstance(event, Offered)
            self._write_soon(items, BEGUN_SECONDS if is_first else SOON_SECONDS)
        else:
            await self._write(*items)
        if calls and not self._is_to_stop:  # if it is, its end is in the inbox
            await self._begin_calls(calls)

    def _begin_asking(self, command: AskModel) -> None:
        if self._is_to_stop:
            return
        if command.answer:
            self._outgoing.ask_answer(command, self._pieces, self._start_answer_over)
        else:
            self._outgoing.ask(command)

    async def _begin_calls(self, commands: Sequence[MakeCall]) -> None:
        """Tell, record and send calls, in that order."""
        context_ids: dict[str, str] = {}
        for command in commands:
            call = command.call
            self._unwritten.append(_progress(command, self._now.last_step))
            if isinstance(call, Delegation):
                context_ids[call.id] = self._sink.new_context_id()
            if not command.again:
                called = Called(call, command.step, context_ids.get(call.id))
                self._now = apply_all(self._now, [called])
                self._unwritten.append(called)
        await self._write()
        for command in commands:
            self._outgoing.call(command.call, self._now, context_ids.get(command.call.id))

    async def _end(self, end: Stop) -> None:
        """Stop what is on its way, keep what has come back all the same, and end."""
        await self._outgoing.stop()
        await self._keep_arrived()
        await self._note(*closing_events(self._now, end))

    async def _keep_arrived(self) -> None:
        """Record what came before all was stopped; nothing new is begun."""
        while not self._inbox.empty():
            match self._inbox.get_nowait():
                case Returned() as result if self._now.phase is Phase.CALL:
                    await self._note(result)
                case AnswerReset() as reset if self._now.phase is Phase.ANSWER:
                    await self._note(reset)
                case Steered() as message if self._hears(message):
                    await self._note(message)
        await self._flush()
        await self._write()

    def _hears(self, message: Steered) -> bool:
        """Whether a message is new, and not one too many."""
        heard = self._now.message_ids
        return message.message_id not in heard and len(heard) < MAX_MESSAGES_PER_RUN

    # The record

    async def _note(self, *events: Event) -> None:
        """Record and tell events, and begin nothing that follows from them."""
        self._now = apply_all(self._now, events)
        await self._write(*events)

    async def _write(self, *items: Event | Notice) -> None:
        """Put on record what was put off, and then these; one write goes after another."""
        self._unwritten += items
        async with self._writing:
            due, run = list(self._unwritten), self._now
            if due:
                await self._sink.record(due)
                del self._unwritten[: len(due)]
                self.run = run

    def _write_soon(self, items: Sequence[Event | Notice], seconds: float) -> None:
        """Put off recording what led to no more than a question to the model.

        It goes on record with what comes of that, or beside it if nothing has for a moment. So a
        slow store delays the first word of an answer once, and not at each step before it.
        """
        self._unwritten += items
        if self._soon is None or self._soon.done():
            self._soon = asyncio.create_task(self._write_after(seconds))

    async def _write_after(self, seconds: float) -> None:
        try:
            while self._unwritten:  # also what came while the rest was written
                await asyncio.sleep(seconds)
                await self._write()
                seconds = SOON_SECONDS
        except Exception as error:  # noqa: BLE001 - raised where the run is driven
            self._inbox.put_nowait(TaskCrashed(error))

    def _flush_next(self) -> None:
        self._inbox.put_nowait(_Flush())

    async def _flush(self) -> None:
        text = self._pieces.take()
        if text and self._now.phase is Phase.ANSWER:
            await self._note(Streamed(text))

    def _start_answer_over(self) -> None:
        run = self._now
        self._inbox.put_nowait(AnswerReset(run.answer_seq, run.answer_attempts + 1))


@dataclass(frozen=True, slots=True)
class _Flush:
    """It is time to record the text that has arrived."""


@dataclass(frozen=True, slots=True)
class _Leave:
    """Another owner is to go on."""


def _progress(command: MakeCall, max_steps: int) -> Notice:
    fields: dict[str, JSON] = {
        "step": command.step,
        "max_steps": max_steps,
        "action": "delegate" if isinstance(command.call, Delegation) else "tool_call",
        "target": target(command.call),
    }
    return Notice("progress", fields)
