"""Drives one run: carries out the reducer's commands, and feeds events back to it.

The order is always: advance, log, notify subscribers, act. Only requests to the model and the hooks
may start before the log is written: repeating them is harmless. All events of a run, including its
cancellation and deadline, come through one inbox.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from enum import Enum
from functools import partial

from diptych.budgets.run_meter import budget_notices, budget_summary
from diptych.core.commands import AskModel, Command, Emit, Judge, MakeCall, Warn
from diptych.core.errors import StoreError, StoreFull
from diptych.core.events import (
    Aborted,
    Answer,
    AnswerReset,
    ApprovalDecided,
    CallJudged,
    ChildAnswered,
    ChildAsked,
    Event,
    Failed,
    FormatChanged,
    InputReceived,
    InputRequested,
    MessageQueued,
    Offered,
    QueueCleared,
    Replied,
    ReplyRejected,
    Returned,
    Stop,
    Streamed,
)
from diptych.core.queues import clearing, takes
from diptych.core.reducer import advance, closing_events
from diptych.core.state import Phase, Run
from diptych.core.waiting import may_end_wait, may_wait
from diptych.ports import Notice
from diptych.runs.backends import Backends
from diptych.runs.call_maker import Blocked, CallMaker
from diptych.runs.catalog_recorder import CatalogRecorder
from diptych.runs.hooks import HookCaller
from diptych.runs.inbox import (
    CallsAllowed,
    HandOver,
    Inbox,
    InboxItem,
    RunTasks,
    TaskCrashed,
    TextBatcher,
    TextDue,
)
from diptych.runs.model_caller import ModelCaller
from diptych.runs.run_log import DEFERRED_SECONDS, FIRST_DEFERRED_SECONDS, RunLog, RunWriter
from diptych.runs.timers import Deadline, RunTimers

DEADLINE_EXCEEDED = Failed("deadline_exceeded", "the run ran out of time")
# If one of these is lost before it is written, the model is asked again.
_DEFERRABLE = (Offered, Replied, ReplyRejected, FormatChanged)


class _Stage(Enum):
    DRIVING = "driving"
    STOPPING = "stopping"  # starts nothing new; its end or hand-over is in the inbox
    HANDED_OVER = "handed over"


class Runner:
    """The event loop of one run, until it ends or is handed over.

    Knowledge of the model's context window goes to `catalogs`, for later runs.
    """

    def __init__(
        self,
        run: Run,
        backends: Backends,
        log: RunLog,
        deadline: Deadline,
        catalogs: CatalogRecorder,
    ) -> None:
        self._catalogs = catalogs
        self._meter = backends.meter
        self._trace = backends.trace
        self._asked = backends.model
        self._timers = RunTimers(
            deadline, log.now, self.signal, partial(self.stop, DEADLINE_EXCEEDED)
        )
        self._inbox: Inbox = asyncio.Queue()
        self._writer = RunWriter(run, log, self._inbox)
        self._tasks = RunTasks(self._inbox)
        self._batcher = TextBatcher(self._inbox)
        self._hooks = HookCaller(backends.hooks, log)
        self._model = ModelCaller(backends, self._hooks, log, deadline, self._batcher)
        self._call_maker = CallMaker(backends, self._hooks, self._writer, deadline, self._tasks)
        self._stage = _Stage.DRIVING

    @property
    def run(self) -> Run:
        """The run up to its last logged event."""
        return self._writer.recorded

    def stop(self, stop: Stop) -> None:
        """End the run: calls in flight are cancelled and logged as `interrupted`."""
        self._stage = _Stage.STOPPING
        self._inbox.put_nowait(stop)

    def signal(self, signal: MessageQueued | QueueCleared | Answer) -> None:
        """Deliver a message or answer; duplicates, and answers after expiry, are ignored."""
        if not isinstance(signal, MessageQueued | QueueCleared):
            signal = self._timers.in_time(self._writer.current, signal)
        self._inbox.put_nowait(signal)

    def hand_over(self) -> None:
        """Stop, and leave the run for another process to continue from its log."""
        self._stage = _Stage.STOPPING
        self._inbox.put_nowait(HandOver())

    async def drive(self, *first: Event) -> Run:
        """Apply `first`, then items of the inbox, until the run ends or is handed over.

        Raises `StoreError`, and any error caused by a bug. A run that is already stopped starts
        nothing.
        """
        self._timers.start()
        try:
            for event in first:
                await self._receive(event)
            while self.run.phase is not Phase.DONE and self._stage is not _Stage.HANDED_OVER:
                await self._receive(await self._inbox.get())
        except asyncio.CancelledError:  # the lease was lost: another process continues
            await self._tasks.cancel_all(leaves_remote=not self._writer.log.is_lost)
            raise
        except Exception as error:
            await self._writer.wait_written()
            if isinstance(error, StoreError) and not isinstance(error, StoreFull):
                await self._tasks.cancel_all(leaves_remote=True)  # another process may own it
            raise
        finally:
            self._timers.close()
            self._writer.cancel()
            await self._tasks.cancel_all()
        return self.run

    async def _receive(self, item: InboxItem) -> None:
        match item:
            case TaskCrashed(cause):
                try:
                    raise cause
                finally:
                    del cause, item  # its traceback leads here
            case TextDue():
                await self._write_text()
            case CallsAllowed(commands):
                if self._stage is _Stage.DRIVING:
                    await self._call_maker.begin(commands)
            case Aborted() | Failed():
                await self._end(item)
            case HandOver():
                await self._tasks.cancel_all(leaves_remote=True)
                await self._record_arrived()
                self._stage = _Stage.HANDED_OVER
            case Replied() if self._batcher.has_text:
                await self._write_text()
                await self._apply(item)
            case _ if is_stale(self._writer.current, item):
                pass
            case QueueCleared():
                await self._apply(clearing(self._writer.current, item))
            case _:
                await self._apply(item)

    async def _apply(self, event: Event) -> None:
        """Advance by an event, log and publish it, and make the calls.

        If the only consequence is a model request, the write may be deferred.
        """
        before = self._writer.current
        self._writer.current, commands = advance(self._writer.current, event)
        if self._writer.current.window is not before.window:
            self._catalogs.learn(self._writer.current.window, self._asked)
        if isinstance(event, Returned):
            self._meter.end_child(event.result, self._writer.current.delegated - before.delegated)
        following, calls = self._carry_out(commands)
        items = [event, *budget_notices(before, self._writer.current), *following]
        if self._stage is _Stage.DRIVING:
            self._timers.watch(self._writer.current)
        if all(isinstance(item, (*_DEFERRABLE, Notice)) for item in items):
            is_start = isinstance(event, Offered)
            self._writer.write_later(
                items, FIRST_DEFERRED_SECONDS if is_start else DEFERRED_SECONDS
            )
        else:
            await self._writer.write(*items)
        if calls and self._stage is _Stage.DRIVING:
            await self._call_maker.make(calls)
        elif calls:
            await self._call_maker.look_for_children(calls)

    def _carry_out(
        self, commands: Sequence[Command]
    ) -> tuple[list[Event | Notice], list[MakeCall]]:
        """Start requests and apply emitted events; return items to log, and calls to make."""
        items, calls = list[Event | Notice](), list[MakeCall]()
        todo = deque(commands)
        while todo:
            match todo.popleft():
                case Emit(event):
                    self._writer.current, more = advance(self._writer.current, event)
                    items.append(event)
                    todo.extend(more)
                case AskModel() | Judge() as ask:
                    self._ask(ask)
                case MakeCall() as call:
                    if blocked := self._check(call, calls):
                        todo.appendleft(Emit(blocked))
                    else:
                        calls.append(call)
                case Warn(text):
                    items.append(Notice("format_warning", {"message": text}))
        return items, calls

    def _check(self, command: MakeCall, before: Sequence[MakeCall]) -> Blocked | None:
        """Check a call against policy and budget; return the event instead of it, if blocked."""
        if self._stage is not _Stage.DRIVING:
            return None
        return self._call_maker.check(command, [*self._call_maker.not_begun, *before])

    def _ask(self, command: AskModel | Judge) -> None:
        """Ask the model or the hooks in a task; the result goes to the inbox."""
        if self._stage is not _Stage.DRIVING:
            return
        if isinstance(command, AskModel):
            ask = partial(self._model.ask, command, self._writer.current)
            self._tasks.start(self._trace.asking(command, ask) if self._trace else ask())
        else:
            self._tasks.start(self._hooks.judge(command, self._writer.current))

    async def _end(self, stop: Stop) -> None:
        """Cancel everything in flight, log the results that arrived, and end the run.

        If another process may own the run, its tasks at other agents continue.
        """
        await self._tasks.cancel_all(leaves_remote=not self._writer.log.is_surely_owned)
        await self._record_arrived()
        self._writer.add(*budget_summary(self._writer.current))
        children = self._call_maker.children
        await self._writer.record(*closing_events(self._writer.current, stop, children))

    async def _record_arrived(self) -> None:
        """Log the results and signals that arrived before the cancellation; start nothing new."""
        while not self._inbox.empty():
            run = self._writer.current
            match self._inbox.get_nowait():
                case late if is_stale(run, late):
                    pass
                case Returned() as result if run.phase is Phase.CALL:
                    await self._writer.record(result)
                case QueueCleared() as asked:
                    await self._writer.record(clearing(run, asked))
                case (MessageQueued() | ApprovalDecided() | ChildAnswered()) as event:
                    await self._writer.record(event)
        await self._write_text()
        await self._writer.write()

    async def _write_text(self) -> None:
        is_void, text = self._batcher.take()
        run, events = self._writer.current, list[Event]()
        if run.phase not in (Phase.ACT, Phase.ANSWER):
            return
        if is_void and run.draft.text:
            events.append(AnswerReset(run.draft.seq, run.draft.attempts + 1))
        if text:
            events.append(Streamed(text))
        if events:
            await self._writer.record(*events)


def is_stale(run: Run, item: object) -> bool:
    """Whether an item is late or a duplicate, and must be dropped."""
    match item:
        case MessageQueued() | QueueCleared():
            return not takes(run, item)
        case CallJudged(call_id):
            return call_id not in run.progress.awaiting_hooks
        case InputRequested() | ChildAsked():
            return not may_wait(run, item)
        case ApprovalDecided() | InputReceived() | ChildAnswered():
            return not may_end_wait(run, item)
        case _:
            return False
