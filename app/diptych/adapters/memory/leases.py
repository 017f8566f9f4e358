"""Who owns which run where no other process shares the store: this one, all of them.

Leases never end and nothing happens elsewhere. The queues are as real as in a shared store.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence

from diptych.errors import StaleOwner
from diptych.loop.events import Demand
from diptych.loop.messages import Message
from diptych.ports import Heard, Notice
from diptych.ports.entries import Lease

Said = Callable[[str, Sequence[Message]], None]
"""Told what a run that has ended adds to its session's conversation."""


class SoleOwner:
    """Fulfils `ports.Ownership`; nothing in here ever waits."""

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
        """Raise `StaleOwner` if a session is owned under another lease."""
        if self._leases.get(lease.session_id) != lease:
            raise StaleOwner("this session is owned under another lease")

    async def claim(self, session_id: str, token: str) -> Lease | None:
        return self._take(session_id, token) if session_id in self._queues else None

    async def head(self, lease: Lease) -> str | None:
        self.check(lease)
        if queue := self._queues[lease.session_id]:
            return queue[0]
        del self._queues[lease.session_id], self._leases[lease.session_id]
        return None

    async def conclude(self, run_id: str, said: Sequence[Message], lease: Lease) -> str | None:
        self.check(lease)
        queue = self._queues[lease.session_id]
        if run_id in queue:
            queue.remove(run_id)
            self._said(run_id, said)
        return await self.head(lease)

    async def renew(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        return [lease for lease in leases if self._leases.get(lease.session_id) != lease]

    async def release(self, lease: Lease) -> None:
        if self._leases.get(lease.session_id) == lease:
            del self._leases[lease.session_id]

    async def unowned(self) -> Sequence[str]:
        return [name for name in self._queues if name not in self._leases]

    async def demand(self, run_id: str, demand: Demand) -> None:
        """Do nothing: whoever asks is the owner, and knows."""

    async def demanded(self, run_id: str) -> Sequence[Demand]:
        del run_id
        return ()

    async def has_lost_tail(self, run_id: str) -> bool:
        del run_id
        return False

    def _take(self, session_id: str, token: str) -> Lease | None:
        if session_id in self._leases:
            return None
        lease = self._leases[session_id] = Lease(session_id, token)
        return lease


class NoFeed:
    """Fulfils `ports.Feed` where nothing happens elsewhere."""

    def tell(self, run_id: str, notice: Notice) -> None:
        """Do nothing: whoever follows the run is here."""

    async def watch(self, run_id: str, put: Callable[[Heard], None]) -> Callable[[], None]:
        del run_id, put
        return lambda: None

    def heed(self, asked: Callable[[str, str, Demand], None]) -> None:
        """Do nothing: nobody else asks."""
