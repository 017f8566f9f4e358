"""What an agent and its process are configured with: resolved, checked, frozen.

All times are seconds. Not here: where the values come from (`configuration`), what they do.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from diptych.errors import ConfigError
from diptych.loop.events import LoopSettings
from diptych.ports import Secret

ToolFunction = Callable[..., Any]
"""A plain typed Python function, sync or async, that is offered as a tool."""


@dataclass(frozen=True, slots=True)
class TimeoutConfig:
    """How long a call of a model may take.

    `connect` and `first_byte` are counted from the start of a try, `idle` from the last line of
    the reply, `total` from the start of the call, with all its tries.
    """

    connect: float = 5.0
    first_byte: float = 60.0
    idle: float = 30.0
    total: float = 300.0


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A model behind an OpenAI-compatible endpoint; what is None is left to the endpoint.

    `endpoint` is the URL that `/chat/completions` is added to; a query in it is kept. `api_key` is
    read at each request, so a rotated key is taken up. `proxy` is the URL of an HTTP proxy.
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
    """What a manifest says of the tools whose names match the glob `tool`; None says nothing.

    Of several overrides that match, the first that says something decides.
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

    `allow` holds globs of tool names. `headers` and `env` are read where they are used: headers at
    every request, the environment when the command is started. `timeout` holds for one call,
    whatever it waits for. Raises `ConfigError`.
    """

    name: str
    url: str | None = None
    command: tuple[str, ...] = ()
    functions: tuple[ToolFunction, ...] = ()
    env: Mapping[str, Secret | str] = field(default_factory=dict)
    headers: Mapping[str, Secret] = field(default_factory=dict)
    allow: tuple[str, ...] = ("*",)
    timeout: float = 60.0
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
    """An agent of the manifest: `name` is what the model calls it, `url` its card's or its base.

    One with `share_context` is trusted with the conversation, and to say where it is reached.
    `headers` go to the host of `url` alone.
    """

    name: str
    url: str
    share_context: bool = True
    headers: Mapping[str, Secret] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """A Redis that runs and sessions are kept in, so that they outlive their process.

    `url` is read whenever a connection is made; it gives None while the URL is missing. What is
    kept of a session goes `retention` seconds after its last run. Every key begins with `prefix`,
    which no other agent has.
    """

    url: Secret
    retention: float
    prefix: str


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """All that an agent is built from.

    `model` is None only while `mock_responses`, the text of DEBUG_MOCK_RESPONSES, takes its place;
    `mock_source` names, for error lines, where that text stands. `env` holds the variables of the
    container: what the agent's stdio servers are given besides the usual. `instructions_from` reads
    the instructions anew, if they stand elsewhere. `keys` are read from mounted files and may be
    missing; they are called by what a person knows them by. Without a `store` runs and sessions
    are kept in memory.
    """

    name: str
    namespace: str = "default"
    description: str = ""
    instructions: str = ""
    model: ModelConfig | None = None
    mock_responses: str | None = None
    mock_source: str = ""
    tools: tuple[ToolConfig, ...] = ()
    agents: tuple[PeerConfig, ...] = ()
    loop: LoopSettings = field(default_factory=LoopSettings)
    deadline: float = 300.0
    public_url: str | None = None
    env: Mapping[str, Secret] = field(default_factory=dict)
    instructions_from: Secret | None = None
    keys: Mapping[str, Secret] = field(default_factory=dict)
    store: StoreConfig | None = None


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """What holds for the whole process, whatever agents it runs.

    `shutdown_grace` is what runs get to end after SIGTERM.
    """

    port: int = 8000
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] = "INFO"
    log_format: Literal["text", "json"] = "text"
    public_url: str | None = None
    shutdown_grace: float = 20.0
