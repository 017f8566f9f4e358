"""Kubernetes Events: what `kubectl describe agent` lists of an agent's past. Pure.

An Event tells of a change between two statuses; what goes as it should from the start is not
worth one.
"""

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from diptych_operator.resources.agent import Agent
from diptych_operator.resources.kinds import AGENT, EVENT, MANAGER, Object

FORMER_AGENT = "FormerAgent"
"""The reason while an Agent waits for what a deleted one of its name has left."""

_GOOD = {
    "Accepted": "True",
    "ResolvedRefs": "True",
    "Ready": "True",
    "Degraded": "False",
}
_NO_FAULT = {"RollingOut", "ScaledToZero", FORMER_AGENT}
_MAX_NOTE = 1024  # bytes, by the API


@dataclass(frozen=True, slots=True)
class Transition:
    """A condition that has changed, in the words of an Event."""

    is_warning: bool
    reason: str
    note: str


def transitions(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Transition]:
    """Say what has changed between two statuses that somebody may want to know."""
    known = {c["type"]: c for c in before.get("conditions", ())}
    told: set[str] = set()
    for condition in after["conditions"]:
        if condition["type"] not in _GOOD or condition["status"] == "Unknown":
            continue
        was = known.get(condition["type"])
        is_good = condition["status"] == _GOOD[condition["type"]]
        if was is None or was["status"] == "Unknown":
            is_news = not is_good and condition["reason"] not in _NO_FAULT
        else:
            is_news = (was["status"], was["reason"]) != (condition["status"], condition["reason"])
        if is_news and condition["reason"] not in told:
            told.add(condition["reason"])
            yield Transition(
                is_warning=not is_good and condition["reason"] not in _NO_FAULT,
                reason=condition["reason"],
                note=condition["message"].encode()[:_MAX_NOTE].decode(errors="ignore"),
            )


def event_of(agent: Agent, transition: Transition, now: str) -> Object:
    """Make the Event of a transition. `now` is the time with microseconds."""
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.name,
        "metadata": {
            "name": f"{agent.name}.{secrets.token_hex(8)}",
            "namespace": agent.namespace,
        },
        "eventTime": f"{now.removesuffix('Z')}.000000Z",
        "reportingController": f"diptych.dev/{MANAGER}",
        "reportingInstance": MANAGER,
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
