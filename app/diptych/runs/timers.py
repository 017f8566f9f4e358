"""Timers for a run's deadline, and for the expiry of its approvals and questions.

The manifest's deadline pauses while one is open: people may take longer than a run.
"""

import asyncio
from collections.abc import Callable, Sequence

from diptych.core.events import (
    Answer,
    ApprovalDecided,
    ApprovalRequested,
    ChildAnswered,
    ChildAsked,
    InputReceived,
    InputRequested,
)
from diptych.core.state import OpenWait, Run

EXPIRED_ID = "expired"
GRACE_SECONDS = 60.0  # for a child agent to report on an expired call


class Deadline:
    """The deadlines of one run in event loop time; None for no limit."""

    def __init__(self, callers: float | None = None, own: float | None = None) -> None:
        self._callers = callers
        self._own = own
        self._stopped_at: float | None = None

    @property
    def at(self) -> float | None:
        """The time at which the run must end, as things stand."""
        own = self._own if self._stopped_at is None else None
        return min((each for each in (self._callers, own) if each is not None), default=None)

    @property
    def seconds_left(self) -> float | None:
        """The seconds left, at least 0; None for no limit."""
        at = self.at
        return None if at is None else max(at - asyncio.get_running_loop().time(), 0.0)

    @property
    def pauses(self) -> bool:
        """Whether the deadline that comes first can pause."""
        if self._own is None:
            return False
        return self._callers is None or self._own <= self._callers

    def set_paused(self, is_paused: bool) -> bool:
        """Pause or resume the manifest's deadline; return whether that changed it."""
        now = asyncio.get_running_loop().time()
        if is_paused == (self._stopped_at is not None):
            return False
        if self._stopped_at is not None and self._own is not None:
            self._own += now - self._stopped_at
        self._stopped_at = now if is_paused else None
        return True


class RunTimers:
    """Calls `end` at the deadline, and `expire` for each approval or question that expires.

    `now` returns seconds since the epoch, like the `expires_at` that former owners set.
    """

    def __init__(
        self,
        deadline: Deadline,
        now: Callable[[], float],
        expire: Callable[[Answer], None],
        end: Callable[[], None],
    ) -> None:
        self._deadline = deadline
        self._now = now
        self._expire = expire
        self._end = end
        self._end_timer: asyncio.TimerHandle | None = None
        self._waits: dict[str, asyncio.TimerHandle] = {}

    def start(self) -> None:
        """Start the deadline's timer; if it has passed, end the run now."""
        if self._end_timer:
            self._end_timer.cancel()
        self._end_timer, at, loop = None, self._deadline.at, asyncio.get_running_loop()
        if at is not None and at <= loop.time():
            self._end()
        elif at is not None:
            self._end_timer = loop.call_at(at, self._end)

    def watch(self, run: Run) -> None:
        """Time open approvals and questions; meanwhile, the manifest's deadline pauses.

        Children time their own; after `GRACE_SECONDS` more without a report, they count as closed.
        """
        if run.waits or self._waits:
            self._time_waits(run.waits)
        if self._deadline.set_paused(bool(run.waits)):
            self.start()

    def in_time(self, run: Run, answer: Answer) -> Answer:
        """Return the answer, or the call's expiry if it comes too late.

        Usually the timer has expired the call already, unless nobody owned the run then.
        """
        for wait in run.waits:
            at, expired = _expiry(wait)
            if wait.call_id == answer.call_id and at <= self._now():
                return expired
        return answer

    def close(self) -> None:
        """Stop all timers, and drop the references to the run."""
        self._time_waits(())
        if self._end_timer:
            self._end_timer.cancel()
        self._expire = self._end = _nothing

    def _time_waits(self, waits: Sequence[OpenWait]) -> None:
        for call_id in self._waits.keys() - {wait.call_id for wait in waits}:
            self._waits.pop(call_id).cancel()
        for wait in waits:
            if wait.call_id not in self._waits:
                at, expired = _expiry(wait)
                seconds = max(0.0, at - self._now())
                self._waits[wait.call_id] = asyncio.get_running_loop().call_later(
                    seconds, self._expire, expired
                )


def _nothing(*_: object) -> None:
    pass


def _expiry(wait: OpenWait) -> tuple[float, Answer]:
    """Return when a wait expires, and the event of that."""
    match wait.asked:
        case ApprovalRequested(expires_at=at):
            return at, ApprovalDecided(wait.call_id, "reject", EXPIRED_ID, is_expired=True)
        case InputRequested(expires_at=at):
            expired = InputReceived(wait.call_id, "cancel", EXPIRED_ID, wait.seq, is_expired=True)
            return at, expired
        case ChildAsked(kind=kind, expires_at=at):
            return at + GRACE_SECONDS, ChildAnswered(kind, wait.call_id, wait.seq)
