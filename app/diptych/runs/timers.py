"""Timers for a run's deadline, and for the expiry of its approvals and questions.

The manifest's deadline pauses while one is open: people may take longer than a run.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from diptych.core.events import (
    ApprovalDecided,
    ChildApprovalDecided,
    InputReceived,
    approval_id,
)
from diptych.core.state import Run

EXPIRED_ID = "expired"
GRACE_SECONDS = 60.0  # for a child agent to report on an expired call

Answer: TypeAlias = ApprovalDecided | ChildApprovalDecided | InputReceived
"""The end of a wait: from somebody, or by expiry."""


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
        is_asking = bool(run.open_approvals or run.child_approvals or run.open_inputs)
        if is_asking or self._waits:
            self._time_waits(run)
        if self._deadline.set_paused(is_asking):
            self.start()

    def in_time(self, run: Run, answer: Answer) -> Answer:
        """Return the answer, or the call's expiry if it comes too late.

        Usually the timer has expired the call already, unless nobody owned the run then.
        """
        if isinstance(answer, ChildApprovalDecided):
            return answer
        due = _due(run).get(answer.call_id)
        return due[1] if due and due[0] <= self._now() else answer

    def close(self) -> None:
        """Stop all timers, and drop the references to the run."""
        self._time_waits(None)
        if self._end_timer:
            self._end_timer.cancel()
        self._expire = self._end = _nothing

    def _time_waits(self, run: Run | None) -> None:
        due = _due(run) if run else {}
        for call_id in self._waits.keys() - due.keys():
            self._waits.pop(call_id).cancel()
        for call_id in due.keys() - self._waits.keys():
            at, expired = due[call_id]
            seconds = max(0.0, at - self._now())
            self._waits[call_id] = asyncio.get_running_loop().call_later(
                seconds, self._expire, expired
            )


def _nothing(*_: object) -> None:
    pass


def _due(run: Run) -> dict[str, tuple[float, Answer]]:
    """Return the expiry time and event of each open approval and question."""
    due: dict[str, tuple[float, Answer]] = {}
    for own in run.open_approvals:
        rejected = ApprovalDecided(own.call.id, "reject", EXPIRED_ID, is_expired=True)
        due[own.call.id] = own.expires_at, rejected
    for below in run.child_approvals:
        at = below.expires_at + GRACE_SECONDS
        due[approval_id(below.path)] = at, ChildApprovalDecided(below.path, "closed")
    for opened in run.open_inputs:
        asked, at = opened.requested, opened.requested.expires_at
        expired = InputReceived(asked.call_id, "cancel", EXPIRED_ID, opened.seq, is_expired=True)
        if asked.below:
            at, expired = at + GRACE_SECONDS, replace(expired, action="closed")
        due[asked.call_id] = at, expired
    return due
