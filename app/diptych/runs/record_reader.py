"""Reads a run's record for one subscriber, as much at a time as a batch may hold."""

import asyncio
from collections.abc import Callable, Sequence

from diptych.core.codec import TERMINAL, Record, record_chars
from diptych.core.errors import RunLost, StoreError
from diptych.runs.buffer import MAX_BUFFERED_CHARS
from diptych.runs.run_log import RunLog
from diptych.runs.stores import Stores

STORE_WAIT_SECONDS = 10.0  # for which a subscriber that has been served waits for a store
FIRST_BATCH = 50  # records that are read at once, until their size is known
MAX_BATCH = 500
_RETRY_SECONDS = 0.2


class RecordReader:
    """Reads from the run's log where there is one here, else from the store.

    Reading raises as `EventLog.read` does; `may_wait` says whether a store that is away may be
    waited for. `limit` is how many records are read at a time.
    """

    def __init__(self, stores: Stores, run_id: str, may_wait: Callable[[], bool]) -> None:
        self.limit = FIRST_BATCH
        self._stores = stores
        self._run_id = run_id
        self._may_wait = may_wait
        self._store_wait = 0.0  # a new subscriber is told at once that the store is away

    async def read(self, log: RunLog | None, after: int, limit: int) -> Sequence[Record]:
        """Read the records after a seq; some of these numbers may have no record."""
        found = log.after(after, limit) if log else await self._read_store(after, limit)
        self._store_wait = STORE_WAIT_SECONDS
        return found

    def fitting(self, records: Sequence[Record], *, has_more: bool) -> Sequence[Record]:
        """Give as many as a batch may hold, at least one, and learn how many to ask for."""
        chars = 0
        for n, record in enumerate(records):
            chars += record_chars(record)
            if n and chars > MAX_BUFFERED_CHARS:
                self.limit = n
                return records[:n]
        if has_more:
            self.limit = min(2 * self.limit, MAX_BATCH)
        return records

    async def holds(self, seq: int) -> bool:
        """Whether the store has a record of this number, readable or not; False if nobody knows."""
        try:
            return (await self._stores.log.entry(self._run_id)).seq >= seq
        except StoreError:
            return False

    async def has_between(self, after: int, before: int) -> bool:
        """Whether the store gives a record between two numbers."""
        return any(record.seq < before for record in await self._read_store(after, 1))

    async def has_more_at_end(self, after: int) -> bool:
        """Whether there is more to read after a seq, though there was nothing just now.

        Raises `RunLost` if the run has ended, and its end cannot be read: others have written into
        its record.
        """
        try:
            entry = await self._stores.log.entry(self._run_id)
            if entry.status not in TERMINAL:
                return False
            if await self._stores.log.read(self._run_id, after, 1):
                return True
            if (await self._stores.log.entry(self._run_id)).seq < entry.seq:
                return False  # the store has just lost its newest records
        except StoreError:  # whoever listens is told once it is back
            return False
        raise RunLost("the end of this run cannot be read: others have written into its record")

    async def _read_store(self, after: int, limit: int) -> Sequence[Record]:
        """Read from the store, and wait for one that is away if this subscriber can wait."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._store_wait
        while True:
            try:
                return await self._stores.log.read(self._run_id, after, limit)
            except StoreError:
                if loop.time() >= until or not self._may_wait():
                    raise
            await asyncio.sleep(_RETRY_SECONDS)
