"""The store in Redis: one object that implements all store ports, and owns the connections."""

from collections.abc import Sequence

from diptych.stores.redis.budgets import RedisLedger
from diptych.stores.redis.connection import RedisConnection
from diptych.stores.redis.event_log import RedisEventLog
from diptych.stores.redis.feed import RedisFeed
from diptych.stores.redis.leases import RedisLeases
from diptych.stores.redis.pushes import RedisPushes
from diptych.stores.redis.server import RedisServer
from diptych.stores.redis.settings import RedisSettings
from diptych.stores.redis.vault import RedisVault


class RedisStore(RedisFeed, RedisEventLog, RedisLeases, RedisPushes):
    """Implements `EventLog`, `Sessions`, `SessionLeases`, `Pushes` and `Feed` of `ports.stores`.

    `ledger` implements `ports.budgets.Ledger`, `vault` a `Vault`. Stores may share a `server`. Must
    be created inside an event loop.
    """

    name = "redis"

    def __init__(self, settings: RedisSettings, server: RedisServer | None = None) -> None:
        server = server or RedisServer(settings.url)
        super().__init__(settings, RedisConnection(server, settings.prefix))
        self.ledger = RedisLedger(self._connection)
        self.vault = RedisVault(self._connection)
        self.retention = settings.retention

    async def start(self) -> None:
        """Connect. An unreachable store is not an error; see `unavailable_reason`."""
        await self.start_feed()
        await self._connection.start()

    async def aclose(self) -> None:
        await self.close_feed()
        await self._connection.aclose()

    def unavailable_reason(self) -> str:
        """Return why the store is unavailable, and what to do; "" if it is available."""
        return self._connection.unavailable_reason()

    def full_reason(self) -> str:
        """Return since when the store is full; "" while it has room for new runs."""
        return self._connection.full_reason()

    def notes(self) -> Sequence[str]:
        """Say where runs are kept, and name settings of the server that endanger them."""
        return ["runs are kept in Redis, and outlive the process", *self._connection.server.notes]
