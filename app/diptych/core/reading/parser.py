"""Reads a phase-1 reply: calls that may be run, a no-op, prose, or an error for the model.

Implements loop.md §3. The whole reply is checked before anything of it runs.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from diptych.core.catalog import Catalog
from diptych.core.messages import JSON, Call, Delegation, ToolCall
from diptych.core.reading.arguments import check_arguments
from diptych.core.reading.bare_forms import code_in_fence, rewrite_bare
from diptych.core.reading.extraction import find_values
from diptych.core.reading.linking import linked_calls
from diptych.core.reading.other_forms import calls_in, is_labelled, with_arguments
from diptych.core.reading.own_form import call_objects, ignored_keys, read_call
from diptych.core.reading.tagged import rewrite_tagged
from diptych.core.reading.typed_arguments import typed_arguments
from diptych.core.reading.verdict import (
    ActionError,
    ActionErrorType,
    Calls,
    NoOp,
    Prose,
    Verdict,
)
from diptych.core.reading.wording import cut, listed, quoted

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
