"""Checks for memory before a run is read and executed at its turn.

A run logged by another process may exceed this one's memory, and may have killed its former owners.
After two deaths, a run executes only while no other such run does; after three, it is ended, and
after six, without being read. Thus only runs that shared all those deaths are ended.
"""

import asyncio
from dataclasses import dataclass

from diptych.core.errors import StoreError
from diptych.core.events import Failed
from diptych.net.memory_budget import MemoryBudget
from diptych.ports.entries import QueueHead
from diptych.ports.stores import Stores
from diptych.runs.active_run import ActiveRun

SUSPECT_DEATHS = 2  # of owners, after which a run is isolated from others like it
MAX_DEATHS = 3  # after which a run is ended
UNREAD_DEATHS = 6  # after which it is ended without being read
ROOM_SECONDS = 10.0  # to wait for memory at a run's turn
LOADED = 6  # ratio of memory to stored bytes, at worst (wide text)
_LOOK_SECONDS = 0.1
TOO_MANY_OWNERS = Failed("too_many_owners", "every process that executed this run died or failed")
TOO_LARGE = Failed("out_of_memory", "this run exceeds its agent's memory")


@dataclass(frozen=True, slots=True)
class Denial:
    """Why a run is ended instead of executed, and whether its log can be read for that."""

    why: Failed
    is_readable: bool = False


class AdmissionDeferred(StoreError):
    """A run cannot be executed here for now; its session is released."""


class TurnAdmission:
    """Controls the execution of runs from other processes, and of long sessions."""

    def __init__(self, stores: Stores, memory_budget: MemoryBudget) -> None:
        self._stores = stores
        self.memory_budget = memory_budget
        self._suspect: str | None = None  # the isolated run

    def may_claim(self, head: QueueHead) -> bool:
        """Whether claiming a session with this first run makes sense."""
        if head.deaths >= MAX_DEATHS or not self.memory_budget.can_ever_hold(LOADED * head.size):
            return True  # to end it
        if head.deaths >= SUSPECT_DEATHS and self._suspect not in (None, head.run_id):
            return False
        return self.memory_budget.has_room(LOADED * head.size)

    async def admit(self, active: ActiveRun) -> Denial | None:
        """Wait for memory for a run whose turn it is, and reserve it; or deny the run.

        Raises `AdmissionDeferred`. Runs in new sessions were admitted when opened.
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
                raise AdmissionDeferred("another run that killed its owners is executing here")
            self._suspect = head.run_id
        if size:
            await self._hold(active, size)
        return None

    def end(self, run_id: str) -> None:
        """Note that a run has stopped executing."""
        if self._suspect == run_id:
            self._suspect = None

    async def _hold(self, active: ActiveRun, size: int) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + ROOM_SECONDS
        share = active.log.share
        while not self.memory_budget.has_room(size) and self.memory_budget.used > share.size:
            if loop.time() >= until:
                raise AdmissionDeferred("there is not enough memory for this run now")
            await asyncio.sleep(_LOOK_SECONDS)
        share.grow(size)
