"""Checks a call's arguments against its tool's input schema.

Schemas come from strangers: references to other documents are never fetched, and a schema that is
invalid or too costly checks nothing; the server still does.
"""

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any

from jsonschema.exceptions import SchemaError, UnknownType, ValidationError, best_match
from jsonschema.protocols import Validator
from referencing.exceptions import Unresolvable

from diptych.core.catalog import Tool
from diptych.core.messages import JSON, JSONObject
from diptych.core.reading.bounded_schema import TooCostly, errors_of, validator_of
from diptych.core.reading.references import has_reference
from diptych.core.reading.strict_json import decode_json, is_deep

SCHEMA_PROBLEMS = (  # observed from jsonschema for schemas that pass its own check
    SchemaError,
    UnknownType,
    Unresolvable,
    RecursionError,
    re.error,
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    TooCostly,
)
_MAX_ERRORS = 50  # errors to choose the most helpful from
_SHAPE = frozenset(  # keywords that do not depend on strings inside, thus on references
    {
        "additionalProperties",
        "dependentRequired",
        "maxItems",
        "maxProperties",
        "minItems",
        "minProperties",
        "propertyNames",
        "required",
        "type",
    }
)


def check_arguments(tool: Tool, arguments: JSONObject, *, references_fit: bool) -> str | None:
    """Return the problem with a tool's arguments, for the model, or None if they are valid.

    With `references_fit`, errors that depend on an unresolved `${…}` are ignored; the call is
    checked again when it is resolved.
    """
    try:
        validator = schema_validator(tool.schema_text)
        errors = errors_of(
            validator, arguments, _MAX_ERRORS, lambda e: not (references_fit and _may_be_filled(e))
        )
        error = best_match(errors)
    except SCHEMA_PROBLEMS:
        return None
    if error is None:
        return None
    return (
        f"{tool.name}: {_place(error)}: {_cut(error.message)}. "
        f"Expected: {_expected(tool.input_schema)}"
    )


@lru_cache(maxsize=256)
def schema_validator(schema_text: str) -> Validator:
    """Return a cached validator for a schema, given as JSON; use it with `errors_of`.

    Raises one of `SCHEMA_PROBLEMS`.
    """
    return validator_of(json.loads(schema_text))


def _may_be_filled(error: ValidationError) -> bool:
    instance: Any = error.instance
    if not has_reference(instance):
        return False
    if isinstance(instance, str):
        return True
    if error.context:  # of anyOf and oneOf: one branch that may fit is enough
        branches: dict[Any, bool] = {}
        for inner in error.context:
            branch = inner.relative_schema_path[0]
            branches[branch] = branches.get(branch, True) and _may_be_filled(inner)
        return any(branches.values())
    conditional = not {"then", "else"}.isdisjoint(error.relative_schema_path)
    return conditional or error.validator not in _SHAPE


def _place(error: ValidationError) -> str:
    steps = (f"[{p}]" if isinstance(p, int) else f".{p}" for p in error.absolute_path)
    return _cut("arguments" + "".join(steps))


def _cut(text: str, head: int = 100, tail: int = 120) -> str:
    """Shorten a message in its middle, as it ends with what was expected."""
    return text if len(text) <= head + tail else f"{text[:head]} … {text[-tail:]}"


def _expected(schema: JSONObject) -> str:
    return "; ".join(islice(_parameters(schema), 30))[:600] or "an object without fields"


def _parameters(schema: JSONObject) -> Iterator[str]:
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, Mapping):
        return
    for name, parameter in properties.items():
        kind: JSON = parameter.get("type") if isinstance(parameter, Mapping) else None
        words = [json.dumps(kind).replace('"', "")] if kind else []
        words += ["required"] if isinstance(required, list) and name in required else []
        yield f"{name} ({', '.join(words)})" if words else name


_PYTHON_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "number": (int, float),
    "integer": int,
    "boolean": bool,
}


def typed_arguments(schema: JSONObject, arguments: JSONObject) -> JSONObject:
    """Return the arguments with obvious type mistakes corrected.

    - A null is dropped if its field is not required.
    - A string is parsed as JSON if the field's `type` excludes strings and allows the parsed type,
      and no `$ref`, `anyOf`, `oneOf`, `allOf`, `enum` or `const` could allow the string itself:
      `"5"` becomes 5 for an integer.

    Nested values are left alone.
    """
    properties = schema.get("properties")
    required = schema.get("required")
    known = properties if isinstance(properties, Mapping) else {}
    needed = required if isinstance(required, list) else []
    typed: dict[str, Any] = {}
    for name, value in arguments.items():
        if value is not None or name in needed:
            typed[name] = _read(value, known.get(name)) if isinstance(value, str) else value
    return typed


def _read(text: str, field: JSON) -> JSON:
    kinds = _kinds(field)
    if not kinds or not kinds <= _PYTHON_TYPES.keys() | {"null"}:
        return text
    value = decode_json(text)
    if isinstance(value, ValueError):
        value = {"True": True, "False": False}.get(text.strip())  # Python's spelling
    fits = any(_has_type(value, kind) for kind in kinds) and not is_deep(value)
    return value if fits else text


def _has_type(value: JSON, kind: str) -> bool:
    expected = _PYTHON_TYPES.get(kind)
    if expected is None or (isinstance(value, bool) and kind != "boolean"):
        return False
    return isinstance(value, expected)


def _kinds(field: JSON) -> set[str]:
    """Return the types that a field's schema allows; none if other keywords matter too."""
    if not isinstance(field, Mapping):
        return set()
    if not {"$ref", "anyOf", "oneOf", "allOf", "enum", "const"}.isdisjoint(field):
        return set()
    kind = field.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    return {k for k in kinds if isinstance(k, str)}
