"""The store in Redis: all ports of it as one object, which opens and closes its connections."""

import asyncio
from collections.abc import Sequence

from diptych.stores.redis.budgets import RedisLedger
from diptych.stores.redis.connection import MultiplexedConnection
from diptych.stores.redis.event_log import RedisEventLog
from diptych.stores.redis.feed import RedisFeed
from diptych.stores.redis.leases import RedisLeases
from diptych.stores.redis.locator import MasterLocator
from diptych.stores.redis.pubsub import PubSubConnection
from diptych.stores.redis.sessions import RedisSessions
from diptych.stores.redis.settings import RedisSettings
from diptych.stores.redis.tasks import cancel


class RedisStore(RedisFeed, RedisEventLog, RedisSessions, RedisLeases):
    """Fulfils `ports.event_log.EventLog`, `Sessions`, `SessionLeases` and `Feed`.

    `ledger` fulfils `ports.budgets.Ledger`. Must be made inside an event loop.
    """

    def __init__(self, settings: RedisSettings) -> None:
        pubsub = PubSubConnection(MasterLocator(settings.url))
        connection = MultiplexedConnection(MasterLocator(settings.url), settings.prefix)
        super().__init__(settings, connection, pubsub)
        self.ledger = RedisLedger(settings, connection)
        self._publishing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Connect. A store that is away is no error; `unavailable_reason` tells."""
        self._pubsub.start()
        self._publishing = asyncio.create_task(self.publish_notices_forever(), name="redis-notices")
        await self._connection.start()

    async def aclose(self) -> None:
        await cancel(self._publishing)
        await self._pubsub.aclose()
        await self._connection.aclose()

    def unavailable_reason(self) -> str:
        """Say why the store cannot be used now, and what to do; empty if it can."""
        return self._connection.unavailable_reason()

    def full_reason(self) -> str:
        """Return since when the store is full; empty while it has room for new runs."""
        return self._connection.full_reason()

    def notes(self) -> Sequence[str]:
        """Name settings of the server that endanger runs."""
        return self._connection.server.notes
