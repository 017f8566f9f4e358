"""The store of an agent, in memory or in Redis, and what counts its runs' budgets there.

Not here: the adapters (`adapters.in_memory`, `adapters.redis`), the rest of the agent
(`hosted_agent`).
"""

from typing import TYPE_CHECKING

from diptych.adapters.in_memory.budgets import MemoryLedger
from diptych.adapters.in_memory.leases import NullFeed
from diptych.adapters.in_memory.store import MemoryStore
from diptych.config.settings import RETENTION, AgentConfig
from diptych.ports import Clock
from diptych.runtime.agent_budgets import AgentBudgets, BudgetTerms, Observer
from diptych.runtime.stores import Stores

if TYPE_CHECKING:
    from diptych.adapters.redis import RedisStore


def redis_store(config: AgentConfig) -> "RedisStore | None":
    """Make the store in Redis, if the agent has one."""
    if config.store is None:
        return None
    from diptych.adapters.redis import RedisSettings, RedisStore  # noqa: PLC0415 - only needed here

    store = config.store
    return RedisStore(RedisSettings(store.url, store.prefix, store.retention))


def stores(redis: "RedisStore | None", memory: MemoryStore, clock: Clock) -> Stores:
    """Give the ports of the store that an agent has."""
    if redis:
        return Stores(log=redis, sessions=redis, leases=redis, feed=redis, clock=clock)
    return Stores(log=memory, sessions=memory, leases=memory.leases, feed=NullFeed(), clock=clock)


def agent_budgets(
    config: AgentConfig, redis: "RedisStore | None", clock: Clock, observe: Observer
) -> AgentBudgets:
    """Give what counts the runs of an agent."""
    terms = BudgetTerms(
        config.loop,
        config.budgets,
        config.model.max_tokens if config.model else None,
        config.store.retention if config.store else RETENTION,
    )
    return AgentBudgets(terms, redis.ledger if redis else MemoryLedger(), clock, observe)
