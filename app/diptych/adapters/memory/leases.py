"""Who owns which run where no other process shares the store: this one, all of them.

Leases never end and nothing happens elsewhere. The queues are as real as in a shared store.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence

from diptych.errors import LeaseLost
from diptych.loop.events import Signal
from diptych.loop.messages import Message
from diptych.ports import FeedItem, Notice
from diptych.ports.entries import Lease

Said = Callable[[str, Sequence[Message]], None]
"""Told what a run that has ended adds to its session's conversation."""


class ProcessLeases:
    """Fulfils `ports.SessionLeases`; nothing in here ever waits."""

    lease_seconds = None

    def __init__(self, said: Said) -> None:
        self._said = said
        self._queues: defaultdict[str, deque[str]] = defaultdict(deque)
        self._leases: dict[str, Lease] = {}

    def enqueue(self, session_id: str, run_id: str, token: str) -> Lease | None:
        """Put a new run at the end of its session's queue; a free session is claimed."""
        self._queues[session_id].append(run_id)
        return self._take(session_id, token)

    def check(self, lease: Lease) -> None:
        """Raise `LeaseLost` if a session is owned under another lease."""
        if self._leases.get(lease.session_id) != lease:
            raise LeaseLost("this session is owned under another lease")

    async def claim(self, session_id: str, token: str) -> Lease | None:
        return self._take(session_id, token) if session_id in self._queues else None

    async def next_run(self, lease: Lease) -> str | None:
        self.check(lease)
        if queue := self._queues[lease.session_id]:
            return queue[0]
        del self._queues[lease.session_id], self._leases[lease.session_id]
        return None

    async def finish_run(self, run_id: str, said: Sequence[Message], lease: Lease) -> str | None:
        self.check(lease)
        queue = self._queues[lease.session_id]
        if run_id in queue:
            queue.remove(run_id)
            self._said(run_id, said)
        return await self.next_run(lease)

    async def renew(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        return [lease for lease in leases if self._leases.get(lease.session_id) != lease]

    async def release(self, lease: Lease, *, hand_over: bool = False) -> None:
        del hand_over  # there is no other process
        if self._leases.get(lease.session_id) == lease:
            del self._leases[lease.session_id]

    async def unowned_sessions(self) -> Sequence[str]:
        return [name for name in self._queues if name not in self._leases]

    async def send_signal(self, run_id: str, demand: Signal) -> None:
        """Do nothing: whoever asks is the owner, and knows."""

    async def pending_signals(self, run_id: str) -> Sequence[Signal]:
        del run_id
        return ()

    async def may_be_truncated(self, run_id: str) -> bool:
        del run_id
        return False

    def _take(self, session_id: str, token: str) -> Lease | None:
        if session_id in self._leases:
            return None
        lease = self._leases[session_id] = Lease(session_id, token)
        return lease


class NullFeed:
    """Fulfils `ports.Feed` where nothing happens elsewhere."""

    def publish(self, run_id: str, notice: Notice) -> None:
        """Do nothing: whoever follows the run is here."""

    async def subscribe(self, run_id: str, put: Callable[[FeedItem], None]) -> Callable[[], None]:
        del run_id, put
        return lambda: None

    def on_signal(self, callback: Callable[[str, str, Signal], None]) -> None:
        """Do nothing: no other process sends any."""

    def on_session_released(self, callback: Callable[[str], None]) -> None:
        """Do nothing: there is no other process."""
