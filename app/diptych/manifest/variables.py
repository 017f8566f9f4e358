"""The environment variables that an agent's process reads, and their meaning.

docs/reference/manifest.md shows them (`tools/reference/manifest.py`).
"""

from dataclasses import dataclass

from diptych.manifest.settings import ProcessSettings
from diptych.manifest.source_location import FieldPath

_DEFAULTS = ProcessSettings()

MOCK = "DEBUG_MOCK_RESPONSES"
PUBLIC_URL = "PUBLIC_URL"
SHUTDOWN_GRACE = "SHUTDOWN_GRACE_SECONDS"
MEMORY_LIMIT = "MEMORY_LIMIT"
MIN_MEMORY = 64 * 2**20  # bytes
MAX_SHUTDOWN_GRACE = 3600  # seconds


@dataclass(frozen=True, slots=True)
class EnvironmentVariable:
    """A variable; `path` is the field of the manifest that it replaces, if there is one.

    `<name>` in the name of a variable is the name of a tool server or agent.
    """

    name: str
    meaning: str
    path: FieldPath = ()
    default: str = ""


PROCESS_VARIABLES = (
    EnvironmentVariable(
        "PORT",
        "The port that the first agent listens at; 0 takes a free one.",
        default=str(_DEFAULTS.port),
    ),
    EnvironmentVariable(
        "METRICS_PORT",
        "The port of the first agent's `/metrics`, which are then nowhere else. If absent, `PORT`.",
    ),
    EnvironmentVariable(
        "LOG_LEVEL",
        "The lowest level that is logged: debug, info, warning, error or critical.",
        default=_DEFAULTS.log_level.lower(),
    ),
    EnvironmentVariable(
        "LOG_FORMAT", "The form of log records: text or json.", default=_DEFAULTS.log_format
    ),
    EnvironmentVariable(
        PUBLIC_URL, "The agent's URL in its agent card. If absent, the host of each request."
    ),
    EnvironmentVariable(
        SHUTDOWN_GRACE,
        f"How many seconds active runs get to end after SIGTERM, from 0 to {MAX_SHUTDOWN_GRACE}.",
        default=f"{_DEFAULTS.shutdown_grace:g}",
    ),
    EnvironmentVariable(
        MEMORY_LIMIT,
        "How much memory the process may use (`512Mi`); else its cgroup's limit, or half of all",
    ),
    EnvironmentVariable(
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "Where traces go. Others of OpenTelemetry: docs/tracing.md.",
    ),
    EnvironmentVariable(
        MOCK, "For tests: a JSON list of replies, in place of the asked agent's model."
    ),
)
"""Variables with a meaning of their own, whether the agent has a manifest or not."""

AGENT_VARIABLES = (
    EnvironmentVariable("AGENT_NAME", "The agent's name.", ("metadata", "name")),
    EnvironmentVariable(
        "AGENT_DESCRIPTION", "What the agent is good for.", ("spec", "description")
    ),
    EnvironmentVariable("AGENT_INSTRUCTIONS", "The system prompt.", ("spec", "instructions")),
    EnvironmentVariable(
        "MODEL_API_URL",
        "The base URL of an OpenAI-compatible API.",
        ("spec", "model", "endpoint"),
    ),
    EnvironmentVariable("MODEL_NAME", "The model's name.", ("spec", "model", "name")),
    EnvironmentVariable("MODEL_API_KEY", "The API key.", ("spec", "model", "apiKey")),
    EnvironmentVariable(
        "AGENTIC_LOOP_MAX_STEPS", "The most steps of a run.", ("spec", "loop", "maxSteps")
    ),
    EnvironmentVariable(
        "MCP_SERVERS", "Names of tool servers, separated by commas.", ("spec", "tools")
    ),
    EnvironmentVariable(
        "PEER_AGENTS",
        "Names of agents that this one may delegate to, separated by commas.",
        ("spec", "agents"),
    ),
    EnvironmentVariable("REDIS_URL", "The URL of a Redis.", ("spec", "sessions")),
)
"""Variables that replace the fields of a manifest, for a plain container without one."""

NAMED_VARIABLES = (
    EnvironmentVariable(
        "MCP_SERVER_<name>_URL", "The URL of the tool server `<name>`.", ("spec", "tools", 0, "url")
    ),
    EnvironmentVariable(
        "PEER_AGENT_<name>_CARD_URL",
        "The URL of the agent card of `<name>`, or its base URL.",
        ("spec", "agents", 0, "url"),
    ),
)
"""Variables for each name in MCP_SERVERS and PEER_AGENTS: in upper case, with `-` as `_`."""
