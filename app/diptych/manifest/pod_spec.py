"""Finds the fields of a `podTemplate` that a Kubernetes API would refuse, for `diptych check`.

The fields and their types are Kubernetes' own (`pod_spec.json`, which `tools/pod_spec` makes). The
template is merged into another one, so nothing is required but what its lists are merged by.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from diptych.manifest.documents import FieldPath

Mistake: TypeAlias = tuple[FieldPath, str]
"""The field, and the problem as the end of a sentence."""

_SCHEMA = Path(__file__).with_name("pod_spec.json")
_DEFAULTS = {"protocol": "TCP"}
_QUANTITY = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+|[numkMGTPE]|[KMGTPE]i)?")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")


def pod_spec_mistakes(value: Mapping[str, Any], path: FieldPath = ()) -> Iterator[Mistake]:
    """Find the mistakes of (a part of) a PodSpec at `path`."""
    schema = _schema()
    yield from _mistakes(schema["root"], value, path)


@cache
def _schema() -> dict[str, Any]:
    schema: dict[str, Any] = json.loads(_SCHEMA.read_text(encoding="utf-8"))
    return schema


def _mistakes(wanted: Any, value: object, path: FieldPath) -> Iterator[Mistake]:  # noqa: ANN401
    if value is None:  # `validation` reports it
        return
    match wanted:
        case [inner, *keys]:
            yield from _list_mistakes(inner, keys[0] if keys else [], value, path)
        case {"": inner}:
            yield from _map_mistakes(inner, value, path)
        case str() if wanted in _schema()["types"]:
            yield from _object_mistakes(wanted, value, path)
        case _:
            is_right, sentence = _SCALARS[wanted]
            if not is_right(value):
                yield path, f"must be {sentence}"


def _object_mistakes(name: str, value: object, path: FieldPath) -> Iterator[Mistake]:
    fields: Mapping[str, Any] = _schema()["types"][name]
    if not isinstance(value, Mapping):
        yield path, "must be a mapping of fields"
        return
    for field, inner in value.items():
        if field in fields:
            yield from _mistakes(fields[field], inner, (*path, field))
        else:
            yield (*path, str(field)), _unknown_field(str(field), name, fields)


def _unknown_field(field: str, name: str, fields: Mapping[str, Any]) -> str:
    similar = get_close_matches(field, fields, n=1, cutoff=0.7)
    hint = f' (did you mean "{similar[0]}"?)' if similar else ""
    return f"is not a field of a Kubernetes {name}{hint}"


def _map_mistakes(inner: object, value: object, path: FieldPath) -> Iterator[Mistake]:
    if not isinstance(value, Mapping):
        yield path, "must be a mapping"
        return
    for name, one in value.items():
        yield from _mistakes(inner, one, (*path, str(name)))


def _list_mistakes(
    inner: object, keys: list[str], value: object, path: FieldPath
) -> Iterator[Mistake]:
    if not isinstance(value, list):
        yield path, "must be a list"
        return
    seen: set[tuple[str, ...]] = set()
    for index, entry in enumerate(value):
        yield from _mistakes(inner, entry, (*path, index))
        if not (keys and isinstance(entry, Mapping)):
            continue
        if keys[0] not in entry:
            yield (*path, index), f"needs a {keys[0]}, by which entries are told apart"
            continue
        values = tuple(str(entry.get(key, _DEFAULTS.get(key, ""))) for key in keys)
        if values in seen:
            yield (*path, index), f"has the same {' and '.join(keys)} as an entry before it"
        seen.add(values)


def _is_whole(bits: int) -> Callable[[object], bool]:
    bound = 2 ** (bits - 1)
    return lambda value: type(value) is int and -bound <= value < bound


def _is_quantity(value: object) -> bool:
    is_number = type(value) in {int, float}
    return is_number or (isinstance(value, str) and bool(_QUANTITY.fullmatch(value)))


_SCALARS: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "string": (lambda value: isinstance(value, str), "a string; quote it"),
    "boolean": (lambda value: isinstance(value, bool), "true or false"),
    "int32": (_is_whole(32), "a whole number"),
    "int64": (_is_whole(64), "a whole number"),
    "int or string": (
        lambda value: type(value) is int or isinstance(value, str),
        "a whole number or a string",
    ),
    "quantity": (_is_quantity, 'a quantity such as "500m", "2" or "512Mi"'),
    "time": (
        lambda value: isinstance(value, str) and bool(_TIME.fullmatch(value)),
        'a time such as "2026-01-31T12:00:00Z"',
    ),
}
