"""The leases and the feed of a store used by one process only.

Leases never expire, and nothing is published. The queues work as in a shared store.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Sequence

from diptych.core.errors import LeaseLost
from diptych.core.events import Signal
from diptych.core.messages import Message
from diptych.ports import FeedItem, Notice
from diptych.ports.entries import Lease, QueueHead


class MemoryLeases:
    """Implements `ports.SessionLeases` and `ports.Feed`; no method blocks."""

    lease_seconds: float | None = None

    def __init__(self) -> None:
        self._queues: defaultdict[str, deque[str]] = defaultdict(deque)
        self._leases: dict[str, Lease] = {}

    def _add_messages(self, run_id: str, messages: Sequence[Message]) -> None:
        """Add the messages of a finished run to its session's conversation."""
        raise NotImplementedError

    def _enqueue(self, session_id: str, run_id: str, token: str) -> Lease | None:
        """Append a new run to its session's queue; claim the session if it has no owner."""
        self._queues[session_id].append(run_id)
        return self._claim(session_id, token)

    def _queued(self, session_id: str) -> Collection[str]:
        """Return the runs in a session's queue."""
        return self._queues.get(session_id, ())

    def _check(self, lease: Lease) -> None:
        """Raise `LeaseLost` if the session is owned under another lease."""
        if self._leases.get(lease.session_id) != lease:
            raise LeaseLost("this session is owned under another lease")

    async def claim(self, session_id: str, token: str) -> Lease | None:
        return self._claim(session_id, token) if session_id in self._queues else None

    async def queue_head(self, session_id: str) -> QueueHead | None:
        queue = self._queues.get(session_id)
        return QueueHead(queue[0]) if queue else None

    async def next_run(self, lease: Lease) -> str | None:
        self._check(lease)
        if queue := self._queues[lease.session_id]:
            return queue[0]
        del self._queues[lease.session_id], self._leases[lease.session_id]
        return None

    async def finish_run(self, run_id: str, said: Sequence[Message], lease: Lease) -> str | None:
        self._check(lease)
        queue = self._queues[lease.session_id]
        if run_id in queue:
            queue.remove(run_id)
            self._add_messages(run_id, said)
        return await self.next_run(lease)

    async def renew(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        return [lease for lease in leases if self._leases.get(lease.session_id) != lease]

    async def release(self, lease: Lease, *, hand_over: bool = False) -> None:
        del hand_over  # there is no other process
        if self._leases.get(lease.session_id) == lease:
            del self._leases[lease.session_id]

    async def unowned_sessions(self) -> Sequence[str]:
        return [name for name in self._queues if name not in self._leases]

    async def overdue_runs(self) -> Sequence[str]:
        return ()  # the caller that queued them is in this process, and enforces deadlines

    async def send_signal(self, run_id: str, signal: Signal) -> None:
        """Do nothing: the caller is the owner, and handles the signal itself."""

    def drop_signal(self, run_id: str, signal: Signal) -> None:
        """Do nothing: no signals are stored."""

    async def pending_signals(self, run_id: str) -> Sequence[Signal]:
        del run_id
        return ()

    async def may_be_truncated(self, run_id: str) -> bool:
        del run_id
        return False

    def _claim(self, session_id: str, token: str) -> Lease | None:
        if session_id in self._leases:
            return None
        lease = self._leases[session_id] = Lease(session_id, token)
        return lease

    # The feed

    def publish_notice(self, run_id: str, notice: Notice) -> None:
        """Do nothing: all subscribers are in this process."""

    async def subscribe(self, run_id: str, put: Callable[[FeedItem], None]) -> Callable[[], None]:
        del run_id, put
        return lambda: None

    def on_signal(self, callback: Callable[[str, str, Signal], None]) -> None:
        """Do nothing: no other process sends signals."""

    def on_hand_over(self, callback: Callable[[str], None]) -> None:
        """Do nothing: there is no other process."""
