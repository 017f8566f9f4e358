"""The sessions that this process owns, by the leases that it holds, as far as it knows."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass

from diptych.ports.entries import Lease


@dataclass(slots=True)
class OwnedSession:
    """A session with its lease, and the task that executes its runs.

    The lease is surely held until `owned_until`, by the event loop's clock: after that another
    process may have the session.
    """

    lease: Lease
    task: asyncio.Task[None]
    owned_until: float

    @property
    def is_surely_owned(self) -> bool:
        """Whether no other process can have it: one that stands still does not know."""
        return asyncio.get_running_loop().time() < self.owned_until


class OwnedSessions:
    """Sessions by their ids. Where leases do not run out, `lease_seconds` is None."""

    def __init__(self, lease_seconds: float | None) -> None:
        self._lease_seconds = math.inf if lease_seconds is None else lease_seconds
        self._sessions: dict[str, OwnedSession] = {}

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(self._sessions)

    @property
    def leases(self) -> list[Lease]:
        return [session.lease for session in self._sessions.values()]

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        return [session.task for session in self._sessions.values()]

    def get(self, session_id: str) -> OwnedSession | None:
        """Give a session, if it is owned."""
        return self._sessions.get(session_id)

    def under(self, lease: Lease) -> OwnedSession | None:
        """Give a lease's session, unless it is owned under another lease by now."""
        session = self._sessions.get(lease.session_id)
        return session if session and session.lease == lease else None

    def add(self, lease: Lease, task: asyncio.Task[None], asked_at: float) -> None:
        """Own a session whose lease the store was asked for then."""
        until = asked_at + self._lease_seconds
        self._sessions[lease.session_id] = OwnedSession(lease, task, until)

    def remove(self, lease: Lease) -> None:
        """Own a lease's session no more."""
        if self.under(lease):
            del self._sessions[lease.session_id]

    def note_renewal(self, leases: Sequence[Lease], asked_at: float) -> None:
        """Note that leases are held for as long as they last, from when the store was asked."""
        for lease in leases:
            if session := self.under(lease):
                session.owned_until = asked_at + self._lease_seconds
