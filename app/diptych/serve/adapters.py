"""Builds an agent's adapters from its configuration: model, other agents, store, budgets."""

import secrets
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import aiohttp

from diptych.a2a.no_agents import NoAgents
from diptych.budgets.agent_budgets import AgentBudgets, BudgetTerms
from diptych.core.errors import ConfigError
from diptych.manifest.settings import NAMESPACE, RETENTION, AgentConfig, StoreConfig
from diptych.models.chat_model import ChatModel, ModelObserver
from diptych.models.connection import with_proxies
from diptych.models.scripted import ScriptedModel, read_script, script_problems
from diptych.net.outgoing import host_of, is_loopback_name
from diptych.ports import Clock, Model
from diptych.ports.stores import Stores
from diptych.stores.memory.budgets import MemoryLedger
from diptych.stores.memory.store import MemoryStore
from diptych.stores.memory.vault import MemoryVault

if TYPE_CHECKING:
    from diptych.a2a.agents import A2aAgents
    from diptych.a2a.in_process import InProcessAgents
    from diptych.a2a.local_agent import LocalAgent
    from diptych.mcp.sign_in import SignIns
    from diptych.stores.redis import RedisStore
    from diptych.stores.redis.server import RedisServer
    from diptych.stores.sqlite import SqliteStore

    Store: TypeAlias = RedisStore | SqliteStore


LOCAL_PERSON = "local"  # owns the tokens of an agent on loopback


class SystemClock:
    """Implements `ports.Clock`."""

    now = staticmethod(time.time)

    def token(self) -> str:
        return secrets.token_hex(16)


def check_mock_scripts(configs: Sequence[AgentConfig]) -> None:
    """Check every agent's script. Raises `ConfigError` with a line for each invalid one."""
    problems = [
        problem
        for config in configs
        if config.mock_responses is not None
        for problem in script_problems(config.mock_source, config.mock_responses)
    ]
    if problems:
        raise ConfigError(*problems)


def in_process_name(config: AgentConfig, model: Model | None) -> str | None:
    """Return the name of a model that is a script or Python object; None for an endpoint."""
    if config.mock_responses is not None:
        return "DEBUG_MOCK_RESPONSES"
    return None if model is None else type(model).__name__


def agent_model(
    config: AgentConfig,
    http: aiohttp.ClientSession,
    model: Model | None,
    observe: ModelObserver,
) -> Model:
    """Build an agent's model: a script, a Python object, or a client of its endpoint.

    Raises `ConfigError` without any.
    """
    if config.mock_responses is not None:
        return ScriptedModel(read_script(config.mock_responses))
    if model is not None:
        return model
    if config.model is None:
        raise ConfigError(f"{config.name}: a model is missing")
    return ChatModel(http, with_proxies(config.model), observe=observe)


def agent_client(
    config: AgentConfig, url: str, in_process: "Sequence[LocalAgent]" = ()
) -> "A2aAgents | InProcessAgents | NoAgents":
    """Build the client for other agents; `url` is the agent's own."""
    others = _agents_behind_urls(config, url) if config.agents else NoAgents()
    if not in_process:
        return others
    from diptych.a2a.in_process import InProcessAgents  # noqa: PLC0415 - heavy, rarely needed

    return InProcessAgents(in_process, others, own_name=config.name)


def _agents_behind_urls(config: AgentConfig, url: str) -> "A2aAgents":
    from diptych.a2a.agents import A2aAgents  # noqa: PLC0415 - heavy, and only needed here

    return A2aAgents(config.agents, config.public_url or url, own_name=config.name)


def check_store_url(url: str, setting: str) -> None:
    """Raise `ConfigError`, naming `setting`, for an invalid store URL."""
    from diptych.stores.redis.settings import read_url  # noqa: PLC0415 - heavy, and only needed here

    try:
        read_url(url)
    except ConfigError as error:
        raise ConfigError(f"{setting}: {error}") from None


def check_store_urls(configs: Sequence[AgentConfig]) -> None:
    """Check the store URLs.

    Raises `ConfigError` with a line for each invalid one. In pods they come from Secrets, are
    corrected while the pod waits, and are not checked here.
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


class RedisServers:
    """The Redis servers of a process, each shared by its agents."""

    def __init__(self) -> None:
        self._servers: dict[str, RedisServer] = {}  # by source

    def of(self, store: StoreConfig) -> "RedisServer":
        """Return the server of a store; without a source it is no other's."""
        from diptych.stores.redis.server import RedisServer  # noqa: PLC0415 - heavy

        server = RedisServer(store.url)
        return self._servers.setdefault(store.source, server) if store.source else server


def agent_store(config: AgentConfig, servers: RedisServers) -> "Store | str":
    """Make the store of an agent; where it has none, return why runs are in memory.

    Raises `ConfigError` for a data folder that cannot be used, unless it is only the default.
    """
    if config.store:
        from diptych.stores.redis import RedisSettings, RedisStore  # noqa: PLC0415 - heavy

        store = config.store
        settings = RedisSettings(store.url, store.prefix, store.retention)
        return RedisStore(settings, servers.of(store))
    if config.data:
        from diptych.stores.sqlite import SqliteStore, StoreNotOpened  # noqa: PLC0415 - as above

        is_namespaced = config.namespace != NAMESPACE
        name = f"{config.namespace}.{config.name}" if is_namespaced else config.name
        try:
            return SqliteStore(config.data.path / f"{name}.sqlite")
        except StoreNotOpened as error:
            if config.data.is_default:
                return f"{error}: runs are kept in memory, and end with the process"
            raise ConfigError(f"{config.data.setting}: {error}") from error
    return "runs are kept in memory, and end with the process"


def sign_ins(
    config: AgentConfig, url: str, store: "Store | None" = None, *, on_loopback: bool = False
) -> "SignIns | None":
    """Return what gets the OAuth tokens of an agent's tool servers; None if it needs none.

    Tokens are stored encrypted if there are keys, and otherwise kept in this process. `url` is the
    agent's address. `on_loopback` counts all callers as one person.
    """
    if not any(server.auth for server in config.tools):
        return None
    from diptych.mcp.sign_in import SignIns, Site  # noqa: PLC0415 - heavy, and rarely needed
    from diptych.mcp.tokens import TokenBook  # noqa: PLC0415 - as above

    if store and config.token_keys:
        book = TokenBook(store.vault, config.token_keys)
    else:
        book = TokenBook(MemoryVault())
    local_person = LOCAL_PERSON if url and on_loopback else ""
    return SignIns(book, Site(_browser_url(config, url).rstrip("/"), local_person))


def _browser_url(config: AgentConfig, url: str) -> str:
    """Return the agent's address for browsers; empty if there is none.

    The operator sets PUBLIC_URL to the address of the Service, which browsers do not reach.
    """
    if config.exposed_url:
        return config.exposed_url
    if config.public_url:
        is_service = host_of(config.public_url) == f"{config.name}.{config.namespace}"
        return "" if is_service else config.public_url
    return url if is_loopback_name(host_of(url)) else ""


def stores(store: "Store | None", memory: MemoryStore, clock: Clock) -> Stores:
    """Return the ports of the store that an agent has."""
    kept = store or memory
    return Stores(log=kept, sessions=kept, leases=kept, feed=kept, clock=clock)


def agent_budgets(config: AgentConfig, store: "Store | None", clock: Clock) -> AgentBudgets:
    """Return what counts the runs of an agent."""
    terms = BudgetTerms(
        config.definition.settings,
        config.budgets,
        config.model.max_tokens if config.model else None,
        store.retention if store else RETENTION,
    )
    return AgentBudgets(terms, store.ledger if store else MemoryLedger(), clock)
