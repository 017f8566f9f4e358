"""Validates a manifest, and words its mistakes: one line each, with the field and the fix.

People read the lines: they show nothing of pydantic, and no value that may be a secret.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice, takewhile
from typing import Any, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from diptych.core.errors import ConfigError
from diptych.manifest import AgentManifest
from diptych.manifest.documents import FieldPath, SourceLocation, resolve_scalar
from diptych.manifest.providers import PROVIDERS
from diptych.manifest.rules import StrictModel

MAX_LINES = 50

M = TypeVar("M", bound=StrictModel)

_MAX_SHOWN = 64  # characters of a value
_SECRET_FIELDS = {
    "apiKey",
    "headers",
    "env",
    "valueFrom",
    "urlFrom",
    "secretKeyRef",
    "signingKey",
    "clientSecret",
    "privateKey",
    "keys",
    "instructions",
    "python",
}
_PLAIN = re.compile(r'"[A-Za-z][\w./-]*"')
_MODEL_NAME = re.compile(r"[A-Za-z]([\w./:-]{0,62}\w)?", re.ASCII)
_URLS = {"url", "endpoint"}
_MESSAGES = {
    "missing": "is required",
    "string_type": "must be a string; quote it",
    "int_type": "must be a whole number",
    "bool_type": "must be true or false",
    "tuple_type": "must be a list",
    "model_type": "must be a mapping of fields",
    "dict_type": "must be a mapping of fields",
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


def raise_problems(problems: Sequence[str]) -> None:
    """Raise `ConfigError` with these lines, if there are any."""
    if problems:
        raise _config_error(problems)


def validate_manifest(content: Mapping[str, Any], location: SourceLocation) -> AgentManifest:
    """Make the typed Agent of a document. Raises `ConfigError` with a line for each mistake."""
    return validate_object(AgentManifest, content, location)


def validate_object(model: type[M], content: Mapping[str, Any], location: SourceLocation) -> M:
    """Make the typed manifest of a document. Raises `ConfigError` with a line for each mistake."""
    blank_fields = list(_blank_fields(content.get("spec"), ("spec",)))
    mistakes: list[ErrorDetails] = []
    try:
        manifest = model.model_validate(content)
        if not blank_fields:
            return manifest
    except ValidationError as error:
        mistakes = error.errors(include_url=False)
    raise _config_error(list(_error_lines(model, mistakes, blank_fields, location)))


def _error_lines(
    model: type[BaseModel],
    mistakes: Sequence[ErrorDetails],
    blank_fields: Sequence[FieldPath],
    location: SourceLocation,
) -> Iterator[str]:
    """Write a line per mistake and blank field, except blank fields inside a refused one."""
    paths = [tuple(part for part in mistake["loc"] if part != "[key]") for mistake in mistakes]
    refused = {
        path
        for mistake, path in zip(mistakes, paths, strict=True)
        if mistake["type"] == "extra_forbidden"
    }
    blanks = dict.fromkeys(
        path
        for path in blank_fields
        if not any(path[:length] in refused for length in range(1, len(path) + 1))
    )
    for number, (mistake, path) in enumerate(zip(mistakes, paths, strict=True)):
        if path not in blanks:
            is_shown = number < MAX_LINES  # the others are only counted: wording takes time
            text = _message(model, mistake, path) if is_shown else ""
            yield f"{location.locate(path)}: {text}"
    for path in blanks:
        yield f"{location.locate(path)}: is empty; give it a value or remove it"


def _config_error(problems: Sequence[str]) -> ConfigError:
    lines = list(dict.fromkeys(problems))
    if len(lines) > MAX_LINES:
        lines[MAX_LINES:] = [f"… and {len(lines) - MAX_LINES} more problems like these"]
    return ConfigError(*lines)


def _blank_fields(value: object, path: FieldPath) -> Iterator[FieldPath]:
    """Find fields without a value: YAML reads them as null, and they are nearly always slips."""
    if value is None and len(path) > 1:
        yield path
    elif isinstance(value, Mapping):
        if path == ("spec", "outputSchema"):
            return  # a null means something in a JSON schema
        for name, inner in value.items():
            yield from _blank_fields(inner, (*path, str(name)))
    elif isinstance(value, list):
        for index, inner in enumerate(islice(value, 1000)):
            yield from _blank_fields(inner, (*path, index))


def _message(model: type[BaseModel], mistake: ErrorDetails, path: FieldPath) -> str:
    kind, value, context = mistake["type"], mistake["input"], mistake.get("ctx", {})
    match kind:
        case "extra_forbidden":
            message = _unknown_field(model, path)
        case "missing" | "invalid_key" | "dict_type":
            message = _MESSAGES[kind]
        case "model_type" | "tuple_type":
            is_list = kind == "tuple_type"
            message = _MESSAGES[kind] + _correction(model, value, path, is_list=is_list)
        case "string_type" if isinstance(value, Mapping | list):
            message = "must be a string"
        case "rule":
            message = mistake["msg"] + shown_value(value, path)
        case _:
            template = _MESSAGES.get(kind, "is not valid")
            message = template.format(**context).replace("'", '"') + shown_value(value, path)
    return message


def shown_value(value: object, path: FieldPath) -> str:
    """Repeat a short value, unless it may be a secret."""
    if not isinstance(value, str | int | float | bool) or _SECRET_FIELDS.intersection(path):
        return ""
    text = json.dumps(value, ensure_ascii=False)
    is_unsafe = isinstance(value, str) and ("@" in value or "?" in value or not value.isprintable())
    return "" if is_unsafe or len(text) > _MAX_SHOWN else f" (got {text})"


def _unknown_field(model: type[BaseModel], path: FieldPath) -> str:
    name = _normalized(str(path[-1]))
    known = _fields(model, path[:-1])
    from_name = (field for field in known if _normalized(field) == f"{name}from")  # url: urlFrom
    if similar := closest_name(name, known) or next(from_name, None):
        return f'is not a known field (did you mean "{similar}"?)'
    place = tuple(part for part in path[:-1] if isinstance(part, str))
    elsewhere = [p for p in _all_paths(model, ()) if _normalized(p[-1]) == name]
    if elsewhere:
        nearest = min(elsewhere, key=lambda p: (-_shared(place, p), len(p)))
        return f'is not a known field here (did you mean "{".".join(nearest)}"?)'
    return f"is not a known field; known here: {', '.join(known)}"


def _shared(one: Sequence[str], other: Sequence[str]) -> int:
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _correction(manifest: type[BaseModel], value: object, path: FieldPath, *, is_list: bool) -> str:
    """Write the field as it was probably meant; "" if that is anybody's guess."""
    *place, name = (part for part in path if isinstance(part, str))
    is_list = is_list or isinstance(path[-1], int)
    if isinstance(value, Mapping):
        return '; begin each entry with "- "'
    if name == "model" and isinstance(value, str):
        provider, _, of_provider = value.partition(":")
        if provider in PROVIDERS and _MODEL_NAME.fullmatch(of_provider):
            return f"; write model: {{provider: {provider}, name: {of_provider}}}"
    model = _fields(manifest, tuple(place)).get(name)
    text = shown_value(value, path)[len(" (got ") : -1] or "…"
    if name == "command" and isinstance(value, str):
        text = text.strip('"').replace(" ", ", ")
    elif _PLAIN.fullmatch(text) and resolve_scalar(text[1:-1]) == value:
        text = text[1:-1]
    item = _needed_fields(model, text) if model else text
    if not item or isinstance(value, list):
        return ""
    return f"; write {name}: [{item}]" if is_list else f"; write {name}: {item}"


def _needed_fields(model: type[BaseModel], text: str = "…") -> str:
    """Write a mapping with the fields that it needs; `text` is the value of one that it fits."""
    is_url = "://" in text
    one_of = getattr(model, "exactly_one_of", ()) or getattr(model, "at_least_one_of", ())
    needed = [f.alias or name for name, f in model.model_fields.items() if f.is_required()]
    needed += getattr(model, "usual", ())
    urls = [name for name in one_of if name in _URLS]
    needed += urls[:1] if is_url and urls else one_of[:1]
    fields = _fields(model, ())
    lists = {f.alias or n for n, f in model.model_fields.items() if "tuple[" in str(f.annotation)}
    words = {f.alias or n for n, f in model.model_fields.items() if text not in _words(f, text)}
    plain = [
        n for n in needed if not fields[n] and n not in lists | words and (n in _URLS) == is_url
    ]
    values = dict.fromkeys(needed, "…") | dict.fromkeys(plain[:1], text)
    values |= {name: _needed_fields(inner) for name in needed if (inner := fields[name])}
    values |= dict.fromkeys(lists.intersection(needed), "[…]")
    if "secretKeyRef" in values:
        values["secretKeyRef"] = "{name: models, key: api-key}"
    written = ", ".join(f"{name}: {value}" for name, value in values.items())
    return f"{{{written}}}" if needed else ""


def _words(field: FieldInfo, text: str) -> Collection[str]:
    """Return the words of which the field's value must be one; else the text itself."""
    return get_args(field.annotation) if get_origin(field.annotation) is Literal else (text,)


def closest_name(name: str, known: Iterable[str]) -> str | None:
    """Find a known name close to this one, whatever its case and with or without `_`."""
    by_name = {_normalized(one): one for one in known}
    similar = get_close_matches(_normalized(name), by_name, n=1, cutoff=0.7)
    return by_name[similar[0]] if similar else None


def _normalized(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def _fields(model: type[BaseModel], path: FieldPath) -> dict[str, type[BaseModel] | None]:
    """List the fields of the mapping at a path, each with the model of its value."""
    fields = {
        field.alias or name: _model_in(field.annotation)
        for name, field in model.model_fields.items()
    }
    if not path:
        return fields
    inner = model if isinstance(path[0], int) else fields.get(path[0])
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
