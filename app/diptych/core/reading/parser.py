"""Parses a phase-1 reply into calls, a no-op, prose, or an error for the model (loop.md §3, §12).

The whole reply is checked before any call runs.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from diptych.core.catalog import DELEGATE_PREFIX, Catalog
from diptych.core.messages import JSON, Call, Delegation, NativeCall, ToolCall
from diptych.core.reading.arguments import check_arguments, typed_arguments
from diptych.core.reading.extraction import find_values
from diptych.core.reading.forms import code_in_fence, rewrite
from diptych.core.reading.leading_reasoning import strip_lead
from diptych.core.reading.other_forms import calls_in, is_labelled, to_own_form, with_arguments
from diptych.core.reading.own_form import call_objects, ignored_keys, read_call
from diptych.core.reading.references import referenced_labels
from diptych.core.reading.repetition import repetition_end
from diptych.core.reading.strict_json import decode_json
from diptych.core.reading.verdict import (
    ActionError,
    Calls,
    NoOp,
    Prose,
    Verdict,
    cut,
    listed,
    quoted,
)

MAX_CALLS = 16
"""Maximum calls in one reply, unless the manifest sets another."""

MALFORMED_CALL = "malformed_call"
"""Finish reason of a reply with a native call that the model's server could not parse."""

_Found = TypeVar("_Found", bound=Verdict)
_MAY_ACT = re.compile(r"[{\[<`~]|\A\s*\"")  # every call and every error contains one of these
_CUT = {
    "length": "your reply was cut off by the length limit; be brief",
    "content_filter": "your reply was stopped by a content filter, and nothing of it was done; "
    "ask for something else, or answer without it",
}


class Reading(NamedTuple):
    """A reply without its reasoning, and the verdict on it."""

    said: str
    found: Verdict


def read_reply(
    text: str, finish_reason: str, catalog: Catalog, max_calls: int = MAX_CALLS
) -> Reading:
    """Parse a reply's text, in linear time. Never raises.

    Calls of a truncated or endlessly repeating reply never run: the error is `truncated`. A reply
    that repeats whole calls is fine; identical calls are made once.
    """
    said, _ = strip_lead(text)
    found = parse(said, catalog, max_calls)
    end = repetition_end(said)
    if end is not None and not _repeats_calls_only(found):
        said = said[:end]
        if isinstance(found, Calls | ActionError):
            detail = "your reply repeated the same text again and again, and was cut; be brief"
            return Reading(said, ActionError("truncated", detail))
    return Reading(said, _unless_broken(found, finish_reason))


def read_native(
    calls: Sequence[NativeCall], finish_reason: str, catalog: Catalog, max_calls: int = MAX_CALLS
) -> Calls | ActionError:
    """Parse native calls (at least one) by the rules for calls in text.

    API ids are not labels: nothing can refer to them. `Calls.places` maps native calls to calls.
    """
    values: list[dict[str, Any]] = []
    error: ActionError | None = None
    for call in calls:
        arguments = _native_arguments(call)
        if isinstance(arguments, ActionError):
            error = error or arguments
        else:
            values.append(_native_in_own_form(call.name, arguments, catalog))
    found = error or check_calls(values, catalog, max_calls)
    if isinstance(found, NoOp):  # impossible for a call with a name
        found = ActionError("missing_field", "a call must name the function that it calls")
    return _unless_broken(found, finish_reason)


def parse(reply: str, catalog: Catalog, max_calls: int = MAX_CALLS) -> Verdict:
    """Parse a reply without its reasoning. Never raises."""
    if reply == "{}":  # how most phase 1s end
        return NoOp()
    if not _MAY_ACT.search(reply):  # most answers
        return Prose()
    text = reply.replace("\r\n", "\n").replace("\r", "\n")
    text = rewrite(text, catalog)
    found = find_values(text, catalog)
    if isinstance(found, tuple):
        return check_calls(found, catalog, max_calls)
    if isinstance(found, Prose) and (right := code_in_fence(text, catalog)):
        form = json.dumps(right, ensure_ascii=False, default=dict)
        return ActionError("json_syntax", f"a call is written as JSON, not as code: {cut(form)}")
    return found


def check_calls(
    values: Sequence[JSON], catalog: Catalog, max_calls: int = MAX_CALLS
) -> Calls | NoOp | ActionError:
    """Check JSON values: calls, lists of calls, `{"calls": […]}`, or `{}`."""
    calls: list[Call] = []
    own = list(_in_own_form(values, catalog))
    for item in call_objects(own):
        if isinstance(item, ActionError):
            return item
        call = read_call(with_arguments(item, catalog), str(len(calls) + 1))
        if isinstance(call, ActionError):
            return call
        calls.append(_typed(call, catalog))
    if not calls:
        return NoOp()
    merged = _merged(calls, catalog)
    if len(merged.calls) > max_calls:
        detail = f"{len(merged.calls)} calls in one reply; ask for at most {max_calls} at a time"
        return ActionError("too_many_calls", detail)
    linked = _linked(merged.calls)
    if isinstance(linked, ActionError):
        return linked
    labelled = any(call.label is not None for call in linked)
    for call in linked:
        if problem := _catalog_problem(call, catalog, references_fit=labelled):
            return problem
    return Calls(linked, merged.places, ignored_keys(own))


def _unless_broken(found: _Found, finish_reason: str) -> _Found | ActionError:
    """Return the verdict, unless the reply was cut off or contains an unparsable call."""
    if finish_reason in _CUT and isinstance(found, Calls | ActionError):
        return ActionError("truncated", _CUT[finish_reason])
    if finish_reason == MALFORMED_CALL and not isinstance(found, Calls):
        return ActionError("json_syntax", "your call could not be read; write it anew, as a whole")
    return found


def _repeats_calls_only(found: Verdict) -> bool:
    """Whether whole calls repeat, and no text within one."""
    if not isinstance(found, Calls) or not found.places:
        return False
    texts = (json.dumps(_references_in(c), ensure_ascii=False, default=dict) for c in found.calls)
    return all(repetition_end(text) is None for text in texts)


def _native_arguments(call: NativeCall) -> dict[str, Any] | ActionError:
    value: JSON | ValueError = decode_json(call.arguments) if call.arguments.strip() else {}
    if isinstance(value, str):  # some servers encode it twice
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


def _native_in_own_form(name: str, arguments: dict[str, Any], catalog: Catalog) -> dict[str, Any]:
    match catalog.functions.targets.get(name):
        case ("tool", tool):
            return {"tool": tool, "arguments": arguments}
        case ("agent", agent):
            return {"agent": agent, "task": arguments.get("task")}
    meant = to_own_form(name, arguments, catalog)
    if name.startswith(DELEGATE_PREFIX) and "tool" in meant:  # an unknown agent
        return {"agent": name.removeprefix(DELEGATE_PREFIX), "task": str(arguments.get("task"))}
    return meant


def _in_own_form(values: Sequence[JSON], catalog: Catalog) -> Iterable[JSON]:
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
    """Merge identical calls without labels; renumber the ids."""
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


def _linked(calls: Sequence[Call]) -> tuple[Call, ...] | ActionError:
    """Add the labels implied by references to each call's `after`, and check the graph."""
    times = Counter(call.label for call in calls if call.label is not None)
    if twice := [label for label, count in times.items() if count > 1]:
        return ActionError("invalid_graph", f"the id {quoted(twice[0])} is used twice")
    linked: list[Call] = []
    for call in calls:
        implied = sorted(referenced_labels(_references_in(call))) if times else []
        after = tuple(dict.fromkeys((*call.after, *implied)))
        if unknown := [label for label in after if label not in times]:
            problem = (
                f"no call in this reply has the id {quoted(unknown[0])}; ids here: "
                f"{listed(times)}. (A ${{ that is no reference is written $${{.)"
            )
            return ActionError("invalid_graph", problem)
        linked.append(call if after == call.after else replace(call, after=after))
    if cycle := _cycle(linked):
        names = listed(quoted(label) for label in cycle)
        return ActionError("invalid_graph", f"these calls wait for each other in a circle: {names}")
    return tuple(linked)


def _references_in(call: Call) -> JSON:
    return call.task if isinstance(call, Delegation) else call.arguments


def _cycle(calls: Sequence[Call]) -> list[str]:
    """Return the labels of calls that can never start."""
    blocked = list(calls)
    while True:
        labels = {call.label for call in blocked}
        still = [call for call in blocked if not labels.isdisjoint(call.after)]
        if len(still) == len(blocked):
            return [call.label or f"(call {call.id})" for call in blocked]
        blocked = still


def _catalog_problem(call: Call, catalog: Catalog, *, references_fit: bool) -> ActionError | None:
    """Return the problem with a call's name or arguments, if any.

    Names of an unavailable server or agent pass: their result will be `unavailable`.
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
