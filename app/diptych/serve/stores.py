"""The store of an agent, in memory or in Redis, and what counts its runs' budgets there."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from diptych.budgets.agent_budgets import AgentBudgets, BudgetTerms
from diptych.core.errors import ConfigError
from diptych.manifest.settings import RETENTION, AgentConfig
from diptych.ports import Clock
from diptych.ports.stores import Stores
from diptych.stores.memory.budgets import MemoryLedger
from diptych.stores.memory.leases import NullFeed
from diptych.stores.memory.store import MemoryStore

if TYPE_CHECKING:
    from diptych.stores.redis import RedisStore


def check_store_url(url: str, setting: str) -> None:
    """Raise `ConfigError`, which names `setting`, if no store can be reached by this URL."""
    from diptych.stores.redis.settings import read_url  # noqa: PLC0415 - heavy, and only needed here

    try:
        read_url(url)
    except ConfigError as error:
        raise ConfigError(f"{setting}: {error}") from None


def check_store_urls(configs: Sequence[AgentConfig]) -> None:
    """Check the URLs that are there. Raises `ConfigError` with a line for each that is wrong.

    Those of pods are left: they come from Secrets, and are corrected while the pod waits.
    """
    problems: list[str] = []
    for config in configs:
        if config.store and config.store.setting and (url := config.store.url()):
            try:
                check_store_url(url, config.store.setting)
            except ConfigError as error:
                problems += error.problems
    if problems:
        raise ConfigError(*problems)


def redis_store(config: AgentConfig) -> "RedisStore | None":
    """Make the store in Redis, if the agent has one."""
    if config.store is None:
        return None
    from diptych.stores.redis import RedisSettings, RedisStore  # noqa: PLC0415 - only needed here

    store = config.store
    return RedisStore(RedisSettings(store.url, store.prefix, store.retention))


def stores(redis: "RedisStore | None", memory: MemoryStore, clock: Clock) -> Stores:
    """Give the ports of the store that an agent has."""
    if redis:
        return Stores(log=redis, sessions=redis, leases=redis, feed=redis, clock=clock)
    return Stores(log=memory, sessions=memory, leases=memory.leases, feed=NullFeed(), clock=clock)


def agent_budgets(config: AgentConfig, redis: "RedisStore | None", clock: Clock) -> AgentBudgets:
    """Give what counts the runs of an agent."""
    terms = BudgetTerms(
        config.definition.settings,
        config.budgets,
        config.model.max_tokens if config.model else None,
        config.store.retention if config.store else RETENTION,
    )
    return AgentBudgets(terms, redis.ledger if redis else MemoryLedger(), clock)
