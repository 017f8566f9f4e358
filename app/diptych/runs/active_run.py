"""The handle of a run in this process: its log, its stage, its signals."""

import asyncio
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
from diptych.runs.run_log import RunLog
from diptych.runs.runner import Runner
from diptych.runs.steering import Mailbox


class Stage(Enum):
    """How far a run has come in this process."""

    QUEUED = "queued"  # in its session: its turn has not come
    EXECUTING = "executing"  # its turn has come
    CANCELLING = "cancelling"  # it is being ended before its turn
    HANDING_OVER = "handing over"  # its turn had come, and another process is to go on
    RELEASED = "released"  # this process has nothing to do with it any more


class ActiveRun:
    """A run that this process has queued or executes.

    Signals that arrive before it has a runner are kept. `stop_requested` is the first reason for
    which it was asked to end. A new session has no history to load.
    """

    def __init__(self, log: RunLog, *, is_new_session: bool = False) -> None:
        self.log = log
        self.is_new_session = is_new_session
        self.stop_requested: Stop | None = None
        self.released = asyncio.Event()
        self.stage = Stage.QUEUED
        self._runner: Runner | None = None
        self.mailbox = Mailbox()  # until there is a runner
        self._decisions: dict[str, ApprovalDecided] = {}  # likewise, by call
        self._deadline: asyncio.TimerHandle | None = None  # while it waits
        self.attended_at = asyncio.get_running_loop().time()
        self._opened_at = asyncio.get_running_loop().time()

    @property
    def run_id(self) -> str:
        return self.log.run_id

    @property
    def run(self) -> Run | None:
        """The run as far as it is on record, once it has a runner."""
        return self._runner.run if self._runner else None

    @property
    def age(self) -> float:
        """Seconds since the run was opened, wherever that was."""
        return asyncio.get_running_loop().time() - self._opened_at

    def set_deadline(self, timer: asyncio.TimerHandle) -> None:
        """Time the run while it waits; its runner keeps its deadline then."""
        self._deadline = timer

    def was_opened(self, seconds_ago: float) -> None:
        """Count the run's age from its first record."""
        self._opened_at = asyncio.get_running_loop().time() - max(0.0, seconds_ago)

    def begin(self, stage: Stage) -> bool:
        """Go from QUEUED to EXECUTING or CANCELLING; False if the run is not queued any more."""
        if self.stage is not Stage.QUEUED:
            return False
        self.stage = stage
        return True

    def attach(self, runner: Runner) -> None:
        """Hand the run to its runner, with the signals that came before."""
        self._runner = runner
        if self._deadline:
            self._deadline.cancel()  # the runner has it, and knows when it stands still
        for signal in (*self.mailbox.take(), *self._decisions.values()):
            runner.signal(signal)
        if self.stop_requested:
            runner.stop(self.stop_requested)
        if self.stage is Stage.HANDING_OVER:
            runner.hand_over()

    def stop(self, stop: Stop) -> bool:
        """End the run. False if it was asked before."""
        if self.stop_requested is not None:
            return False
        self.stop_requested = stop
        if self._runner:
            self._runner.stop(stop)
        return True

    def signal(self, signal: Signal) -> bool:
        """Deliver a signal; what comes twice counts once. False if too many messages wait."""
        match signal:
            case Aborted() | Failed():
                self.stop(signal)
            case _ if self._runner:
                self._runner.signal(signal)
            case ApprovalDecided():
                self._decisions.setdefault(signal.call_id, signal)
            case MessageQueued() | QueueCleared():
                return self.mailbox.put(signal)
            case _:
                assert_never(signal)
        return True

    def attend(self) -> None:
        """Note that the run's caller waits now, by the event loop's clock."""
        self.attended_at = asyncio.get_running_loop().time()

    def hand_over(self) -> None:
        """Leave a run whose turn has come as it is, for another process to go on."""
        if self.stage is Stage.EXECUTING:
            self.stage = Stage.HANDING_OVER
            if self._runner:
                self._runner.hand_over()

    def release(self) -> None:
        """Forget the run, and end its local subscriptions."""
        self.stage = Stage.RELEASED
        if self._deadline:
            self._deadline.cancel()
        self.log.close()
        self.released.set()

    async def finish(self, run: Run, stop: Stop) -> Run:
        """Record the end of a run without a runner; returns the run as it ended."""
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
