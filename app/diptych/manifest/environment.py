"""What the environment says: the settings of the process, and an agent without a manifest.

The agent's variables become the content of a manifest, so that the same rules check them.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, get_args

from diptych.manifest import API_VERSION, KIND
from diptych.manifest.documents import FieldPath, SourceLocation
from diptych.manifest.fields import url_problem
from diptych.manifest.settings import LogLevel, ProcessSettings
from diptych.manifest.telemetry import read_telemetry
from diptych.manifest.validation import raise_problems

_DEFAULTS = ProcessSettings()

MOCK = "DEBUG_MOCK_RESPONSES"
PUBLIC_URL = "PUBLIC_URL"
TOKEN_KEY = "DIPTYCH_TOKEN_KEY"  # noqa: S105 - its name
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
        TOKEN_KEY,
        "The key that encrypts OAuth tokens in the store: random text of 32 characters or more. "
        "Several, separated by commas, decrypt; the first encrypts.",
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
    EnvironmentVariable(
        "MODEL_PROVIDER",
        "The model's provider, such as `openai`; then `MODEL_API_URL` and `MODEL_API_KEY` may be "
        "left out.",
        ("spec", "model", "provider"),
    ),
    EnvironmentVariable("MODEL_NAME", "The model's name.", ("spec", "model", "name")),
    EnvironmentVariable(
        "MODEL_API_KEY",
        "The API key; with a provider its own variable, such as `OPENAI_API_KEY`, does as well.",
        ("spec", "model", "apiKey"),
    ),
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


_MAX_PORT = 65535
_UNITS = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "k": 10**3, "M": 10**6, "G": 10**9}
_QUANTITY = re.compile(r"(\d{1,15})(Ki|Mi|Gi|k|M|G)?", re.ASCII)
_LEVELS: Final[Mapping[str, LogLevel]] = {level: level for level in get_args(LogLevel)}


def process_settings(environ: Mapping[str, str]) -> ProcessSettings:
    """Read PORT, METRICS_PORT, LOG_LEVEL, LOG_FORMAT, PUBLIC_URL, SHUTDOWN_GRACE_SECONDS,
    MEMORY_LIMIT and OTEL_*.

    Raises `ConfigError` with all problems.
    """
    problems: list[str] = []
    defaults = ProcessSettings()
    port = _port(environ, "PORT", problems)
    metrics_port = _port(environ, "METRICS_PORT", problems)
    level_name = (_value(environ, "LOG_LEVEL") or defaults.log_level).upper()
    level = _LEVELS.get("WARNING" if level_name == "WARN" else level_name)
    if level is None:
        problems.append("LOG_LEVEL: must be debug, info, warning, error or critical")
    log_format = (_value(environ, "LOG_FORMAT") or defaults.log_format).lower()
    if log_format not in {"text", "json"}:
        problems.append("LOG_FORMAT: must be text or json")
    url = _value(environ, PUBLIC_URL)
    if url and (problem := url_problem(url)):
        problems.append(f"{PUBLIC_URL}: {problem}")
    grace = _value(environ, SHUTDOWN_GRACE) or str(defaults.shutdown_grace)
    if not re.fullmatch(r"\d{1,4}(\.\d{1,3})?", grace) or float(grace) > MAX_SHUTDOWN_GRACE:
        problems.append(
            f"{SHUTDOWN_GRACE}: must be a number of seconds from 0 to {MAX_SHUTDOWN_GRACE}"
        )
    limit = _value(environ, MEMORY_LIMIT)
    memory = read_quantity(limit) if limit else None
    if limit and (memory is None or memory < MIN_MEMORY):
        problems.append(f"{MEMORY_LIMIT}: must be bytes as Kubernetes writes them, at least 64Mi")
    raise_problems(problems)
    return ProcessSettings(
        memory_limit=memory,
        port=defaults.port if port is None else port,
        metrics_port=metrics_port,
        log_level=level or defaults.log_level,
        log_format="json" if log_format == "json" else "text",
        public_url=public_url(environ),
        shutdown_grace=float(grace),
        telemetry=read_telemetry(environ)[0],
    )


def read_quantity(text: str) -> int | None:
    """Read bytes as Kubernetes writes them, such as `512Mi`; None for anything else."""
    found = _QUANTITY.fullmatch(text)
    return int(found[1]) * _UNITS[found[2] or ""] if found else None


def _port(environ: Mapping[str, str], name: str, problems: list[str]) -> int | None:
    value = _value(environ, name)
    if not value:
        return None
    if not re.fullmatch(r"\d{1,5}", value) or int(value) > _MAX_PORT:
        problems.append(f"{name}: must be a number from 0 to {_MAX_PORT}")
        return None
    return int(value)


def public_url(environ: Mapping[str, str]) -> str | None:
    """Read PUBLIC_URL, without a slash at its end."""
    return (_value(environ, PUBLIC_URL) or "").rstrip("/") or None


def manifest_content(
    environ: Mapping[str, str],
) -> tuple[dict[str, Any], SourceLocation, list[str]]:
    """Return the manifest's content, its location, and a line for each missing variable."""
    variables = {variable.path: variable.name for variable in AGENT_VARIABLES}
    problems: list[str] = []

    def urls(names: str, prefix: str, suffix: str, field: str) -> Iterator[tuple[str, str]]:
        given = [name.strip() for name in (_value(environ, names) or "").split(",")]
        number = 0
        for name in filter(None, given):
            variable = _find_variable(environ, prefix, name, suffix)
            variables["spec", field, number, "url"] = variable
            if url := _value(environ, variable):
                number += 1
                yield name, url
            else:
                problems.append(f"{variable}: is required, as {names} names {name}")

    tools = urls("MCP_SERVERS", "MCP_SERVER_", "_URL", "tools")
    agents = urls("PEER_AGENTS", "PEER_AGENT_", "_CARD_URL", "agents")
    spec: dict[str, Any] = {
        "tools": [{"name": name, "url": url} for name, url in tools],
        "agents": [{"as": name, "url": url, "shareContext": True} for name, url in agents],
    }
    spec |= _without_none(
        description=_value(environ, "AGENT_DESCRIPTION"),
        instructions=_value(environ, "AGENT_INSTRUCTIONS"),
        model=_model(environ, problems),
    )
    if _value(environ, "REDIS_URL"):  # the `Reference.variable` of this reference
        url_from = {"secretKeyRef": {"name": "redis", "key": "url"}}
        spec["sessions"] = {"redis": {"urlFrom": url_from}}
    if steps := _value(environ, "AGENTIC_LOOP_MAX_STEPS"):
        number = int(steps) if re.fullmatch(r"[+-]?\d{1,9}", steps) else steps
        spec["loop"] = {"maxSteps": number}
    metadata = _without_none(name=_value(environ, "AGENT_NAME"))
    content = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}
    return content, SourceLocation("", variables), problems


def _model(environ: Mapping[str, str], problems: list[str]) -> dict[str, Any] | None:
    url, name = _value(environ, "MODEL_API_URL"), _value(environ, "MODEL_NAME")
    provider = _value(environ, "MODEL_PROVIDER")
    if _value(environ, MOCK) and not ((url or provider) and name):
        return None
    if not (url or provider):
        problems.append("MODEL_API_URL: is required, or MODEL_PROVIDER, such as openai")
        url = "http://unset.invalid"  # never asked: the problem refuses the agent
    if not name:
        problems.append("MODEL_NAME: is required")
        name = "unset"
    model = _without_none(provider=provider, endpoint=url, name=name)
    if _value(environ, "MODEL_API_KEY"):  # the `Reference.variable` of this reference
        model["apiKey"] = {"secretKeyRef": {"name": "model", "key": "api-key"}}
    return model


def _find_variable(environ: Mapping[str, str], prefix: str, name: str, suffix: str) -> str:
    """Find the variable of a name in any usual spelling; if none is set, the upper-case one."""
    usual = name.upper().replace("-", "_")
    spellings = [usual, name, name.upper(), name.replace("-", "_")]
    variables = [f"{prefix}{spelling}{suffix}" for spelling in spellings]
    return next((variable for variable in variables if _value(environ, variable)), variables[0])


def _value(environ: Mapping[str, str], name: str) -> str | None:
    """Read a variable; a blank one counts as not set."""
    return environ.get(name, "").strip() or None


def _without_none(**fields: object) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
