"""What an agent and its process are configured with: resolved, checked, frozen. And the defaults.

All times are seconds. Every default is defined once, here or in `LoopSettings`: the manifest's
models and the environment's form read it.

Not here: where the values come from (`loader`, `environment`), what they do.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from diptych.errors import ConfigError
from diptych.loop.events import LoopSettings
from diptych.ports import Secret

LogLevel: TypeAlias = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]
ToolFunction: TypeAlias = Callable[..., Any]
"""A plain typed Python function, sync or async, that is a tool."""

NAMESPACE: Final = "default"
DEADLINE: Final = 300.0  # of a run
CALL_TIMEOUT: Final = 60.0  # of a tool call
RETENTION: Final = 24 * 3600.0  # of a session, after its last run
ALL_TOOLS: Final = ("*",)


@dataclass(frozen=True, slots=True)
class TimeoutConfig:
    """How long a model may take.

    `connect` and `first_byte` count from the start of an attempt, `idle` from the last line of the
    reply, `total` from the start of the first attempt.
    """

    connect: float = 5.0
    first_byte: float = 60.0
    idle: float = 30.0
    total: float = 300.0


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A model behind an OpenAI-compatible endpoint; the endpoint decides what is None.

    `endpoint` is the URL that `/chat/completions` is added to; a query in it stays. `api_key` is
    read at each request, so that a rotated key takes effect. `proxy` is the URL of an HTTP proxy.
    """

    name: str
    endpoint: str = field(repr=False)
    api_key: Secret | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    reasoning_effort: str | None = None
    timeouts: TimeoutConfig = field(default_factory=TimeoutConfig)
    proxy: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class OverrideConfig:
    """What a manifest says about the tools whose names match the glob `tool`; None says nothing.

    Of several overrides that match a tool, the first that sets a field counts.
    """

    tool: str
    read_only: bool | None = None
    idempotent: bool | None = None
    sequential: bool | None = None
    terminal: bool | None = None
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class ToolConfig:
    """One MCP server: exactly one of `url`, `command` (stdio) and `functions` (in this process).

    `allow` holds globs of tool names. `headers` are read at every request, `env` when the command
    starts. `timeout` bounds one call, with all that it waits for. Raises `ConfigError`.
    """

    name: str
    url: str | None = None
    command: tuple[str, ...] = ()
    functions: tuple[ToolFunction, ...] = ()
    env: Mapping[str, Secret | str] = field(default_factory=dict)
    headers: Mapping[str, Secret] = field(default_factory=dict)
    allow: tuple[str, ...] = ALL_TOOLS
    timeout: float = CALL_TIMEOUT
    overrides: tuple[OverrideConfig, ...] = ()

    def __post_init__(self) -> None:
        if sum(map(bool, (self.url, self.command, self.functions))) != 1:
            raise ConfigError(
                f"tool server {self.name}: give exactly one of url, command and functions"
            )
        if self.timeout <= 0:
            raise ConfigError(f"tool server {self.name}: timeout must be more than 0 seconds")


@dataclass(frozen=True, slots=True)
class PeerConfig:
    """An agent that this one may delegate to.

    `name` is what the model calls it, `url` its base URL or that of its agent card. An agent with
    `share_context` gets the conversation, and its card may say where it is reached. `headers` go
    only to the host of `url`.
    """

    name: str
    url: str
    share_context: bool = True
    headers: Mapping[str, Secret] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """A Redis that stores runs and sessions, so that they outlive their process.

    `url` is read for every connection; it gives None while the URL is missing. A session is stored
    for `retention` seconds after its last run. Every key begins with `prefix`, which no other agent
    has.
    """

    url: Secret
    retention: float
    prefix: str


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """All that an agent is built from.

    `model` is None only if `mock_responses`, the text of DEBUG_MOCK_RESPONSES, replaces it;
    `mock_source` says in error lines where that text is. `env` holds the container's variables,
    which stdio servers get besides the usual ones. `instructions_from` reads the current
    instructions, if another object holds them. `mounted_keys` are read from files that may be
    missing, by the names that people know the keys by. Without a `store`, runs and sessions are in
    memory.
    """

    name: str
    namespace: str = NAMESPACE
    description: str = ""
    instructions: str = ""
    model: ModelConfig | None = None
    mock_responses: str | None = None
    mock_source: str = ""
    tools: tuple[ToolConfig, ...] = ()
    agents: tuple[PeerConfig, ...] = ()
    loop: LoopSettings = field(default_factory=LoopSettings)
    deadline: float = DEADLINE
    public_url: str | None = None
    env: Mapping[str, Secret] = field(default_factory=dict)
    instructions_from: Secret | None = None
    mounted_keys: Mapping[str, Secret] = field(default_factory=dict)
    store: StoreConfig | None = None


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """What holds for the whole process, whatever agents it serves.

    Runs get `shutdown_grace` seconds to end after SIGTERM.
    """

    port: int = 8000
    log_level: LogLevel = "INFO"
    log_format: Literal["text", "json"] = "text"
    public_url: str | None = None
    shutdown_grace: float = 20.0
