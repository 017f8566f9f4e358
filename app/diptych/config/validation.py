"""Tells what is wrong with a manifest: one line for each mistake, with place and fix.

The lines are made for strangers: nothing of pydantic's shows, and no value that may be a key.
Not here: the rules themselves (`manifest`, `manifest.fields`).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib.metadata import version
from itertools import islice
from typing import Any, TypeAlias, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from diptych.config.manifest import AgentManifest
from diptych.errors import ConfigError

Path: TypeAlias = tuple[str | int, ...]
MAX_LINES = 50

_SECRET_FIELDS = {
    "apiKey",
    "headers",
    "env",
    "valueFrom",
    "urlFrom",
    "secretKeyRef",
    "instructions",
}
_SENTENCES = {
    "missing": "is required",
    "string_type": "must be a string; quote it",
    "int_type": "must be a whole number",
    "bool_type": "must be true or false",
    "tuple_type": "must be a list",
    "model_type": "must be a mapping of fields",
    "string_too_short": "must not be empty",
    "string_too_long": "must be {max_length} characters or fewer",
    "string_pattern_mismatch": 'must begin with "/" and hold no blanks',
    "too_long": "must have {max_length} entries or fewer",
    "greater_than_equal": "must be {ge} or more",
    "less_than_equal": "must be {le} or less",
    "literal_error": "must be {expected}",
    "string_unicode": "must be valid Unicode text",
    "invalid_key": "is not a string; quote it",
}


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """Where a manifest comes from, so that a line can name what its reader can change.

    `variables` says which environment variable a field was made from; the longest path wins.
    """

    source: str
    variables: Mapping[Path, str] = field(default_factory=dict)

    def at(self, path: Path) -> str:
        """Name a field: `agent.yaml: spec.tools[0].url`, or `MCP_SERVER_CALCULATOR_URL`."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.variables:
                return self.variables[path[:length]]
        return ": ".join(part for part in (self.source, dotted(path)) if part)


def dotted(path: Path) -> str:
    """Write a path as manifests' readers do: `spec.tools[0].url`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            plain = part.replace("_", "").replace("-", "").isalnum() and len(part) <= 64  # noqa: PLR2004
            text += f".{part}" if plain else f".{json.dumps(part[:64])}"
    return text.removeprefix(".")


def unsupported() -> str:
    """Say that what is meant is not built yet, naming the version that lacks it."""
    return f"is not supported by this version of Diptych ({version('diptych')})"


def refuse(problems: Sequence[str]) -> None:
    """Raise `ConfigError` with these lines, if there are any."""
    if problems:
        raise _config_error(problems)


def validated(content: Mapping[str, Any], place: SourceLocation) -> AgentManifest:
    """Make the typed manifest of a document. Raises `ConfigError` with a line for each mistake."""
    blank = list(_blank_fields(content.get("spec"), ("spec",)))
    mistakes: list[ErrorDetails] = []
    try:
        manifest = AgentManifest.model_validate(content)
        if not blank:
            return manifest
    except ValidationError as error:
        mistakes = error.errors(include_url=False)
    raise _config_error(list(_lines(mistakes, blank, place)))


def _lines(
    mistakes: Sequence[ErrorDetails], blank: Sequence[Path], place: SourceLocation
) -> Iterator[str]:
    """Tell the mistakes, and the blank fields unless all that they stand in must go anyway."""
    paths = [tuple(part for part in mistake["loc"] if part != "[key]") for mistake in mistakes]
    unwelcome = {
        path
        for mistake, path in zip(mistakes, paths, strict=True)
        if mistake["type"] in {"later", "extra_forbidden"}
    }
    blanks = dict.fromkeys(
        path
        for path in blank
        if not any(path[:length] in unwelcome for length in range(1, len(path) + 1))
    )
    for number, (mistake, path) in enumerate(zip(mistakes, paths, strict=True)):
        if path not in blanks:
            told = number < MAX_LINES  # the others are only counted: a sentence takes its time
            yield f"{place.at(path)}: {_sentence(mistake, path) if told else ''}"
    for path in blanks:
        yield f"{place.at(path)}: is empty; give it a value or remove it"


def _config_error(problems: Sequence[str]) -> ConfigError:
    lines = list(dict.fromkeys(problems))
    if len(lines) > MAX_LINES:
        lines[MAX_LINES:] = [f"… and {len(lines) - MAX_LINES} more problems like these"]
    return ConfigError(*lines)


def _blank_fields(value: object, path: Path) -> Iterator[Path]:
    """Find what was left blank: YAML calls it null, and it is nearly always a slip."""
    if value is None and len(path) > 1:
        yield path
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _blank_fields(inner, (*path, str(name)))
    elif isinstance(value, list):
        for index, inner in enumerate(islice(value, 1000)):
            yield from _blank_fields(inner, (*path, index))


def _sentence(mistake: ErrorDetails, path: Path) -> str:
    kind, given, context = mistake["type"], mistake["input"], mistake.get("ctx", {})
    match kind:
        case "later":
            sentence = f"{unsupported()}; remove it"
        case "later_value":
            sentence = f"{json.dumps(given)} {unsupported()}; use {context['supported']}"
        case "extra_forbidden":
            sentence = _unknown_field(path)
        case "missing" | "invalid_key":
            sentence = _SENTENCES[kind]
        case "model_type" if path[-1] in {"apiKey", "urlFrom"}:
            sentence = "must be a reference: {secretKeyRef: {name: …, key: …}}"
        case "string_type" if isinstance(given, Mapping | list):
            sentence = "must be a string"
        case "rule":
            sentence = mistake["msg"] + _shown(given, path)
        case _:
            template = _SENTENCES.get(kind, "is not valid")
            sentence = template.format(**context).replace("'", '"') + _shown(given, path)
    return sentence


def _shown(given: object, path: Path) -> str:
    """Repeat a small value that was given, unless it may be a secret."""
    if not isinstance(given, str | int | float | bool) or _SECRET_FIELDS.intersection(path):
        return ""
    text = json.dumps(given, ensure_ascii=False)
    unsafe = isinstance(given, str) and ("@" in given or "?" in given or not given.isprintable())
    return "" if unsafe or len(text) > 64 else f" (got {text})"  # noqa: PLR2004


def _unknown_field(path: Path) -> str:
    name = str(path[-1])
    here = _fields(AgentManifest, path[:-1])
    by_letters = {_letters(known): known for known in here}
    near = get_close_matches(_letters(name), by_letters, n=1, cutoff=0.7)
    near += [known for known in by_letters if known == f"{_letters(name)}from"]  # url: urlFrom
    if near:
        return f'is not a known field (did you mean "{by_letters[near[0]]}"?)'
    elsewhere = [p for p in _all_paths(AgentManifest, ()) if _letters(p[-1]) == _letters(name)]
    if elsewhere:
        return f'is not a known field here (did you mean "{".".join(elsewhere[0])}"?)'
    return f"is not a known field; known here: {', '.join(here)}"


def _letters(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def _fields(model: type[BaseModel], path: Path) -> dict[str, type[BaseModel] | None]:
    """List the fields of the mapping at a path, each with the model of what it holds."""
    known = {
        entry.alias or name: _model_in(entry.annotation)
        for name, entry in model.model_fields.items()
    }
    if not path:
        return known
    inner = model if isinstance(path[0], int) else known.get(path[0])
    return _fields(inner, path[1:]) if inner else {}


def _model_in(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for arg in get_args(annotation) if (found := _model_in(arg))), None)


def _all_paths(model: type[BaseModel], path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for name, inner in _fields(model, ()).items():
        yield (*path, name)
        if inner:
            yield from _all_paths(inner, (*path, name))
