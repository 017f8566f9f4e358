"""The environment's form of an agent, for a plain container without a manifest (agent.md).

It is turned into the content of a manifest, so that the same rules check it, together with the
`SourceLocation` that names the variables in error lines. The process's own variables are here too.

Not here: what becomes of that content (`configuration`).
"""

import re
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

from diptych.config.manifest import API_VERSION, KIND
from diptych.config.manifest.field_types import url_problem
from diptych.config.resolver import MOCK, PUBLIC_URL
from diptych.config.settings import ProcessSettings
from diptych.config.validation import Path, SourceLocation, refuse

LogLevel: TypeAlias = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]

GRACE = "SHUTDOWN_GRACE_SECONDS"
MOST_GRACE_SECONDS = 3600

_SIMPLE: Final[Mapping[Path, str]] = {
    ("metadata", "name"): "AGENT_NAME",
    ("spec", "description"): "AGENT_DESCRIPTION",
    ("spec", "instructions"): "AGENT_INSTRUCTIONS",
    ("spec", "model", "endpoint"): "MODEL_API_URL",
    ("spec", "model", "name"): "MODEL_NAME",
    ("spec", "model", "apiKey"): "MODEL_API_KEY",
    ("spec", "loop", "maxSteps"): "AGENTIC_LOOP_MAX_STEPS",
    ("spec", "tools"): "MCP_SERVERS",
    ("spec", "agents"): "PEER_AGENTS",
    ("spec", "sessions"): "REDIS_URL",
}
_LEVELS: Final[Mapping[str, LogLevel]] = {
    "DEBUG": "DEBUG",
    "INFO": "INFO",
    "WARN": "WARNING",
    "WARNING": "WARNING",
    "ERROR": "ERROR",
    "CRITICAL": "CRITICAL",
}


def process_settings(environ: Mapping[str, str]) -> ProcessSettings:
    """Read PORT, LOG_LEVEL, LOG_FORMAT, PUBLIC_URL and SHUTDOWN_GRACE_SECONDS.

    Raises `ConfigError` with all problems.
    """
    problems: list[str] = []
    port = _set(environ, "PORT") or "8000"
    if not re.fullmatch(r"\d{1,5}", port) or int(port) > 65535:  # noqa: PLR2004
        problems.append("PORT: must be a number from 0 to 65535")
    level = _LEVELS.get((_set(environ, "LOG_LEVEL") or "INFO").upper())
    if level is None:
        problems.append("LOG_LEVEL: must be debug, info, warning, error or critical")
    log_format = (_set(environ, "LOG_FORMAT") or "text").lower()
    if log_format not in {"text", "json"}:
        problems.append("LOG_FORMAT: must be text or json")
    public_url = _set(environ, PUBLIC_URL)
    if public_url and (wrong := url_problem(public_url)):
        problems.append(f"{PUBLIC_URL}: {wrong}")
    grace = _set(environ, GRACE) or "20"
    if not re.fullmatch(r"\d{1,4}(\.\d{1,3})?", grace) or float(grace) > MOST_GRACE_SECONDS:
        problems.append(f"{GRACE}: must be a number of seconds from 0 to {MOST_GRACE_SECONDS}")
    refuse(problems)
    return ProcessSettings(
        port=int(port),
        log_level=level or "INFO",
        log_format="json" if log_format == "json" else "text",
        public_url=public_url.rstrip("/") if public_url else None,
        shutdown_grace=float(grace),
    )


def manifest_content(
    environ: Mapping[str, str],
) -> tuple[dict[str, Any], SourceLocation, list[str]]:
    """Make a manifest's content, the place that names variables, and lines for missing ones."""
    variables = dict(_SIMPLE)
    problems: list[str] = []
    spec: dict[str, Any] = {
        "tools": _servers(environ, variables, problems),
        "agents": _peers(environ, variables, problems),
    }
    spec |= _given(description=_set(environ, "AGENT_DESCRIPTION"))
    spec |= _given(instructions=_set(environ, "AGENT_INSTRUCTIONS"))
    spec |= _given(model=_model(environ), sessions=_sessions(environ))
    if steps := _set(environ, "AGENTIC_LOOP_MAX_STEPS"):
        number = int(steps) if re.fullmatch(r"[+-]?\d{1,9}", steps) else steps
        spec["loop"] = {"maxSteps": number}
    metadata = _given(name=_set(environ, "AGENT_NAME"))
    content = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}
    return content, SourceLocation("", variables), problems


def _model(environ: Mapping[str, str]) -> dict[str, Any] | None:
    url, name = _set(environ, "MODEL_API_URL"), _set(environ, "MODEL_NAME")
    if _set(environ, MOCK) and not (url and name):
        return None
    model = _given(endpoint=url, name=name)
    if _set(environ, "MODEL_API_KEY"):
        # This reference leads to MODEL_API_KEY, by the rule for all of them (secret_sources).
        model["apiKey"] = {"secretKeyRef": {"name": "model", "key": "api-key"}}
    return model


def _sessions(environ: Mapping[str, str]) -> dict[str, Any] | None:
    if not _set(environ, "REDIS_URL"):
        return None
    # This reference leads to REDIS_URL, as that of the model's key does to MODEL_API_KEY.
    return {"redis": {"urlFrom": {"secretKeyRef": {"name": "redis", "key": "url"}}}}


def _servers(
    environ: Mapping[str, str], variables: dict[Path, str], problems: list[str]
) -> list[dict[str, Any]]:
    servers: list[dict[str, Any]] = []
    for name in _names(environ, "MCP_SERVERS"):
        variable = _find(environ, "MCP_SERVER_", name, "_URL")
        variables["spec", "tools", len(servers), "url"] = variable
        if url := _set(environ, variable):
            servers.append({"name": name, "url": url})
        else:
            problems.append(f"{variable}: is required, as MCP_SERVERS names {name}")
    return servers


def _peers(
    environ: Mapping[str, str], variables: dict[Path, str], problems: list[str]
) -> list[dict[str, Any]]:
    peers: list[dict[str, Any]] = []
    for name in _names(environ, "PEER_AGENTS"):
        variable = _find(environ, "PEER_AGENT_", name, "_CARD_URL")
        variables["spec", "agents", len(peers), "url"] = variable
        if url := _set(environ, variable):
            peers.append({"as": name, "url": url, "shareContext": True})
        else:
            problems.append(f"{variable}: is required, as PEER_AGENTS names {name}")
    return peers


def _names(environ: Mapping[str, str], variable: str) -> list[str]:
    return [name.strip() for name in (_set(environ, variable) or "").split(",") if name.strip()]


def _find(environ: Mapping[str, str], prefix: str, name: str, suffix: str) -> str:
    """Find the variable of a name, however it is spelt; if none is set, the upper-case one."""
    usual = name.upper().replace("-", "_")
    spellings = [usual, name, name.upper(), name.replace("-", "_")]
    names = [f"{prefix}{spelling}{suffix}" for spelling in spellings]
    return next((n for n in names if _set(environ, n)), names[0])


def _set(environ: Mapping[str, str], name: str) -> str | None:
    """Read a variable; a blank one counts as not set."""
    return environ.get(name, "").strip() or None


def _given(**fields: object) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
