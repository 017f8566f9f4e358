"""Reads a phase-1 reply: calls that may be run, a no-op, prose, or an error for the model.

Implements loop.md §3. The whole reply is checked before anything of it runs.

Not here: finding JSON in text (`extraction`), schemas (`arguments`), filling references
(`references`), whether the model's own length limit cut the reply (`reducer`).
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from diptych.loop.actions.arguments import check_arguments
from diptych.loop.actions.extraction import ActionError, NoOp, Prose, find_actions
from diptych.loop.actions.references import referenced_labels
from diptych.loop.catalog import Catalog
from diptych.loop.messages import JSON, Call, Delegation, ToolCall

MAX_CALLS = 64  # in one reply
_LABEL = re.compile(r"[A-Za-z0-9_-]{1,64}")
_LISTED = 1000  # characters of the names that an error lists
_SHOWN = 60  # characters of one name
_FORMS = (
    'a tool call is {"tool": "<name>", "arguments": {…}}, '
    'a delegation {"agent": "<name>", "task": "<text>"}'
)


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls that a reply asks for, in its order; at least one.

    Their ids are "1", "2" … by place: unique in the reply, not in the run.
    """

    calls: tuple[Call, ...]


def parse(reply: str, catalog: Catalog) -> Calls | NoOp | Prose | ActionError:
    """Read a phase-1 reply. Never raises, whatever the text."""
    found = find_actions(reply)
    return check_calls(found, catalog) if isinstance(found, tuple) else found


def check_calls(values: Sequence[JSON], catalog: Catalog) -> Calls | NoOp | ActionError:
    """Check values that are JSON already: calls, lists of calls, `{"calls": […]}`, or `{}`."""
    calls: list[Call] = []
    for item in _call_objects(values):
        call = item if isinstance(item, ActionError) else _call(item, str(len(calls) + 1))
        if isinstance(call, ActionError):
            return call
        calls.append(call)
    if not calls:
        return NoOp()
    if len(calls) > MAX_CALLS:
        detail = f"{len(calls)} calls in one reply; ask for at most {MAX_CALLS} at a time"
        return ActionError("invalid_graph", detail)
    linked = _linked(calls)
    if isinstance(linked, ActionError):
        return linked
    labelled = any(call.label is not None for call in linked)
    for call in linked:
        if problem := _catalog_problem(call, catalog, references_fit=labelled):
            return problem
    return Calls(linked)


def _call_objects(values: Iterable[JSON]) -> Iterable[dict[str, Any] | ActionError]:
    """Give the objects that should be calls; `{}` beside them is noise."""
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
        elif element:
            yield element


def _call(item: dict[str, Any], call_id: str) -> Call | ActionError:
    """Read one call. A null counts as an absent key; unknown keys are ignored."""
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
    if isinstance(call, ActionError):
        return call
    return replace(call, label=label, after=waits_for)


def _tool_call(item: dict[str, Any], call_id: str) -> ToolCall | ActionError:
    name, arguments = item.get("tool"), item.get("arguments")
    if not isinstance(name, str) or not name.strip():
        return ActionError("missing_field", f'"tool" or "agent" must name what to call: {_FORMS}')
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        problem = f'"arguments" of {_quoted(name)} must be an object, as in {{"name": "value"}}'
        return ActionError("invalid_arguments", problem)
    return ToolCall(call_id, name, arguments)


def _delegation(item: dict[str, Any], call_id: str) -> Delegation | ActionError:
    name, task = item.get("agent"), item.get("task")
    if not isinstance(name, str) or not name.strip():
        return ActionError("missing_field", f'"agent" must be the name of an agent: {_FORMS}')
    if not isinstance(task, str) or not task.strip():
        problem = f'the delegation to {_quoted(name)} needs a "task", which is a text'
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


def _linked(calls: list[Call]) -> tuple[Call, ...] | ActionError:
    """Give the calls with the labels that each waits for, references included, if it is a graph."""
    times = Counter(call.label for call in calls if call.label is not None)
    if twice := [label for label, count in times.items() if count > 1]:
        return ActionError("invalid_graph", f"the id {_quoted(twice[0])} is used twice")
    linked: list[Call] = []
    for call in calls:
        implied = sorted(referenced_labels(_text_of(call))) if times else []
        after = tuple(dict.fromkeys((*call.after, *implied)))
        if unknown := [label for label in after if label not in times]:
            return ActionError("invalid_graph", _unknown_label(unknown[0], times))
        linked.append(replace(call, after=after))
    if cycle := _cycle(linked):
        names = _listed(_quoted(label) for label in cycle)
        return ActionError("invalid_graph", f"these calls wait for each other in a circle: {names}")
    return tuple(linked)


def _text_of(call: Call) -> JSON:
    return call.task if isinstance(call, Delegation) else call.arguments


def _unknown_label(label: str, known: Iterable[str]) -> str:
    return (
        f"no call in this reply has the id {_quoted(label)}; ids here: {_listed(known)}. "
        "(A ${ that is no reference is written $${.)"
    )


def _cycle(calls: Sequence[Call]) -> list[str]:
    """Give the labels of the calls that can never start (Kahn's algorithm)."""
    blocked = {call.id: len(call.after) for call in calls}
    waiting: dict[str, list[Call]] = {}
    for call in calls:
        for label in call.after:
            waiting.setdefault(label, []).append(call)
    ready = [call for call in calls if not call.after]
    while ready:
        call = ready.pop()
        del blocked[call.id]
        for other in waiting.get(call.label or "", ()):
            blocked[other.id] -= 1
            if not blocked[other.id]:
                ready.append(other)
    return [call.label or f"(call {call.id})" for call in calls if call.id in blocked]


def _catalog_problem(call: Call, catalog: Catalog, *, references_fit: bool) -> ActionError | None:
    """Say what is wrong with a call's name or arguments.

    A name that belongs to an unavailable server or agent passes: its result is `unavailable`.
    """
    match call:
        case Delegation(agent=name):
            if catalog.agent(name) or catalog.is_unavailable_agent(name):
                return None
            agents = _listed(peer.name for peer in catalog.agents)
            hint = " (it is a tool)" if catalog.tool(name) else ""
            problem = f"there is no agent {_quoted(name)}{hint}; agents available: {agents}"
            return ActionError("unknown_agent", problem)
        case ToolCall(name=name, arguments=arguments):
            tool = catalog.tool(name)
            if tool is None:
                return _unknown_tool(name, catalog)
            misfit = check_arguments(tool, arguments, references_fit=references_fit)
            return ActionError("invalid_arguments", misfit) if misfit else None


def _unknown_tool(name: str, catalog: Catalog) -> ActionError | None:
    if catalog.missing_for_tool(name):
        return None
    tools = _listed(listed for listed, _ in catalog.listed())
    hint = " (it is an agent)" if catalog.agent(name) else ""
    problem = f"there is no tool {_quoted(name)}{hint}; tools available: {tools}"
    return ActionError("unknown_tool", problem)


def _listed(names: Iterable[str]) -> str:
    text = ", ".join(names)
    return (text if len(text) <= _LISTED else f"{text[:_LISTED]} …") or "none"


def _quoted(name: str) -> str:
    return json.dumps(name if len(name) <= _SHOWN else f"{name[:_SHOWN]}…", ensure_ascii=False)
