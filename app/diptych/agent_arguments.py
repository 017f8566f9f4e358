"""What the arguments of the Python API's `Agent` are in a manifest.

Not here: the agent itself (`agent`), the rules that check a manifest (`config.manifest`).
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from diptych.config.loader import LocalOptions, config_from_content
from diptych.config.manifest import API_VERSION, KIND
from diptych.config.secret_sources import Reference
from diptych.config.settings import AgentConfig
from diptych.config.source_location import FieldPath, SourceLocation
from diptych.config.variables import MOCK
from diptych.errors import ConfigError
from diptych.ports import Model
from diptych.serve.models import check_mock_scripts

_IN_PROCESS = {"name": "in-process", "endpoint": "http://in-process.invalid"}
"""The model of the manifest in place of a model object, which has no endpoint; never asked."""
_STORE_PATH: FieldPath = ("spec", "sessions", "redis")
_STORE_REF = {"name": "argument-of-agent", "key": "store"}


def sessions_spec(
    store: str | Mapping[str, Any] | None,
    retention: str | None,
    queue_mode: str | None,
    when_busy: str | None,
) -> dict[str, Any]:
    """Give `spec.sessions`."""
    redis = {"urlFrom": {"secretKeyRef": _STORE_REF}} if isinstance(store, str) else store
    sessions = {
        "redis": redis,
        "retention": retention,
        "queueMode": queue_mode,
        "whenBusy": when_busy,
    }
    return {name: value for name, value in sessions.items() if value is not None}


def environment(
    mock_responses: Sequence[Any] | None, store: str | Mapping[str, Any] | None
) -> dict[str, str]:
    """Give the environment, with the arguments that a manifest takes from there or by reference."""
    environ = dict(os.environ)
    if mock_responses is not None:
        environ[MOCK] = orjson.dumps(list(mock_responses)).decode()
    if isinstance(store, str):
        environ[Reference("Secret", **_STORE_REF).variable] = store
    return environ


def checked_config(
    name: str, spec: Mapping[str, Any], location: SourceLocation, environ: Mapping[str, str]
) -> AgentConfig:
    """Check the arguments by the manifest's rules; error lines name its fields."""
    content = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name},
        "spec": {key: value for key, value in spec.items() if value},
    }
    config = config_from_content(content, location, LocalOptions(environ))
    check_mock_scripts([config])
    return config


def check_store_url(url: str, location: SourceLocation) -> None:
    """Refuse a wrong URL now: nobody corrects it later, as in a Secret."""
    from diptych.adapters.redis.settings import read_url  # noqa: PLC0415 - heavy, and only needed here

    try:
        read_url(url)
    except ConfigError as error:
        raise ConfigError(f"{location.describe(_STORE_PATH)}: {error}") from None


def model_spec(
    model: Model | Mapping[str, Any] | None, action_format: str | None
) -> Mapping[str, Any] | None:
    """Give `spec.model`."""
    if model is None:
        return None
    spec = model if isinstance(model, Mapping) else _IN_PROCESS
    return spec if action_format is None else {**spec, "actionFormat": action_format}


def camel_case(name: str) -> str:
    """Give the name that a manifest has for an argument."""
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)
