"""Where the runs and sessions of an agent are stored: in a Redis, or in memory.

Not here: the stores themselves (`adapters`).
"""

from typing import TYPE_CHECKING

from diptych.adapters.memory.leases import NullFeed
from diptych.adapters.memory.store import MemoryStore
from diptych.config.settings import AgentConfig
from diptych.ports import Clock
from diptych.runtime.stores import Stores

if TYPE_CHECKING:
    from diptych.adapters.redis import RedisStore


def redis_store(config: AgentConfig) -> "RedisStore | None":
    """Give the Redis that an agent's configuration names, if any."""
    if config.store is None:
        return None
    from diptych.adapters.redis import RedisSettings, RedisStore  # noqa: PLC0415 - only needed here

    store = config.store
    return RedisStore(RedisSettings(store.url, store.prefix, store.retention))


def stores(redis: "RedisStore | None", memory: MemoryStore, clock: Clock) -> Stores:
    """Give the stores of an agent: in its Redis, or in memory."""
    if redis:
        return Stores(log=redis, sessions=redis, leases=redis, feed=redis, clock=clock)
    return Stores(log=memory, sessions=memory, leases=memory.leases, feed=NullFeed(), clock=clock)
