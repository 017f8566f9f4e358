"""Kubernetes Events: what `kubectl describe agent` lists of an Agent's past. Pure.

An Event reports a transition between two statuses. An Agent that starts without a problem needs no
Event.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from diptych_operator.resources.agent import Agent
from diptych_operator.resources.kinds import AGENT, EVENT, OPERATOR_NAME, Object

FORMER_AGENT = "FormerAgent"
"""The reason while an Agent waits until the children of a deleted Agent of its name are gone."""

_GOOD_STATUS = {
    "Accepted": "True",
    "ResolvedRefs": "True",
    "Ready": "True",
    "Degraded": "False",
    "AccessOpen": "False",
}
_EXPECTED_REASONS = {"RollingOut", "ScaledToZero", FORMER_AGENT}
_MAX_NOTE = 1024  # bytes, by the API


@dataclass(frozen=True, slots=True)
class Transition:
    """A change of a condition that is worth an Event."""

    is_warning: bool
    reason: str
    note: str


def transitions(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Transition]:
    """Compare two statuses; give the transitions to report, each reason once."""
    former = {c["type"]: c for c in before.get("conditions", ())}
    reported: set[str] = set()
    for condition in after["conditions"]:
        if condition["type"] not in _GOOD_STATUS or condition["status"] == "Unknown":
            continue
        reason = condition["reason"]
        if reason in reported or not _is_news(former.get(condition["type"]), condition):
            continue
        reported.add(reason)
        yield Transition(
            is_warning=_is_warning(condition),
            reason=reason,
            note=condition["message"].encode()[:_MAX_NOTE].decode(errors="ignore"),
        )


def event_of(agent: Agent, transition: Transition, now: str, suffix: str) -> Object:
    """Make the Event of a transition. `now` is in whole seconds; `suffix` makes the name unique."""
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.name,
        "metadata": {
            "name": f"{agent.name}.{suffix}",
            "namespace": agent.namespace,
        },
        "eventTime": f"{now.removesuffix('Z')}.000000Z",
        "reportingController": f"diptych.dev/{OPERATOR_NAME}",
        "reportingInstance": OPERATOR_NAME,
        "action": "Reconcile",
        "reason": transition.reason,
        "note": transition.note,
        "type": "Warning" if transition.is_warning else "Normal",
        "regarding": {
            "apiVersion": AGENT.api_version,
            "kind": AGENT.name,
            "namespace": agent.namespace,
            "name": agent.name,
            "uid": agent.uid,
        },
    }


def _is_news(former: Mapping[str, Any] | None, condition: Mapping[str, Any]) -> bool:
    if former is None or former["status"] == "Unknown":
        return _is_warning(condition)
    return (former["status"], former["reason"]) != (condition["status"], condition["reason"])


def _is_warning(condition: Mapping[str, Any]) -> bool:
    is_good = condition["status"] == _GOOD_STATUS[condition["type"]]
    return not is_good and condition["reason"] not in _EXPECTED_REASONS
