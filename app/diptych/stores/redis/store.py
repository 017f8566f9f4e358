"""The store in Redis: all ports of it as one object, which opens and closes its connections."""

import asyncio
from collections.abc import Sequence

from diptych.stores.redis.budgets import RedisLedger
from diptych.stores.redis.connection import RedisConnection, cancel
from diptych.stores.redis.event_log import RedisEventLog
from diptych.stores.redis.feed import RedisFeed
from diptych.stores.redis.leases import RedisLeases
from diptych.stores.redis.settings import RedisSettings


class RedisStore(RedisFeed, RedisEventLog, RedisLeases):
    """Fulfils `ports.event_log.EventLog`, `Sessions`, `SessionLeases` and `Feed`.

    `ledger` fulfils `ports.budgets.Ledger`. Must be made inside an event loop.
    """

    def __init__(self, settings: RedisSettings) -> None:
        super().__init__(settings, RedisConnection(settings.url, settings.prefix))
        self.ledger = RedisLedger(self._connection)
        self._receiving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Connect. A store that is away is no error; `unavailable_reason` tells."""
        self._receiving = asyncio.create_task(self.receive_forever(), name="redis-feed")
        await self._connection.start()

    async def aclose(self) -> None:
        await cancel(self._receiving)
        await self._connection.aclose()

    def unavailable_reason(self) -> str:
        """Return why the store cannot be used now, and what to do; empty if it can."""
        return self._connection.unavailable_reason()

    def full_reason(self) -> str:
        """Return since when the store is full; empty while it has room for new runs."""
        return self._connection.full_reason()

    def notes(self) -> Sequence[str]:
        """Name settings of the server that endanger runs."""
        return self._connection.notes
