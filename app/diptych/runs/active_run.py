"""The handle of a run in this process: its log, its stage, its signals."""

import asyncio
from enum import Enum
from typing import assert_never

from diptych.core.events import (
    Aborted,
    ApprovalDecided,
    Event,
    Failed,
    InputReceived,
    MessageQueued,
    QueueCleared,
    Signal,
    Stop,
)
from diptych.core.queues import clearing, takes
from diptych.core.reducer import apply_all, closing_events
from diptych.core.state import Phase, Run
from diptych.runs.run_log import RunLog
from diptych.runs.runner import Runner
from diptych.runs.steering import Mailbox


class Stage(Enum):
    """The progress of a run in this process."""

    QUEUED = "queued"  # waiting for its turn in the session
    EXECUTING = "executing"  # it is its turn
    CANCELLING = "cancelling"  # being ended before its turn
    HANDING_OVER = "handing over"  # left for another process to continue
    RELEASED = "released"  # this process is done with it


class ActiveRun:
    """A run that this process has queued or executes.

    Signals that arrive before it has a runner are kept. `stop_requested` is the first reason to end
    it. A new session has no history to load.
    """

    def __init__(self, log: RunLog, *, is_new_session: bool = False) -> None:
        self.log = log
        self.is_new_session = is_new_session
        self.stop_requested: Stop | None = None
        self.released = asyncio.Event()
        self.stage = Stage.QUEUED
        self._runner: Runner | None = None
        self.mailbox = Mailbox()  # for signals before there is a runner
        self._answers: list[ApprovalDecided | InputReceived] = []  # likewise
        self._deadline: asyncio.TimerHandle | None = None  # until there is a runner
        self.attended_at = asyncio.get_running_loop().time()
        self._opened_at = asyncio.get_running_loop().time()

    @property
    def run_id(self) -> str:
        return self.log.run_id

    @property
    def run(self) -> Run | None:
        """The run up to its last logged event, once it has a runner."""
        return self._runner.run if self._runner else None

    @property
    def age(self) -> float:
        """Seconds since the run was opened, in any process."""
        return asyncio.get_running_loop().time() - self._opened_at

    def set_deadline(self, timer: asyncio.TimerHandle) -> None:
        """Set the deadline timer while the run is queued; its runner takes over later."""
        self._deadline = timer

    def was_opened(self, seconds_ago: float) -> None:
        """Set the run's age from its first record."""
        self._opened_at = asyncio.get_running_loop().time() - max(0.0, seconds_ago)

    def begin(self, stage: Stage) -> bool:
        """Change from QUEUED to EXECUTING or CANCELLING; False if it is no longer queued."""
        if self.stage is not Stage.QUEUED:
            return False
        self.stage = stage
        return True

    def attach(self, runner: Runner) -> None:
        """Attach the runner, and deliver the signals that arrived before."""
        self._runner = runner
        if self._deadline:
            self._deadline.cancel()  # the runner keeps it, and pauses it during approvals
        for signal in (*self.mailbox.take(), *self._answers):
            runner.signal(signal)
        if self.stop_requested:
            runner.stop(self.stop_requested)
        if self.stage is Stage.HANDING_OVER:
            runner.hand_over()

    def stop(self, stop: Stop) -> bool:
        """End the run. Return False if it was stopped before."""
        if self.stop_requested is not None:
            return False
        self.stop_requested = stop
        if self._runner:
            self._runner.stop(stop)
        return True

    def signal(self, signal: Signal) -> bool:
        """Deliver a signal, ignoring duplicates. Return False if too many messages are queued."""
        match signal:
            case Aborted() | Failed():
                self.stop(signal)
            case _ if self._runner:
                self._runner.signal(signal)
            case ApprovalDecided() | InputReceived():
                if signal not in self._answers:
                    self._answers.append(signal)
            case MessageQueued() | QueueCleared():
                return self.mailbox.put(signal)
            case _:
                assert_never(signal)
        return True

    def attend(self) -> None:
        """Note that the run's caller is still waiting."""
        self.attended_at = asyncio.get_running_loop().time()

    def hand_over(self) -> None:
        """Leave an executing run for another process to continue."""
        if self.stage is Stage.EXECUTING:
            self.stage = Stage.HANDING_OVER
            if self._runner:
                self._runner.hand_over()

    def release(self) -> None:
        """Let go of the run, and end its local subscriptions."""
        self.stage = Stage.RELEASED
        if self._deadline:
            self._deadline.cancel()
        self.log.close()
        self.released.set()

    async def finish(self, run: Run, stop: Stop) -> Run:
        """Log the end of a run without a runner; return the run as it ended."""
        if run.phase is Phase.DONE:
            return run
        events: list[Event] = []
        ended = run
        for item in self.mailbox.take():
            if takes(ended, item):
                event = clearing(ended, item) if isinstance(item, QueueCleared) else item
                ended = apply_all(ended, [event])
                events.append(event)
        closing = list(closing_events(ended, stop))
        await self.log.append([*events, *closing])
        return apply_all(ended, closing)
