"""Which events of a task its caller lets in: each once, and no more than can be looked at."""

from collections.abc import Callable
from dataclasses import replace

from diptych.a2a.events import event_size
from diptych.ports import ChildEvent

MAX_EVENTS = 20_000  # of one delegation
MAX_PATHS = 1_000  # runs below it
BURST, EVENTS_PER_SECOND = 1_000, 400.0
MAX_APPROVAL_BYTES = 4 * 2**20
"""Of all approvals of one delegation: each is recorded, and shown to people."""
_ALWAYS = frozenset({"approval_requested", "approval_decided"})  # they change what can be done


class EventGate:
    """Lets events of one delegation through, by `now`, a clock in seconds.

    A task that is subscribed to again tells its events again: those that came are left out. Those
    that are too many are dropped, and the next one that comes through says how many (`skipped`).
    Approvals are never dropped for coming fast, only for being too many, or too large together.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._seen: dict[tuple[str, ...], int] = {}  # by path, the newest seq
        self._count = 0
        self._approval_bytes = 0
        self._tokens, self._filled_at = float(BURST), now()
        self._skipped = 0

    @property
    def is_dropping(self) -> bool:
        """Whether what came last was too much."""
        return self._skipped > 0

    def admit(self, event: ChildEvent) -> ChildEvent | None:
        """Give the event if it is new and there is room for it, else None."""
        if event.seq and event.seq <= self._seen.get(event.path, 0):
            return None
        has_place = event.path in self._seen or len(self._seen) < MAX_PATHS
        is_full = self._count >= MAX_EVENTS or not (has_place and self._has_room_for(event))
        if is_full or not self._has_time_for(event):
            self._skipped += 1
            return None
        self._count += 1
        if event.seq:
            self._seen[event.path] = event.seq
        skipped, self._skipped = self._skipped, 0
        return replace(event, skipped=skipped)

    def _has_room_for(self, event: ChildEvent) -> bool:
        if event.type not in _ALWAYS:
            return True
        size = event_size(event.content, event.metadata)
        if self._approval_bytes + size > MAX_APPROVAL_BYTES:
            return False
        self._approval_bytes += size
        return True

    def _has_time_for(self, event: ChildEvent) -> bool:
        now = self._now()
        self._tokens = min(BURST, self._tokens + (now - self._filled_at) * EVENTS_PER_SECOND)
        self._filled_at = now
        if self._tokens < 1:
            return event.type in _ALWAYS
        self._tokens -= 1
        return True
