"""Makes a manifest of the arguments of the Python API's `Agent`."""

import os
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import orjson

from diptych.core.errors import ConfigError
from diptych.library.tools import name_of_url, unique
from diptych.manifest import API_VERSION, KIND
from diptych.manifest.agent import LoopSpec
from diptych.manifest.documents import FieldPath, SourceLocation
from diptych.manifest.environment import MOCK
from diptych.manifest.loader import LocalOptions, config_from_content
from diptych.manifest.secret_sources import Reference
from diptych.manifest.settings import AgentConfig, DataFolder
from diptych.manifest.validation import closest_name, raise_problems
from diptych.serve.adapters import check_mock_scripts, check_store_urls

STORE_PATH: FieldPath = ("spec", "sessions", "redis")
_SQLITE = "sqlite:"  # before a folder
_STORE_REF = {"name": "argument-of-agent", "key": "store"}


def data_argument(
    agent: str, store: str | Mapping[str, Any] | None
) -> tuple[str | Mapping[str, Any] | None, DataFolder | None]:
    """Return the Redis that `store` names, and the folder: at most one of them.

    Raises `ConfigError` for a path without `sqlite:`.
    """
    if not isinstance(store, str) or "://" in store:
        return store, None
    setting = f"Agent({agent!r}): store"
    folder = store.removeprefix(_SQLITE)
    if folder in {"", store}:
        raise ConfigError(f"{setting}: {store!r} is no URL; write sqlite:DIR for a folder")
    return None, DataFolder(Path(folder).expanduser(), setting)


def sessions_spec(
    store: str | Mapping[str, Any] | None,
    retention: str | None,
    queue_mode: str | None,
    when_busy: str | None,
) -> dict[str, Any]:
    """Return `spec.sessions`."""
    redis = {"urlFrom": {"secretKeyRef": _STORE_REF}} if isinstance(store, str) else store
    sessions = {
        "redis": redis,
        "retention": retention,
        "queueMode": queue_mode,
        "whenBusy": when_busy,
    }
    return {name: value for name, value in sessions.items() if value is not None}


def agents_spec(
    agent: str, agents: Sequence[str | Mapping[str, Any]], names: Sequence[str]
) -> list[Mapping[str, Any]]:
    """Return `spec.agents` of URLs and entries; `names` are those of agents of this process.

    Raises `ConfigError` where two would have one name.
    """
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"Agent({agent!r}): agents: two are called {twice[0]}; rename one")
    taken, entries = set(names), list[Mapping[str, Any]]()
    for number, given in enumerate(agents):
        if not isinstance(given, str | Mapping):
            raise ConfigError(
                f"Agent({agent!r}): agents[{number}]: must be an Agent, a URL or a mapping as in "
                f"spec.agents (got {given!r:.60})"
            )
        if isinstance(given, str):
            entries.append({"as": unique(name_of_url(given, "agent"), taken), "url": given})
        else:
            name = given.get("as", given.get("name"))
            if name in taken:
                raise ConfigError(f"Agent({agent!r}): agents: two are called {name}; rename one")
            entries.append(given)
    return entries


def environment(
    mock_responses: Sequence[Any] | None,
    store: str | Mapping[str, Any] | None,
    variables: Mapping[str, str],
) -> dict[str, str]:
    """Return the environment, with the arguments that a manifest reads from there."""
    environ = {**os.environ, **variables}
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
    check_store_urls([config])
    return config


def loop_spec(agent: str, given: Mapping[str, Any], init: Callable[..., None]) -> dict[str, Any]:
    """Return `spec.loop`, from arguments that are none of the others of `init`.

    Raises `ConfigError` for those that are no fields of it, with the name that may be meant.
    """
    problems: list[str] = []
    for name in given.keys() - LoopSpec.model_fields.keys():
        known = [*list(signature(init).parameters)[1:-1], *LoopSpec.model_fields]
        similar = closest_name(name, known)
        hint = f' (did you mean "{similar}"?)' if similar else f"; known here: {', '.join(known)}"
        problems.append(f"Agent({agent!r}): {name}: is not a known argument{hint}")
    raise_problems(sorted(problems))
    return {_camel_case(name): value for name, value in given.items()}


def _camel_case(name: str) -> str:
    """Return the name that a manifest has for an argument."""
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)
