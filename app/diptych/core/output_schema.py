"""Checks answers against an output schema, and checks output schemas (loop.md §7).

Schemas come from callers. Rejected are references to other documents (never fetched), schemas that
are large or deep, and invalid ones. A check that takes too many steps counts as impossible
(`reading.bounded_schema`).
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError, best_match
from jsonschema.validators import validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import specification_with

from diptych.core.messages import JSON, JSONObject
from diptych.core.reading.arguments import SCHEMA_PROBLEMS, schema_validator
from diptych.core.reading.bounded_schema import errors_of
from diptych.core.reading.strict_json import decode_json, is_deep

MAX_SCHEMA_CHARS = 64 * 1024
_APPLIED_TO: tuple[JSON, ...] = ({}, [])  # some problems of a schema show only when it is applied
_MAX_ERRORS = 50  # errors to choose the most helpful from
_MESSAGE_CHARS = 300
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_FENCED = re.compile(
    r"^(`{3,}|~{3,})[ \t]*(?:json[5cl]?)?[ \t]*\n(.*?)\n[ \t]*\1",
    re.MULTILINE | re.DOTALL,
)
_ANY_OBJECT = '{"type": "object"}'


@dataclass(frozen=True, slots=True)
class Fit:
    """An answer that fits: its JSON text without a fence, and the value."""

    text: str
    value: JSON


@dataclass(frozen=True, slots=True)
class Misfit:
    """Why an answer does not fit, for the model."""

    problem: str


@dataclass(frozen=True, slots=True)
class SchemaProblem:
    """Why a schema is unusable, and where, as in `.properties.a[0]`; "" is the whole schema."""

    text: str
    place: str = ""


def schema_problem(schema: JSONObject) -> SchemaProblem | None:
    """Return why a schema is unusable, or None; `{}` stands for any JSON object.

    A new schema costs about 1 ms for every two fields.
    """
    if is_deep(dict(schema)):
        return SchemaProblem("is nested too deeply")
    try:
        text = json.dumps(schema, default=dict)
    except (TypeError, ValueError):
        return SchemaProblem("is not JSON")
    if len(text) > MAX_SCHEMA_CHARS:
        return SchemaProblem(f"is longer than {MAX_SCHEMA_CHARS // 1024} KiB")
    return _problem(text)


@lru_cache(maxsize=128)
def _problem(schema_text: str) -> SchemaProblem | None:
    try:
        checker = schema_validator(schema_text)
        if target := _unresolvable_reference(json.loads(schema_text)):
            shown = _cut(target, 80)
            if target.startswith("#"):
                return SchemaProblem(f"refers to {shown}, which is not in it")
            return SchemaProblem(f"refers to another document ({shown}), which is never fetched")
        for value in _APPLIED_TO:
            errors_of(checker, value, _MAX_ERRORS)
    except SCHEMA_PROBLEMS as error:
        said = _cut(_said(error), _MESSAGE_CHARS)
        path = getattr(error, "absolute_path", ())
        return SchemaProblem(f"is not a valid JSON schema: {said}", _steps(path))
    return None


def read_output(schema: JSONObject, answer: str) -> Fit | Misfit:
    """Parse an answer, with or without a fence, and check it against the schema.

    The schema `{}` accepts any JSON object.
    """
    text = _without_fence(answer.strip())
    value = decode_json(text)
    if isinstance(value, ValueError):
        return Misfit(f"it is not valid JSON: {_cut(str(value), _MESSAGE_CHARS)}")
    if is_deep(value):
        return Misfit("it is nested too deeply")
    try:
        checker = schema_validator(json.dumps(schema, default=dict) if schema else _ANY_OBJECT)
        error = best_match(errors_of(checker, value, _MAX_ERRORS))
    except SCHEMA_PROBLEMS:
        return Misfit("the schema cannot be applied to it")
    if error is not None:
        return Misfit(f"{_place(error)}: {_cut(error.message, _MESSAGE_CHARS)}")
    return Fit(text, value)


def _without_fence(text: str) -> str:
    """Return the content of the only fenced JSON block; otherwise, the text."""
    if text[:1] in ("{", "["):
        return text
    blocks = list(islice(_FENCED.finditer(text), 2))
    return blocks[0][2].strip() if len(blocks) == 1 else text


def _unresolvable_reference(schema: JSONObject) -> str | None:
    """Return a reference that leads nowhere, or out of the schema."""
    kind: Any = validator_for(schema, default=Draft202012Validator)
    whole = specification_with(kind.META_SCHEMA["$schema"]).create_resource(schema)
    base = whole.id() or ""
    unvisited = [(whole, Registry().with_resource(base, whole).crawl().resolver(base))]
    while unvisited:
        part, resolver = unvisited.pop()
        if isinstance(part.contents, Mapping):
            targets = map(part.contents.get, _REFERENCES)
            for target in (target for target in targets if isinstance(target, str)):
                try:
                    resolver.lookup(target)
                except Unresolvable:
                    return target
        unvisited += [(each, resolver.in_subresource(each)) for each in part.subresources()]
    return None


def _place(error: ValidationError) -> str:
    return _cut(f"answer{_steps(error.absolute_path)}", _MESSAGE_CHARS)


def _steps(path: Iterable[str | int]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)


def _said(error: BaseException) -> str:
    if isinstance(error, RecursionError):  # its own message is about Python
        return "it refers to itself without end"
    return str(getattr(error, "message", None) or error).partition("\n")[0]


def _cut(text: str, max_chars: int) -> str:
    return (
        text if len(text) <= max_chars else f"{text[: max_chars // 2]} … {text[-max_chars // 2 :]}"
    )
