"""Converts arguments to the types of their schema where the model's meaning is plain."""

from collections.abc import Mapping
from typing import Any

from diptych.core.messages import JSON, JSONObject
from diptych.core.reading.strict_json import decode_json, is_deep

_PYTHON_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "number": (int, float),
    "integer": int,
    "boolean": bool,
}


def typed_arguments(schema: JSONObject, arguments: JSONObject) -> JSONObject:
    """Give the arguments as they are meant; those that are right already are left alone.

    - A null is dropped if its field is not required.
    - A text is read as JSON if its field's schema has a `type` that does not admit strings, admits
      the type of that JSON, and has no `$ref`, `anyOf`, `oneOf`, `allOf`, `enum` or `const`, which
      might admit the text itself. `"5"` is so 5 for an integer, and stays a text for anything else.

    Only the arguments themselves are looked at, not what is inside them.
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
        value = {"True": True, "False": False}.get(text.strip())  # as Python writes them
    fits = any(_has_type(value, kind) for kind in kinds) and not is_deep(value)
    return value if fits else text


def _has_type(value: JSON, kind: str) -> bool:
    expected = _PYTHON_TYPES.get(kind)
    if expected is None or (isinstance(value, bool) and kind != "boolean"):
        return False
    return isinstance(value, expected)


def _kinds(field: JSON) -> set[str]:
    """Give the types that a field's schema names, or none if more than its `type` decides."""
    if not isinstance(field, Mapping):
        return set()
    if not {"$ref", "anyOf", "oneOf", "allOf", "enum", "const"}.isdisjoint(field):
        return set()
    kind = field.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    return {k for k in kinds if isinstance(k, str)}
