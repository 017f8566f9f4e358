"""Limits a process's connections.

At the limit an idle connection is closed to make room. If none is idle, new requests are refused,
except the platform's probes. A stalled connection, whose peer reads nothing, counts against the
memory budget; when others find no memory, the longest stalled one is closed.
"""

import asyncio
import resource
from collections import OrderedDict
from typing import Protocol

from diptych.net.memory_budget import MemoryBudget, Share

MAX_CONNECTIONS = 2_048  # at a time; fewer where the process may open fewer files
SPARE_CONNECTIONS = 64  # beyond those, for the platform's probes
STALLED_SIZE = 2**20  # bytes that a stalled one costs: its frames, our buffer and the kernel's
PATIENCE_SECONDS = 10.0  # for which one may take nothing while there is no room for others
_OTHER_FILES = 128  # descriptors for everything else


class Connection(Protocol):
    """One connection."""

    def abort(self) -> None:
        """Close it at once."""


class Connections:
    """The connections of one server.

    `idle` ones have no request in progress, `stalled` ones read nothing of a response; both in the
    order in which they became so.
    """

    def __init__(
        self, memory_budget: MemoryBudget | None = None, most: int = MAX_CONNECTIONS
    ) -> None:
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        spare = files - _OTHER_FILES - SPARE_CONNECTIONS
        self.most = most if files == resource.RLIM_INFINITY else min(most, max(16, spare))
        self.memory_budget = memory_budget or MemoryBudget()
        self._all: set[Connection] = set()
        self.idle: OrderedDict[Connection, None] = OrderedDict()
        self.stalled: OrderedDict[Connection, tuple[Share, float]] = OrderedDict()
        self.memory_budget.on_full = self.end_longest_stalled

    @property
    def count(self) -> int:
        return len(self._all)

    def add(self, connection: Connection) -> None:
        """Add an idle connection; at the limit close another idle one."""
        if self.count >= self.most + SPARE_CONNECTIONS and self.idle:
            self._end_idle()
        self._all.add(connection)
        self.idle[connection] = None

    def begin(self, connection: Connection) -> bool:
        """Mark a connection busy; False if there is no room to answer its request."""
        self.idle.pop(connection, None)
        if self.count - len(self.idle) > self.most:
            return False
        while self.count > self.most:
            self._end_idle()
        return True

    def end(self, connection: Connection) -> None:
        """Mark a connection idle."""
        self.idle[connection] = None

    def remove(self, connection: Connection) -> None:
        self._all.discard(connection)
        self.idle.pop(connection, None)
        self.resume(connection)

    def _end_idle(self) -> None:
        longest, _ = self.idle.popitem(last=False)
        self._all.discard(longest)
        longest.abort()

    def stall(self, connection: Connection) -> None:
        """Count a stalled response's memory; without room close the longest stalled connection."""
        if not self.memory_budget.has_room(STALLED_SIZE):
            self.end_longest_stalled(after=0.0)
        share = self.memory_budget.share()
        share.grow(STALLED_SIZE)
        self.stalled[connection] = share, asyncio.get_running_loop().time()

    def end_longest_stalled(self, after: float = PATIENCE_SECONDS) -> None:
        """Close the longest stalled connection, once it has been stalled long enough."""
        for connection, (_, since) in self.stalled.items():
            if asyncio.get_running_loop().time() - since >= after:
                connection.abort()
            return

    def resume(self, connection: Connection) -> None:
        if held := self.stalled.pop(connection, None):
            held[0].release()
