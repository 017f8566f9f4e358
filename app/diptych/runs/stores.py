"""The store ports that runs need, as one value."""

from dataclasses import dataclass

from diptych.core.errors import RunLost, RunNotFound, StoreError
from diptych.ports import Clock, Feed, SessionLeases
from diptych.ports.event_log import EventLog, Sessions


@dataclass(frozen=True, slots=True)
class Stores:
    """The log of runs, their sessions, leases and feed, and the clock that dates and names them."""

    log: EventLog
    sessions: Sessions
    leases: SessionLeases
    feed: Feed
    clock: Clock

    async def has_lost(self, run_id: str) -> bool:
        """Whether the store has lost a run; False while the store cannot be asked."""
        try:
            await self.log.entry(run_id)
        except (RunLost, RunNotFound):
            return True
        except StoreError:
            return False
        return False
