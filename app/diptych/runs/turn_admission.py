"""Says whether there is memory for a run whose turn it is, before anything of it is read.

A run that was put on record elsewhere may be larger than this process can hold, and may be what
its former owners died of. One that two of them died under is executed while no other such run is;
one that three died under is ended, in the end without being read. No other run ends with it that
did not share all those deaths.
"""

import asyncio
from dataclasses import dataclass

from diptych.core.errors import StoreError
from diptych.core.events import Failed
from diptych.net.memory_budget import MemoryBudget
from diptych.ports.entries import QueueHead
from diptych.ports.stores import Stores
from diptych.runs.active_run import ActiveRun

SUSPECT_DEATHS = 2  # of a run's owners, from which it is executed by itself
MAX_DEATHS = 3  # from which it is not executed any more
UNREAD_DEATHS = 6  # from which it is not even read to be ended
ROOM_SECONDS = 10.0  # for which a run whose turn has come waits for memory
LOADED = 6  # times the bytes of the store that a run takes here, of wide text at worst
_LOOK_SECONDS = 0.1
TOO_MANY_OWNERS = Failed(
    "too_many_owners", "every process that took this run up has died, or failed with it"
)
TOO_LARGE = Failed("out_of_memory", "this run is larger than what its agent can hold")


@dataclass(frozen=True, slots=True)
class Denial:
    """Why a run is ended instead of executed, and whether its record can be read for that."""

    why: Failed
    is_readable: bool = False


class AdmissionDeferred(StoreError):
    """A run whose turn has come cannot be executed here now; its session is released."""


class TurnAdmission:
    """Lets runs of other processes, and runs of long conversations, take their turn here."""

    def __init__(self, stores: Stores, memory_budget: MemoryBudget) -> None:
        self._stores = stores
        self.memory_budget = memory_budget
        self._suspect: str | None = None  # the one run that is executed by itself

    def may_claim(self, head: QueueHead) -> bool:
        """Whether it is any use to claim a session with this first run."""
        if head.deaths >= MAX_DEATHS or not self.memory_budget.can_ever_hold(LOADED * head.size):
            return True  # to end it
        if head.deaths >= SUSPECT_DEATHS and self._suspect not in (None, head.run_id):
            return False
        return self.memory_budget.has_room(LOADED * head.size)

    async def admit(self, active: ActiveRun) -> Denial | None:
        """Wait for room for a run whose turn it is, and hold it; or say that it must end instead.

        Raises `AdmissionDeferred`. A run in a new session was admitted when it was opened.
        """
        if active.is_new_session:
            return None
        head = await self._stores.leases.queue_head(active.log.session_id)
        if head is None or head.run_id != active.run_id:
            return None
        size = LOADED * head.size
        if not self.memory_budget.can_ever_hold(size):
            return Denial(TOO_LARGE)
        if head.deaths >= MAX_DEATHS:
            return Denial(TOO_MANY_OWNERS, is_readable=head.deaths < UNREAD_DEATHS)
        if head.deaths >= SUSPECT_DEATHS:
            if self._suspect not in (None, head.run_id):
                raise AdmissionDeferred("another run that owners died under is executed here now")
            self._suspect = head.run_id
        if size:
            await self._hold(active, size)
        return None

    def end(self, run_id: str) -> None:
        """Note that a run is executed no more."""
        if self._suspect == run_id:
            self._suspect = None

    async def _hold(self, active: ActiveRun, size: int) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + ROOM_SECONDS
        share = active.log.share
        while not self.memory_budget.has_room(size) and self.memory_budget.used > share.size:
            if loop.time() >= until:
                raise AdmissionDeferred("there is no memory for this run now")
            await asyncio.sleep(_LOOK_SECONDS)
        share.grow(size)
