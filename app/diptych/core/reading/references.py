"""References from a call to the result of an earlier one (loop.md §3).

`${id}` alone is the result's value, `${id.path.to.field}` a field of it; within a longer string
they are inserted as text. `$${` is a literal `${`. Inserted text is not searched for references.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from diptych.core.messages import JSON, Call, Delegation
from diptych.core.reading.strict_json import decode_json, is_deep

MAX_INSERTED = 4 * 1024 * 1024
"""Maximum characters that references may insert into one call."""

_REFERENCE = re.compile(r"\$\$\{|\$\{(?P<path>[^{}]*)\}")
_INDEX = re.compile(r"[0-9]{1,9}")
_SHOWN = 60  # characters of a path in an error


def referenced_labels(value: JSON) -> set[str]:
    """Return all ids that a value refers to, known or not."""
    return {
        _split(match["path"])[0]
        for text in _strings(value)
        for match in _REFERENCE.finditer(text)
        if match["path"] is not None
    }


def has_reference(value: JSON) -> bool:
    """Whether a value contains anything that `fill_references` would change."""
    return any("${" in text for text in _strings(value))


def reference_value(value: JSON, text: str) -> JSON:
    """Return the value that a reference to a result inserts: its structured value, or its text.

    MCP's wrapper `{"result": x}` counts as `x`. Text that is a JSON object or array as a whole
    counts as that value.
    """
    if value is None:
        return _structured(text)
    if isinstance(value, Mapping) and value.keys() == {"result"}:
        inner = value["result"]
        return _structured(inner) if isinstance(inner, str) else inner
    return value


def fill_references(call: Call, values: Mapping[str, JSON]) -> Call | str:
    """Return the call with its references resolved, or a sentence with the problem.

    `values` maps labels to values (see `reference_value`). Only for replies with labels: elsewhere,
    `${…}` is plain text.
    """
    filling = _Filling(values)
    try:
        if isinstance(call, Delegation):
            return replace(call, task=filling.text(call.task))
        return replace(call, arguments={k: filling.value(v) for k, v in call.arguments.items()})
    except RecursionError:
        return "the arguments are nested too deeply"
    except _LeadsNowhere as problem:
        return str(problem)


class _LeadsNowhere(Exception):
    """A reference cannot be resolved; the message says why."""


class _Filling:
    """Resolves the references of one call."""

    def __init__(self, values: Mapping[str, JSON]) -> None:
        self._values = values
        self._left = MAX_INSERTED
        self._written: dict[str, str] = {}  # each path's value as text

    def value(self, value: JSON) -> JSON:
        match value:
            case str():
                whole = _REFERENCE.fullmatch(value)
                if whole and whole["path"] is not None:
                    return self._found(whole["path"])
                return self.text(value)
            case list():
                return [self.value(item) for item in value]
            case Mapping():
                return {key: self.value(item) for key, item in value.items()}
            case _:
                return value

    def text(self, text: str) -> str:
        return _REFERENCE.sub(self._inserted, text)

    def _inserted(self, match: re.Match[str]) -> str:
        if match["path"] is None:
            return "${"
        self._found(match["path"])
        return self._written[match["path"]]

    def _found(self, path: str) -> JSON:
        found = _follow(path, self._values)
        if path not in self._written:
            self._written[path] = _written(found)
        self._left -= len(self._written[path])
        if self._left < 0:
            problem = f"references insert more than {MAX_INSERTED} characters into this call"
            raise _LeadsNowhere(problem)
        return found


def _structured(text: str) -> JSON:
    """Return the object or array that a text encodes, else the text."""
    if not text.lstrip().startswith(("{", "[")):
        return text
    decoded = decode_json(text)
    if not isinstance(decoded, Mapping | list) or is_deep(decoded):
        return text
    return decoded


def _follow(path: str, values: Mapping[str, JSON]) -> JSON:
    label, *fields = _split(path)
    if label not in values:
        raise _LeadsNowhere(f"{_quoted(path)}: there is no result of {label[:_SHOWN]!r}")
    place: JSON = values[label]
    for field in fields:
        match place:
            case Mapping() if field in place:
                place = place[field]
            case list() if _INDEX.fullmatch(field) and int(field) < len(place):
                place = place[int(field)]
            case _:
                there = f"{field[:_SHOWN]!r} is not in {_described(place)}"
                raise _LeadsNowhere(f"{_quoted(path)} leads nowhere: {there}")
    return place


def _described(place: JSON) -> str:
    match place:
        case Mapping():
            names = ", ".join(sorted(place)[:20])
            return f"an object with the fields: {names[:300]}" if names else "an empty object"
        case list():
            return f"a list of {len(place)}"
        case str():
            return "a text, which has no fields"
        case _:
            return f"{json.dumps(place)}, which has no fields"


def _quoted(path: str) -> str:
    return "${" + path[:_SHOWN] + "}"


def _written(value: JSON) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=dict)


def _split(path: str) -> list[str]:
    return path.strip().split(".")


def _strings(value: JSON) -> Iterator[str]:
    unvisited = [value]
    while unvisited:
        match unvisited.pop():
            case str() as text:
                yield text
            case list() as items:
                unvisited.extend(items)
            case Mapping() as fields:
                unvisited.extend(fields.values())
            case _:
                pass
