"""Kubernetes Events: what `kubectl describe` lists of an owner's past. Pure.

An Event reports a transition between two statuses. One that starts without a problem needs no
Event.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from diptych_operator.resources.kinds import EVENT, LEASE, OPERATOR_NAME, Object
from diptych_operator.resources.owner import Owner
from diptych_operator.status.condition import FORMER_OWNER, GOES_ON_BY_ITSELF

_GOOD_STATUS = {
    "Accepted": "True",
    "ResolvedRefs": "True",
    "Ready": "True",
    "Degraded": "False",
    "AccessOpen": "False",
    "Progressing": "True",
    "Verified": "True",
    "ToolsDrifted": "False",
    "Drifted": "False",
}
_EXPECTED_REASONS = {"RollingOut", "ScaledToZero", *GOES_ON_BY_ITSELF}
_AT_REST = {"UpToDate", "NotAccepted", "Stuck", FORMER_OWNER}
"""Reasons of Progressing=False that are no obstacle, or of which another condition says more."""
PATIENCE = 8.0
"""Seconds for which something must be missing before it is reported. Agents of one file come one
after another, and each misses for a moment those that come after it."""
_PATIENT = {"ResolvedRefs", "Degraded"}
_MAX_NOTE = 1024  # bytes, by the API


@dataclass(frozen=True, slots=True)
class Transition:
    """A change of a condition that is worth an Event."""

    is_warning: bool
    reason: str
    note: str


def premature(before: Mapping[str, Any], after: Mapping[str, Any], now: str) -> frozenset[str]:
    """Return the conditions that turned bad too recently to be reported."""
    former = {c["type"]: c for c in before.get("conditions", ())}
    return frozenset(
        condition["type"]
        for condition in after["conditions"]
        if condition["type"] in _PATIENT
        and _is_warning(condition)
        and _is_news(former.get(condition["type"]), condition)
        and _seconds(condition["lastTransitionTime"], now) < PATIENCE
    )


def transitions(
    before: Mapping[str, Any], after: Mapping[str, Any], without: frozenset[str] = frozenset()
) -> Iterator[Transition]:
    """Compare two statuses; return the transitions to report, each reason once.

    Conditions of the types `without` are left out.
    """
    former = {c["type"]: c for c in before.get("conditions", ())}
    reported: set[str] = set()
    for condition in after["conditions"]:
        if condition["type"] not in _GOOD_STATUS.keys() - without:
            continue
        if condition["status"] == "Unknown":
            continue
        reason = condition["reason"]
        if condition["type"] == "Progressing" and not _is_warning(condition):
            continue  # Ready tells of its end
        if reason in reported or not _is_news(former.get(condition["type"]), condition):
            continue
        reported.add(reason)
        yield Transition(
            is_warning=_is_warning(condition),
            reason=reason,
            note=_cut(condition["message"]),
        )


def event_of(owner: Owner, transition: Transition, now: str, suffix: str) -> Object:
    """Make the Event of a transition. `now` is in whole seconds; `suffix` makes the name unique."""
    regarding = {
        "apiVersion": owner.kind.api_version,
        "kind": owner.kind.name,
        "namespace": owner.namespace,
        "name": owner.name,
        "uid": owner.uid,
    }
    return _event(regarding, transition, now, suffix)


def claim_event(lease: Object, sentence: str, now: str, suffix: str) -> Object:
    """Make the Event of an operator that stands back, at the Lease of the one that serves."""
    metadata = lease["metadata"]
    regarding = {
        "apiVersion": LEASE.api_version,
        "kind": LEASE.name,
        **{field: metadata[field] for field in ("namespace", "name", "uid")},
    }
    transition = Transition(is_warning=True, reason="StandsBack", note=_cut(sentence))
    return _event(regarding, transition, now, suffix)


def _event(regarding: Object, transition: Transition, now: str, suffix: str) -> Object:
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.name,
        "metadata": {
            "name": f"{regarding['name']}.{suffix}",
            "namespace": regarding["namespace"],
        },
        "eventTime": f"{now.removesuffix('Z')}.000000Z",
        "reportingController": f"diptych.dev/{OPERATOR_NAME}",
        "reportingInstance": OPERATOR_NAME,
        "action": "Reconcile",
        "reason": transition.reason,
        "note": transition.note,
        "type": "Warning" if transition.is_warning else "Normal",
        "regarding": regarding,
    }


def _seconds(since: str, now: str) -> float:
    return (datetime.fromisoformat(now) - datetime.fromisoformat(since)).total_seconds()


def _cut(note: str) -> str:
    return note.encode()[:_MAX_NOTE].decode(errors="ignore")


def _is_news(former: Mapping[str, Any] | None, condition: Mapping[str, Any]) -> bool:
    if former is None or former["status"] == "Unknown":
        return _is_warning(condition)
    return (former["status"], former["reason"]) != (condition["status"], condition["reason"])


def _is_warning(condition: Mapping[str, Any]) -> bool:
    is_good = condition["status"] in {_GOOD_STATUS[condition["type"]], "Unknown"}
    if condition["type"] == "Progressing" and condition["reason"] in _AT_REST:
        return False
    return not is_good and condition["reason"] not in _EXPECTED_REASONS
