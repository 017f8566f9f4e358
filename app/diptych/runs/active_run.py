"""The handle of a run in this process: its log, its stage, its signals. It drives nothing."""

import asyncio
from collections.abc import Sequence
from enum import Enum
from typing import assert_never

from diptych.core.events import (
    Aborted,
    ApprovalDecided,
    Event,
    Failed,
    MessageQueued,
    QueueCleared,
    Signal,
    Stop,
)
from diptych.core.queues import clearing, takes
from diptych.core.reducer import apply_all, closing_events
from diptych.core.state import Phase, Run
from diptych.runs.mailbox import Mailbox
from diptych.runs.run_log import RunLog
from diptych.runs.runner import Runner


class Stage(Enum):
    """How far a run has come in this process."""

    QUEUED = "queued"  # in its session: its turn has not come
    EXECUTING = "executing"  # its turn has come
    CANCELLING = "cancelling"  # it is being ended before its turn
    HANDING_OVER = "handing over"  # its turn had come, and another process is to go on
    RELEASED = "released"  # this process has nothing to do with it any more


class ActiveRun:
    """A run that this process has queued or executes.

    Signals that arrive before it has a runner are kept. `stop_requested` is how the run was asked
    to end; the first reason counts. A new session has no history to load.
    """

    def __init__(self, log: RunLog, *, is_new_session: bool = False) -> None:
        self.log = log
        self.is_new_session = is_new_session
        self.stop_requested: Stop | None = None
        self.released = asyncio.Event()
        self._stage = Stage.QUEUED
        self._runner: Runner | None = None
        self._mailbox = Mailbox()  # until there is a runner
        self._decisions: dict[str, ApprovalDecided] = {}  # likewise, by call
        self._deadline: asyncio.TimerHandle | None = None  # while it waits
        self.attended_at = asyncio.get_running_loop().time()
        self._opened_at = asyncio.get_running_loop().time()

    @property
    def run_id(self) -> str:
        return self.log.run_id

    @property
    def stage(self) -> Stage:
        return self._stage

    @property
    def run(self) -> Run | None:
        """The run as far as it is on record, once it has a runner."""
        return self._runner.run if self._runner else None

    @property
    def age(self) -> float:
        """Seconds since the run was opened, wherever that was."""
        return asyncio.get_running_loop().time() - self._opened_at

    @property
    def waits_until(self) -> float | None:
        """When its caller's deadline ends a run that waits, by the event loop's clock."""
        is_queued = self._stage is Stage.QUEUED
        return self._deadline.when() if self._deadline and is_queued else None

    def set_deadline(self, timer: asyncio.TimerHandle) -> None:
        self._deadline = timer

    def was_opened(self, seconds_ago: float) -> None:
        """Count the run's age from its first record, which another process may have written."""
        self._opened_at = asyncio.get_running_loop().time() - max(0.0, seconds_ago)

    def begin(self, stage: Stage) -> bool:
        """Go from QUEUED to EXECUTING or CANCELLING; False if the run is not queued any more."""
        if self._stage is not Stage.QUEUED:
            return False
        self._stage = stage
        return True

    def attach(self, runner: Runner) -> None:
        """Hand the run to its runner, with the signals that came before."""
        self._runner = runner
        if self._deadline:
            self._deadline.cancel()  # the runner has it, and knows when it stands still
        for message in self.take_messages():
            runner.queue(message)
        for decided in self._decisions.values():
            runner.decide(decided)
        if self.stop_requested:
            runner.stop(self.stop_requested)
        if self._stage is Stage.HANDING_OVER:
            runner.hand_over()

    def stop(self, stop: Stop) -> bool:
        """End the run. False if it was asked before."""
        if self.stop_requested is not None:
            return False
        self.stop_requested = stop
        if self._runner:
            self._runner.stop(stop)
        return True

    def queue(self, message: MessageQueued | QueueCleared) -> bool:
        """Let a message wait, or clear those that do, once. False if there are too many."""
        if self._runner:
            self._runner.queue(message)
            return True
        return self._mailbox.put(message)

    @property
    def mailbox(self) -> Sequence[MessageQueued | QueueCleared]:
        """What waits for the run to begin, and what clears it; nothing if it has a runner."""
        return self._mailbox.items

    def decide(self, decided: ApprovalDecided) -> None:
        """Decide on a call that waits; the first decision counts."""
        if self._runner:
            self._runner.decide(decided)
        else:
            self._decisions.setdefault(decided.call_id, decided)

    def signal(self, signal: Signal) -> None:
        match signal:
            case ApprovalDecided():
                self.decide(signal)
            case MessageQueued() | QueueCleared():
                self.queue(signal)
            case Aborted() | Failed():
                self.stop(signal)
            case _:
                assert_never(signal)

    def attend(self) -> None:
        """Note that somebody waits for the run now; `attended_at` is by the event loop's clock."""
        self.attended_at = asyncio.get_running_loop().time()

    def hand_over(self) -> None:
        """Leave a run whose turn has come as it is, for another process to go on."""
        if self._stage is Stage.EXECUTING:
            self._stage = Stage.HANDING_OVER
            if self._runner:
                self._runner.hand_over()

    def release(self) -> None:
        """Have nothing to do with the run any more, and end its local subscriptions."""
        self._stage = Stage.RELEASED
        if self._deadline:
            self._deadline.cancel()
        self.log.close()
        self.released.set()

    def take_messages(self) -> Sequence[MessageQueued | QueueCleared]:
        """Take what came before there was a runner, in the order in which it came."""
        return self._mailbox.take()

    async def finish(self, run: Run, stop: Stop) -> Run:
        """Record the end of a run that has no runner (any more). Gives the run as it ended."""
        if run.phase is Phase.DONE:
            return run
        events: list[Event] = []
        ended = run
        for item in self.take_messages():
            if takes(ended, item):
                event = clearing(ended, item) if isinstance(item, QueueCleared) else item
                ended = apply_all(ended, [event])
                events.append(event)
        closing = list(closing_events(ended, stop))
        await self.log.append([*events, *closing])
        return apply_all(ended, closing)
