"""Links the calls of one reply: what each waits for, if that is a graph (loop.md §3)."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from diptych.core.messages import JSON, Call, Delegation
from diptych.core.reading.references import referenced_labels
from diptych.core.reading.verdict import ActionError
from diptych.core.reading.wording import listed, quoted


def linked_calls(calls: list[Call]) -> tuple[Call, ...] | ActionError:
    """Give the calls with the labels that each waits for, references included, if it is a graph."""
    times = Counter(call.label for call in calls if call.label is not None)
    if twice := [label for label, count in times.items() if count > 1]:
        return ActionError("invalid_graph", f"the id {quoted(twice[0])} is used twice")
    linked: list[Call] = []
    for call in calls:
        implied = sorted(referenced_labels(_text_of(call))) if times else []
        after = tuple(dict.fromkeys((*call.after, *implied)))
        if unknown := [label for label in after if label not in times]:
            return ActionError("invalid_graph", _unknown_label(unknown[0], times))
        linked.append(call if after == call.after else replace(call, after=after))
    if cycle := _cycle(linked):
        names = listed(quoted(label) for label in cycle)
        return ActionError("invalid_graph", f"these calls wait for each other in a circle: {names}")
    return tuple(linked)


def _text_of(call: Call) -> JSON:
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
