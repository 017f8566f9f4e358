"""The timers of one run: its deadline, and the end of approvals that nobody decides on."""

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from diptych.core.events import ApprovalDecided, ChildApprovalDecided, approval_id
from diptych.core.state import Run
from diptych.runs.deadline import Deadline

EXPIRED_ID = "expired"
GRACE_SECONDS = 60.0  # in which an agent below must say what became of a call that has expired

Expired: TypeAlias = ApprovalDecided | ChildApprovalDecided


class RunTimers:
    """Calls `end` at the deadline, and `expire` for each approval that waits for too long.

    `now` gives seconds since the epoch, as `expires_at` of approvals is: it holds whoever owned
    the run before.
    """

    def __init__(
        self,
        deadline: Deadline,
        now: Callable[[], float],
        expire: Callable[[Expired], None],
        end: Callable[[], None],
    ) -> None:
        self._deadline = deadline
        self._now = now
        self._expire = expire
        self._end = end
        self._end_timer: asyncio.TimerHandle | None = None
        self._approvals: dict[str, asyncio.TimerHandle] = {}

    def start(self) -> None:
        """Time the deadline; one that has passed ends the run now."""
        if self._end_timer:
            self._end_timer.cancel()
        self._end_timer, at, loop = None, self._deadline.at, asyncio.get_running_loop()
        if at is not None and at <= loop.time():
            self._end()
        elif at is not None:
            self._end_timer = loop.call_at(at, self._end)

    def watch(self, run: Run) -> None:
        """Time the approvals that wait; meanwhile the manifest's deadline stands still.

        It does so for calls of runs below too. Those are timed where they wait; of one whose agent
        says nothing for `GRACE_SECONDS` more it is taken that it waits no more.
        """
        is_asking = bool(run.open_approvals or run.child_approvals)
        if is_asking or self._approvals:
            self._time_approvals(run)
        if self._deadline.set_paused(is_asking):
            self.start()

    def in_time(self, run: Run, decided: Expired) -> Expired:
        """Give a decision as it counts: one that comes too late is that the call has expired.

        The timer says so itself, unless nobody owned the run at that time.
        """
        due = _due(run).get(decided.call_id) if isinstance(decided, ApprovalDecided) else None
        return due[1] if due and due[0] <= self._now() else decided

    def close(self) -> None:
        """Time nothing any more, and let go of the run, which has these timers."""
        self._time_approvals(None)
        if self._end_timer:
            self._end_timer.cancel()
        self._expire = self._end = _nothing

    def _time_approvals(self, run: Run | None) -> None:
        due = _due(run) if run else {}
        for call_id in self._approvals.keys() - due.keys():
            self._approvals.pop(call_id).cancel()
        for call_id in due.keys() - self._approvals.keys():
            at, expired = due[call_id]
            seconds = max(0.0, at - self._now())
            self._approvals[call_id] = asyncio.get_running_loop().call_later(
                seconds, self._expire, expired
            )


def _nothing(*_: object) -> None:
    pass


def _due(run: Run) -> dict[str, tuple[float, Expired]]:
    """Give when each call that waits is not waited for any more, and what is said then."""
    due: dict[str, tuple[float, Expired]] = {}
    for own in run.open_approvals:
        expired = ApprovalDecided(own.call.id, "reject", EXPIRED_ID, is_expired=True)
        due[own.call.id] = own.expires_at, expired
    for below in run.child_approvals:
        at = below.expires_at + GRACE_SECONDS
        due[approval_id(below.path)] = at, ChildApprovalDecided(below.path, "closed")
    return due
