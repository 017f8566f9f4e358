"""The store in Redis, whole: what the parts need is made, started and closed here."""

import asyncio
from collections.abc import Sequence

from diptych.adapters.redis.connection import Link
from diptych.adapters.redis.event_log import LogPart
from diptych.adapters.redis.feed import FeedPart
from diptych.adapters.redis.leases import LeasesPart
from diptych.adapters.redis.locator import MasterLocator
from diptych.adapters.redis.outbox import end
from diptych.adapters.redis.sessions import SessionsPart
from diptych.adapters.redis.settings import RedisSettings
from diptych.adapters.redis.subscriber import Subscriber


class RedisStore(LogPart, SessionsPart, LeasesPart, FeedPart):
    """Fulfils `ports.EventLog`, `Sessions`, `SessionLeases` and `Feed`.

    To be made inside an event loop.
    """

    def __init__(self, settings: RedisSettings) -> None:
        subscriber = Subscriber(MasterLocator(settings.url))
        super().__init__(settings, Link(MasterLocator(settings.url), settings.prefix), subscriber)
        self._telling: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Connect. A store that is away is no error: `problem` says so, until it is back."""
        self._subscriber.start()
        self._telling = asyncio.create_task(self.tell_what_is_untold(), name="redis-notices")
        await self._link.start()

    async def aclose(self) -> None:
        await end(self._telling)
        await self._subscriber.aclose()
        await self._link.aclose()

    def problem(self) -> str:
        """Say why the store cannot be used now, and what to do; empty if all is well."""
        return self._link.problem()

    def notes(self) -> Sequence[str]:
        """Say what about the store's setting endangers runs."""
        return self._link.server.notes
