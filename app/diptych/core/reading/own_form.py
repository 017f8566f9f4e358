"""Parses calls in our own form, from JSON to `ToolCall` and `Delegation` (loop.md §3)."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from diptych.core.messages import JSON, Call, Delegation, ToolCall
from diptych.core.reading.verdict import ActionError, quoted

_LABEL = re.compile(r"[A-Za-z0-9_-]{1,64}")
_READ = frozenset(
    {"tool", "agent", "task", "arguments", "parameters", "calls", "id", "after"}
    | {"type", "index", "tool_call_id", "call_id"}  # of APIs, without meaning here
)
_FORMS = (
    'a tool call is {"tool": "<name>", "arguments": {…}}, '
    'a delegation {"agent": "<name>", "task": "<text>"}'
)


def call_objects(values: Iterable[JSON]) -> Iterable[dict[str, Any] | ActionError]:
    """Yield the objects that should be calls; `{}` beside them is ignored."""
    for value in values:
        match value:
            case {"calls": calls, **others} if calls is not None:
                if any(others.get(key) is not None for key in ("tool", "agent", "arguments")):
                    yield ActionError("ambiguous", f'"calls" stands alone in its object; {_FORMS}')
                elif isinstance(calls, list):
                    yield from _elements(calls)
                else:
                    yield ActionError("missing_field", f'"calls" must be a list; {_FORMS}')
            case list():
                yield from _elements(value)
            case _:
                yield from _elements([value])


def _elements(elements: list[JSON]) -> Iterable[dict[str, Any] | ActionError]:
    for element in elements:
        if not isinstance(element, dict):
            yield ActionError("missing_field", f"each of several calls is an object: {_FORMS}")
        elif not is_no_op(element):
            yield element


def is_no_op(value: JSON) -> bool:
    """Whether an object requests nothing: `{}` or `{"tool": null}`, whatever its other keys."""
    if not isinstance(value, dict) or any(value.get(key) for key in ("arguments", "task")):
        return False
    named = [value[key] for key in ("tool", "agent", "calls") if key in value]
    return named == [None] * len(named) and bool(named or not value)


def ignored_keys(values: Iterable[JSON]) -> tuple[str, ...]:
    """Return the keys that the parser ignores, such as `output` or `thought`."""
    given = (key for each in _objects(values) for key, value in each.items() if value is not None)
    return tuple(key for key in dict.fromkeys(given) if key not in _READ)


def _objects(values: Iterable[JSON]) -> Iterator[dict[str, JSON]]:
    for value in values:
        if isinstance(value, list):
            yield from _objects(value)
        elif isinstance(value, dict):
            yield value
            yield from _objects([value.get("calls")])


def read_call(item: dict[str, Any], call_id: str) -> Call | ActionError:
    """Parse one call. Null counts as absent; unknown keys are ignored."""
    tool, agent = item.get("tool"), item.get("agent")
    label, after = _label(item.get("id")), item.get("after")
    if tool is not None and agent is not None:
        return ActionError("ambiguous", f'a call has "tool" or "agent", not both: {_FORMS}')
    if isinstance(label, ActionError):
        return label
    waits_for = _after([] if after is None else after)
    if isinstance(waits_for, ActionError):
        return waits_for
    call = _tool_call(item, call_id) if agent is None else _delegation(item, call_id)
    if isinstance(call, ActionError) or (label is None and not waits_for):
        return call
    return replace(call, label=label, after=waits_for)


def _tool_call(item: dict[str, Any], call_id: str) -> ToolCall | ActionError:
    name, arguments = item.get("tool"), item.get("arguments")
    if not isinstance(name, str) or not name.strip():
        return ActionError("missing_field", f'"tool" or "agent" must name what to call: {_FORMS}')
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        problem = f'"arguments" of {quoted(name)} must be an object, as in {{"name": "value"}}'
        return ActionError("invalid_arguments", problem)
    return ToolCall(call_id, name, arguments)


def _delegation(item: dict[str, Any], call_id: str) -> Delegation | ActionError:
    name, task = item.get("agent"), item.get("task")
    if not isinstance(name, str) or not name.strip():
        return ActionError("missing_field", f'"agent" must be the name of an agent: {_FORMS}')
    if not isinstance(task, str) or not task.strip():
        problem = f'the delegation to {quoted(name)} needs a "task", which is a text'
        return ActionError("missing_field", problem)
    return Delegation(call_id, name, task)


def _label(label: JSON) -> str | ActionError | None:
    if label is None:
        return None
    text = str(label) if type(label) is int else label  # models write {"id": 1} too
    if isinstance(text, str) and _LABEL.fullmatch(text):
        return text
    problem = 'an "id" is 1 to 64 letters, digits, "_" or "-", without other characters'
    return ActionError("invalid_graph", problem)


def _after(after: JSON) -> tuple[str, ...] | ActionError:
    labels = [_label(label) for label in after] if isinstance(after, list) else [None]
    names = [label for label in labels if isinstance(label, str)]
    if len(names) < len(labels):
        return ActionError("invalid_graph", '"after" must be a list of the ids of other calls')
    return tuple(dict.fromkeys(names))
