"""The configuration of an agent and its process: resolved, checked, frozen. And the defaults.

All times are seconds. Each default stands once: here, for `spec.loop` in `core.run_settings`, or in
`runs.definition`.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from diptych.access.grants import Grant
from diptych.access.limits import Limits
from diptych.access.signatures import Scheme
from diptych.core.budget import SharedBudgets
from diptych.core.catalog import SEPARATOR
from diptych.core.errors import ConfigError
from diptych.manifest.telemetry import TelemetrySettings
from diptych.policy.rules import Policy
from diptych.policy.unmatched import NamedCalls
from diptych.ports import ValueProvider
from diptych.runs.definition import AgentDefinition, HookConfig
from diptych_cel.expressions import Expression
from diptych_cron import Cron

if TYPE_CHECKING:
    from diptych.manifest.secret_sources import CurrentFile


@dataclass(frozen=True, slots=True)
class IssuerConfig:
    """An issuer whose tokens are accepted; without `jwks` it is asked for its keys.

    With `is_cluster` its tokens are those of ServiceAccounts. `ca` reads the certificates of the
    authorities (PEM) that it is trusted by, in place of the public ones.
    """

    url: str
    audience: str
    user_claim: str = "sub"
    groups_claim: str = "groups"
    jwks: tuple[Mapping[str, Any], ...] | None = None
    is_cluster: bool = False
    ca: ValueProvider | None = None


@dataclass(frozen=True, slots=True)
class AccessConfig:
    """Who may do what (access.md). `keys` are API keys by the name of their holder.

    With `approve_own` approvers decide on their own runs, too. `platform` reads the operator's
    file about callers (`manifest.access.read_platform_access`).
    """

    mode: Literal["required", "open"] = "required"
    keys: Mapping[str, ValueProvider] = field(default_factory=dict)
    issuers: tuple[IssuerConfig, ...] = ()
    grants: tuple[Grant, ...] = ()
    limits: Limits = field(default_factory=Limits)
    platform: ValueProvider | None = None
    approve_own: bool = False


LogLevel: TypeAlias = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]
ToolFunction: TypeAlias = Callable[..., Any]
"""A plain typed Python function, sync or async, that is a tool."""

CallerParameter: TypeAlias = Literal[
    "temperature",
    "top_p",
    "max_tokens",
    "stop",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "reasoning_effort",
    "verbosity",
]
"""A parameter of a chat that may reach the model, by its name in OpenAI's API."""
InputKind: TypeAlias = Literal["image", "audio", "file"]
"""A kind of content part that is not text."""

NAMESPACE: Final = "default"
DEADLINE: Final = 300.0  # of a run
CALL_TIMEOUT: Final = 60.0  # of a tool call
RETENTION: Final = 24 * 3600.0  # of a session, after its last run
ALL_TOOLS: Final = ("*",)
SERVER_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


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

    `endpoint` is the URL that `/chat/completions` is added to, unless it ends in that; a query in
    it stays. `api_key` and `headers` are read at each request, so that a rotated key takes effect.
    `fallbacks` are asked in turn when this one gives no reply; theirs are not read. `proxy` is the
    URL of an HTTP proxy. `inputs` says what the model takes in messages besides text.
    """

    name: str
    endpoint: str = field(repr=False)
    api_key: ValueProvider | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    reasoning_effort: str | None = None
    timeouts: TimeoutConfig = field(default_factory=TimeoutConfig)
    proxy: str | None = field(default=None, repr=False)
    headers: Mapping[str, ValueProvider] = field(default_factory=dict)
    fallbacks: "tuple[ModelConfig, ...]" = ()
    inputs: tuple[InputKind, ...] = ()


CallerTools = Literal["refuse", "ignore", "pass"]


@dataclass(frozen=True, slots=True)
class ChatConfig:
    """What callers of the HTTP API may bring.

    With `caller_system` `off` their system messages are left out, in every protocol. With
    `caller_tools` `pass` the model may call their tools, which they run themselves.
    `allow_parameters` of a chat reach the model. `cors_origins` holds the origins of web pages
    that may use the API; `*` stands for all. Push notifications may go to `webhook_hosts` though
    their addresses are private, and without TLS.
    """

    caller_system: Literal["quote", "off"] = "quote"
    caller_tools: CallerTools = "refuse"
    allow_parameters: tuple[CallerParameter, ...] = ()
    cors_origins: tuple[str, ...] = ()
    webhook_hosts: tuple[str, ...] = ()


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
class ToolAuthConfig:
    """How an agent gets OAuth tokens for a tool server: its own, or one for each person.

    The secret or key is read at each request for a token. Only `issuer` is sent them.
    """

    is_personal: bool = False
    client_id: str = ""
    client_secret: ValueProvider | None = None
    private_key: ValueProvider | None = None
    scopes: tuple[str, ...] = ()
    issuer: str | None = None


@dataclass(frozen=True, slots=True)
class ToolServerConfig:
    """One MCP server: exactly one of `url`, `command` (stdio) and `functions` (in this process).

    `allow` holds globs of tool names, `pins` digests of tools by name: a tool that
    has another one cannot be used. `headers` are read at every request, `env` when the command
    starts. `timeout` bounds one call, with all that it waits for. Raises `ConfigError`.
    """

    name: str
    url: str | None = None
    command: tuple[str, ...] = ()
    functions: tuple[ToolFunction, ...] = ()
    env: Mapping[str, ValueProvider | str] = field(default_factory=dict)
    headers: Mapping[str, ValueProvider] = field(default_factory=dict)
    auth: ToolAuthConfig | None = None
    allow: tuple[str, ...] = ALL_TOOLS
    timeout: float = CALL_TIMEOUT
    overrides: tuple[OverrideConfig, ...] = ()
    pins: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not SERVER_NAME.fullmatch(self.name) or SEPARATOR in self.name:
            raise ConfigError(
                f"tool server {self.name!r}: its name must be 1 to 64 of A-Z, a-z, 0-9, "
                f'".", "-" and "_", without "{SEPARATOR}"'
            )
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
    `share_context` gets the conversation, and its card may say where it is reached. `headers` and
    the `token`, which says who asks, go only to the host of `url`.
    """

    name: str
    url: str
    share_context: bool = True
    headers: Mapping[str, ValueProvider] = field(default_factory=dict)
    token: ValueProvider | None = None


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """A Redis that stores runs and sessions, so that they outlive their process.

    `url` is read for every connection; it gives None while the URL is missing. A session is stored
    for `retention` seconds after its last run. Every key begins with `prefix`, which no other agent
    has. `setting` is what errors call the URL by; it is empty in a pod, where a URL that is wrong
    may come right while the pod waits. Agents of a process with the same `source` of the URL, if
    it has one, share connections.
    """

    url: ValueProvider
    retention: float
    prefix: str
    setting: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class DataFolder:
    """A folder of this machine where agents without a Redis store runs and sessions.

    `setting` is what errors call it by. Where the `default` folder cannot be had, as another
    process holds it, they are in memory.
    """

    path: Path
    setting: str = "--data"
    is_default: bool = False


@dataclass(frozen=True, slots=True)
class ScheduleConfig:
    """A message that starts a run at the times of a cron line.

    With `runs_missed` the last of the times that passed while the process was away gets a run.
    """

    name: str
    cron: Cron
    message: str
    session: str | None = None
    runs_missed: bool = False


@dataclass(frozen=True, slots=True)
class TriggerConfig:
    """A trigger; `secret` is None only if the signature is `none`."""

    name: str
    signature: Scheme
    secret: ValueProvider | None
    message: Expression
    when: Expression | None = None
    session: Expression | None = None


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """All that an agent is built from.

    `model` is None only if `mock_responses`, the text of DEBUG_MOCK_RESPONSES, replaces it;
    `mock_source` says in error lines where that text is. `definition` holds for every run; the
    places of hooks join it later. `mounted_keys` are read from files that may be missing, by the
    names that people know the keys by. Runs and sessions are in the `store`, else in the `data`
    folder, else in memory. Runs share `budgets`. New runs take the newest model of `model_file`.
    In a pod there are no `schedules`: the operator makes CronJobs of them. `token_keys` encrypt
    OAuth tokens in the store, the first one new tokens.
    """

    name: str
    namespace: str = NAMESPACE
    description: str = ""
    examples: tuple[str, ...] = ()
    definition: AgentDefinition = field(default_factory=partial(AgentDefinition, deadline=DEADLINE))
    model: ModelConfig | None = None
    mock_responses: str | None = None
    mock_source: str = ""
    tools: tuple[ToolServerConfig, ...] = ()
    agents: tuple[PeerConfig, ...] = ()
    public_url: str | None = None
    exposed_url: str | None = None
    mounted_keys: Mapping[str, ValueProvider] = field(default_factory=dict)
    store: StoreConfig | None = None
    data: DataFolder | None = None
    chat: ChatConfig = field(default_factory=ChatConfig)
    access: AccessConfig = field(default_factory=AccessConfig)
    policy: Policy = field(default_factory=Policy)
    named_calls: tuple[NamedCalls, ...] = ()
    budgets: SharedBudgets = field(default_factory=SharedBudgets)
    hooks: tuple[HookConfig, ...] = ()
    schedules: tuple[ScheduleConfig, ...] = ()
    triggers: tuple[TriggerConfig, ...] = ()
    model_file: "CurrentFile[AgentConfig] | None" = None
    token_keys: tuple[str, ...] = field(default=(), repr=False)


def opened(config: AgentConfig) -> AgentConfig:
    """Return a configuration at which everybody may do everything."""
    return replace(config, access=replace(config.access, mode="open"))


def sessions_prefix(namespace: str, name: str, key: str | None = None) -> str:
    """Return the prefix of all keys in an agent's store; `key` tells Agents of a name apart.

    `NAME/KEY` is an Agent of another name, which this one continues. On a laptop there is no key;
    the agent's name stands for none.
    """
    if key and "/" in key:
        name, _, key = key.partition("/")
    own = f"diptych:{namespace}:{name}"
    return own if key in {None, name} else f"{own}:agent:{key}"


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """The settings of the whole process.

    Runs get `shutdown_grace` seconds to end after SIGTERM. With a `metrics_port` the metrics are
    served there, and nowhere else. `memory_limit` is in bytes; None is what the cgroup or the
    machine has. Without `telemetry` there are no traces.
    """

    port: int = 8000
    log_level: LogLevel = "INFO"
    log_format: Literal["text", "json"] = "text"
    public_url: str | None = None
    shutdown_grace: float = 20.0
    metrics_port: int | None = None
    memory_limit: int | None = None
    telemetry: TelemetrySettings | None = None
