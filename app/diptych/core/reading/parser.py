"""Reads a phase-1 reply: calls that may be run, a no-op, prose, or an error for the model.

Implements loop.md §3. The whole reply is checked before anything of it runs.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from diptych.core.catalog import DELEGATE_PREFIX, Catalog
from diptych.core.messages import JSON, Call, Delegation, NativeCall, ToolCall
from diptych.core.reading.arguments import check_arguments, typed_arguments
from diptych.core.reading.bare_forms import code_in_fence, rewrite_bare
from diptych.core.reading.extraction import find_values
from diptych.core.reading.leading_reasoning import strip_lead
from diptych.core.reading.other_forms import calls_in, is_labelled, to_own_form, with_arguments
from diptych.core.reading.own_form import call_objects, ignored_keys, read_call
from diptych.core.reading.references import referenced_labels
from diptych.core.reading.repetition import repetition_end
from diptych.core.reading.strict_json import decode_json
from diptych.core.reading.tagged import rewrite_tagged
from diptych.core.reading.verdict import (
    ActionError,
    ActionErrorType,
    Calls,
    NoOp,
    Prose,
    Verdict,
    cut,
    listed,
    quoted,
)

_MAY_ACT = re.compile(r"[{\[<`~]|\A\s*\"")  # what each form has one of, and each error


@dataclass(frozen=True, slots=True)
class Rules:
    """By which rules a reply is read.

    `max_calls` bounds the calls of one reply. Without `other_forms` a reply is read as version 0.1
    read it: only our own form is a call, each as often as it is asked for, its arguments as they
    are. The records of its runs must be replayed so.
    """

    max_calls: int = 16
    other_forms: bool = True


RULES_0_1 = Rules(max_calls=64, other_forms=False)


def parse(reply: str, catalog: Catalog, rules: Rules = Rules()) -> Verdict:
    """Read a phase-1 reply, after its lead (`strip_lead`). Never raises, whatever the text."""
    if reply == "{}":  # as nearly every phase 1 ends
        return NoOp()
    if not _MAY_ACT.search(reply):  # as nearly every answer
        return Prose()
    if not rules.other_forms:
        found = find_values(reply)
        return check_calls(found, catalog, rules) if isinstance(found, tuple) else found
    text = reply.replace("\r\n", "\n").replace("\r", "\n")
    text = rewrite_bare(rewrite_tagged(text, catalog), catalog)
    found = find_values(text, catalog)
    if isinstance(found, tuple):
        return check_calls(found, catalog, rules)
    if isinstance(found, Prose) and (right := code_in_fence(text, catalog)):
        form = json.dumps(right, ensure_ascii=False, default=dict)
        return ActionError("json_syntax", f"a call is written as JSON, not as code: {cut(form)}")
    return found


def check_calls(
    values: Sequence[JSON], catalog: Catalog, rules: Rules = Rules()
) -> Calls | NoOp | ActionError:
    """Check values that are JSON already: calls, lists of calls, `{"calls": […]}`, or `{}`."""
    calls: list[Call] = []
    own = list(_in_own_form(values, catalog)) if rules.other_forms else values
    for item in call_objects(own):
        if isinstance(item, ActionError):
            return item
        written = with_arguments(item, catalog) if rules.other_forms else item
        call = read_call(written, str(len(calls) + 1))
        if isinstance(call, ActionError):
            return call
        calls.append(_typed(call, catalog) if rules.other_forms else call)
    if not calls:
        return NoOp()
    merged = _merged(calls, catalog) if rules.other_forms else Calls(tuple(calls))
    if len(merged.calls) > rules.max_calls:
        detail = f"{len(merged.calls)} calls in one reply; ask for at most {rules.max_calls}"
        kind: ActionErrorType = "too_many_calls" if rules.other_forms else "invalid_graph"
        return ActionError(kind, f"{detail} at a time")
    linked = linked_calls(list(merged.calls))
    if isinstance(linked, ActionError):
        return linked
    labelled = any(call.label is not None for call in linked)
    for call in linked:
        if problem := _catalog_problem(call, catalog, references_fit=labelled):
            return problem
    return Calls(linked, merged.places, ignored_keys(own))


def _in_own_form(values: Sequence[JSON], catalog: Catalog) -> Iterable[JSON]:
    """Give the values with calls in other forms as calls in ours."""
    labelled = is_labelled(values)
    for value in values:
        calls = calls_in(value, catalog, labelled=labelled)
        yield from [value] if calls is None else calls


def _typed(call: Call, catalog: Catalog) -> Call:
    tool = catalog.tool(call.name) if isinstance(call, ToolCall) else None
    if tool is None or not isinstance(call, ToolCall):
        return call
    typed = typed_arguments(tool.input_schema, call.arguments)
    return call if typed == call.arguments else replace(call, arguments=typed)


def _merged(calls: list[Call], catalog: Catalog) -> Calls:
    """Merge calls of the same name and arguments that have no labels; ids count those kept."""
    if len(calls) == 1:
        return Calls((calls[0],))
    kept: list[Call] = []
    first: dict[str, int] = {}
    places: list[int] = []
    for call in calls:
        key = f"label {len(kept)}" if call.label is not None else _identity(call, catalog)
        place = first.setdefault(key, len(kept))
        if place == len(kept):
            kept.append(replace(call, id=str(place + 1)))
        places.append(place)
    return Calls(tuple(kept), tuple(places) if len(kept) < len(calls) else ())


def _identity(call: Call, catalog: Catalog) -> str:
    match call:
        case Delegation(agent=name, task=task):
            what: list[JSON] = ["agent", name, task]
        case ToolCall(name=name, arguments=arguments):
            tool = catalog.tool(name)
            what = ["tool", tool.long_name if tool else name, arguments]
    return json.dumps([*what, list(call.after)], sort_keys=True, default=dict)


def _catalog_problem(call: Call, catalog: Catalog, *, references_fit: bool) -> ActionError | None:
    """Say what is wrong with a call's name or arguments.

    A name that belongs to an unavailable server or agent passes: its result is `unavailable`.
    """
    match call:
        case Delegation(agent=name):
            if catalog.agent(name) or catalog.is_unavailable_agent(name):
                return None
            agents = listed(peer.name for peer in catalog.agents)
            hint = " (it is a tool)" if catalog.tool(name) else ""
            problem = f"there is no agent {quoted(name)}{hint}; agents available: {agents}"
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
    tools = listed(listed for listed, _ in catalog.listed())
    hint = " (it is an agent)" if catalog.agent(name) else ""
    problem = f"there is no tool {quoted(name)}{hint}; tools available: {tools}"
    return ActionError("unknown_tool", problem)


def linked_calls(calls: list[Call]) -> tuple[Call, ...] | ActionError:
    """Give the calls with the labels that each waits for, references included, if it is a graph."""
    times = Counter(call.label for call in calls if call.label is not None)
    if twice := [label for label, count in times.items() if count > 1]:
        return ActionError("invalid_graph", f"the id {quoted(twice[0])} is used twice")
    linked: list[Call] = []
    for call in calls:
        implied = sorted(referenced_labels(_linkable(call))) if times else []
        after = tuple(dict.fromkeys((*call.after, *implied)))
        if unknown := [label for label in after if label not in times]:
            return ActionError("invalid_graph", _unknown_label(unknown[0], times))
        linked.append(call if after == call.after else replace(call, after=after))
    if cycle := _cycle(linked):
        names = listed(quoted(label) for label in cycle)
        return ActionError("invalid_graph", f"these calls wait for each other in a circle: {names}")
    return tuple(linked)


def _linkable(call: Call) -> JSON:
    return call.task if isinstance(call, Delegation) else call.arguments


def _unknown_label(label: str, known: Iterable[str]) -> str:
    return (
        f"no call in this reply has the id {quoted(label)}; ids here: {listed(known)}. "
        "(A ${ that is no reference is written $${.)"
    )


def _cycle(calls: Sequence[Call]) -> list[str]:
    """Give the labels of the calls that can never start (Kahn's algorithm)."""
    blocked = {call.id: len(call.after) for call in calls}
    dependents: dict[str, list[Call]] = {}
    for call in calls:
        for label in call.after:
            dependents.setdefault(label, []).append(call)
    ready = [call for call in calls if not call.after]
    while ready:
        call = ready.pop()
        del blocked[call.id]
        for other in dependents.get(call.label or "", ()):
            blocked[other.id] -= 1
            if not blocked[other.id]:
                ready.append(other)
    return [call.label or f"(call {call.id})" for call in calls if call.id in blocked]


MALFORMED_CALL = "malformed_call"
"""The finish reason of a reply with a native call that the model's server could not read."""

_Found = TypeVar("_Found", bound=Verdict)
_THINK, _THINK_END = "<think>", "</think>"
_FILTERED = "content_filter"
_CUT = {
    "length": "your reply was cut off by the length limit; be brief",
    _FILTERED: "your reply was stopped by a content filter, and nothing of it was done; ask for "
    "something else, or answer without it",
}


class Reading(NamedTuple):
    """What a model said, without its reasoning, and what that asks for."""

    said: str
    found: Verdict


def read_reply(text: str, finish_reason: str, catalog: Catalog, rules: Rules) -> Reading:
    """Read a reply of phase 1. Never raises, and takes time in proportion to its length.

    A reply that the model's length limit or a filter cut off, or that repeats itself, never has its
    calls run: all are `truncated`. What only repeats whole calls is no such: the same call is made
    once.
    """
    if not rules.other_forms:
        said = _without_think(text)
        ended = "stop" if finish_reason == _FILTERED else finish_reason  # as version 0.1 took it
        return Reading(said, unless_broken(parse(said, catalog, rules), ended))
    said, _ = strip_lead(text)
    found = parse(said, catalog, rules)
    end = repetition_end(said)
    if end is not None and not _repeats_calls_only(found):
        said = said[:end]
        if isinstance(found, Calls | ActionError):
            detail = "your reply repeated the same text again and again, and was cut; be brief"
            return Reading(said, ActionError("truncated", detail))
    return Reading(said, unless_broken(found, finish_reason))


def unless_broken(found: _Found, finish_reason: str) -> _Found | ActionError:
    """Give what was found, or why it does not count: a reply cut off, or an unreadable call.

    Nobody knows what else a reply would have said that was cut off, by its length or by a filter.
    """
    if finish_reason in _CUT and isinstance(found, Calls | ActionError):
        return ActionError("truncated", _CUT[finish_reason])
    if finish_reason == MALFORMED_CALL and not isinstance(found, Calls):
        return ActionError("json_syntax", "your call could not be read; write it anew, as a whole")
    return found


def _repeats_calls_only(found: Verdict) -> bool:
    """Whether what is repeated are calls as a whole, and nothing inside one of them."""
    if not isinstance(found, Calls) or not found.places:
        return False
    return all(repetition_end(_text_of(call)) is None for call in found.calls)


def _text_of(call: Call) -> str:
    if isinstance(call, Delegation):
        return call.task
    return json.dumps(call.arguments, ensure_ascii=False, default=dict)


def _without_think(reply: str) -> str:
    """Take a leading `<think>…</think>` off, as version 0.1 did."""
    text = reply.lstrip("\ufeff")
    while (rest := text.lstrip(" \t\r\n\f\v\ufeff")).startswith(_THINK):
        _, closed, after = rest.partition(_THINK_END)
        text = after.lstrip() if closed else ""
    return text


def read_native(
    calls: Sequence[NativeCall], finish_reason: str, catalog: Catalog, rules: Rules
) -> Calls | ActionError:
    """Read at least one native call; none counts of a reply that its length or a filter cut off.

    `Calls.places` says for each of them which call's result it gets, as in `parse`.
    """
    values: list[dict[str, Any]] = []
    error: ActionError | None = None
    for call in calls:
        arguments = _arguments(call)
        if isinstance(arguments, ActionError):
            error = error or arguments
        else:
            values.append(_own_form(call.name, arguments, catalog))
    found = error or check_calls(values, catalog, rules)
    if isinstance(found, NoOp):  # which no call with a name is
        found = ActionError("missing_field", "a call must name the function that it calls")
    return unless_broken(found, finish_reason)


def _arguments(call: NativeCall) -> "dict[str, Any] | ActionError":
    value: JSON | ValueError = decode_json(call.arguments) if call.arguments.strip() else {}
    if isinstance(value, str):  # written as JSON twice, as some servers do
        value = decode_json(value) if value.strip() else {}
    match value:
        case ValueError():
            problem = f"the arguments of {quoted(call.name)} are not JSON: {value}"
            return ActionError("json_syntax", problem)
        case None:
            return {}
        case dict():
            return value
        case _:
            problem = f"the arguments of {quoted(call.name)} must be a JSON object"
            return ActionError("invalid_arguments", problem)


def _own_form(name: str, arguments: dict[str, Any], catalog: Catalog) -> dict[str, Any]:
    match catalog.functions.targets.get(name):
        case ("tool", tool):
            return {"tool": tool, "arguments": arguments}
        case ("agent", agent):
            return {"agent": agent, "task": arguments.get("task")}
    meant = to_own_form(name, arguments, catalog)
    if name.startswith(DELEGATE_PREFIX) and "tool" in meant:  # an agent that is not offered
        return {"agent": name.removeprefix(DELEGATE_PREFIX), "task": str(arguments.get("task"))}
    return meant
