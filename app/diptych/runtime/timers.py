"""The timers of one run: its deadline, and the end of approvals that nobody decides on.

Not here: what either leads to (`runner`, `loop.approvals`).
"""

import asyncio
from collections.abc import Callable, Sequence

from diptych.loop.approval_events import ApprovalDecided, ApprovalRequested
from diptych.runtime.deadline import Deadline

EXPIRED_ID = "expired"


class RunTimers:
    """Calls `end` at the deadline, and `reject` for each approval that waits for too long.

    `now` gives seconds since the epoch, as `expires_at` of approvals is: it holds whoever owned
    the run before.
    """

    def __init__(
        self,
        deadline: Deadline,
        now: Callable[[], float],
        reject: Callable[[ApprovalDecided], None],
        end: Callable[[], None],
    ) -> None:
        self._deadline = deadline
        self._now = now
        self._reject = reject
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

    def watch(self, waiting: Sequence[ApprovalRequested]) -> None:
        """Time the approvals that wait; meanwhile the manifest's deadline stands still."""
        self._time_approvals(waiting)
        if self._deadline.stand_still(is_waiting=bool(waiting)):
            self.start()

    def cancel(self) -> None:
        """Time nothing any more."""
        self._time_approvals(())
        if self._end_timer:
            self._end_timer.cancel()

    def _time_approvals(self, waiting: Sequence[ApprovalRequested]) -> None:
        due = {each.call.id: each.expires_at for each in waiting}
        for call_id in self._approvals.keys() - due.keys():
            self._approvals.pop(call_id).cancel()
        for call_id in due.keys() - self._approvals.keys():
            seconds = max(0.0, due[call_id] - self._now())
            expired = ApprovalDecided(call_id, "reject", EXPIRED_ID, is_expired=True)
            self._approvals[call_id] = asyncio.get_running_loop().call_later(
                seconds, self._reject, expired
            )
