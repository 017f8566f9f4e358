"""The status of an Agent: `agent_status(agent, view, now)` from what was observed. Pure.

Conditions are the API; there is no phase. Ready means that the newest revision's pods can take
work. What the agent misses meanwhile is Degraded; a manifest that is refused leaves the last good
revision serving, and Ready says so.

Not here: what goes wrong in a pod (`pods`), how the status is written (`reconcile`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from diptych_operator.desired.deployment import is_settled
from diptych_operator.desired.references import LooseEnd
from diptych_operator.resources.agent import Agent
from diptych_operator.resources.kinds import Object, selector_labels
from diptych_operator.status.pods import PodTrouble, pod_trouble

Status: TypeAlias = Literal["True", "False", "Unknown"]
ConditionType: TypeAlias = Literal["Accepted", "ResolvedRefs", "Progressing", "Ready", "Degraded"]

MAX_MESSAGE = 2048  # characters; the CRD allows twice as much


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a manifest cannot be served: a reason in one word, and what to do about it."""

    reason: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Shortage:
    """Something that pods miss, as their `/ready` names it."""

    kind: str
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class View:
    """What was observed of an agent.

    `refusal` says why its manifest cannot be served, `obstacle` why it could not be carried out.
    `shortages` is None as long as no pod has answered. `former` is the Degraded condition of an
    earlier operator, which holds until this one has asked.
    """

    refusal: Refusal | None = None
    obstacle: Refusal | None = None
    loose_ends: Sequence[LooseEnd] = ()
    deployment: Object | None = None
    pods: Sequence[Object] = ()
    shortages: Sequence[Shortage] | None = None
    former: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Condition:
    """One aspect of an agent's state."""

    type: ConditionType
    status: Status
    reason: str
    message: str


def agent_status(agent: Agent, view: View, now: str) -> dict[str, Any]:
    """Give the whole status. `now` is the time, for conditions whose status has changed."""
    before = {c["type"]: c for c in agent.status.get("conditions", ())}
    labels = selector_labels(agent.name).items()
    return {
        "observedGeneration": agent.generation,
        "replicas": _count(view.deployment, "replicas"),
        "selector": ",".join(sorted(f"{name}={value}" for name, value in labels)),
        "url": agent.url,
        "conditions": [
            {
                "type": condition.type,
                "status": condition.status,
                "reason": condition.reason,
                "message": condition.message[:MAX_MESSAGE],
                "observedGeneration": agent.generation,
                "lastTransitionTime": _since(before.get(condition.type), condition, now),
            }
            for condition in conditions(view)
        ],
    }


def conditions(view: View) -> tuple[Condition, ...]:
    """Judge what was observed."""
    return (
        _accepted(view),
        _resolved_refs(view),
        _progressing(view),
        _ready(view),
        _degraded(view),
    )


def _accepted(view: View) -> Condition:
    if view.refusal:
        return Condition("Accepted", "False", view.refusal.reason, view.refusal.sentence)
    return Condition("Accepted", "True", "Accepted", "The manifest can be served.")


def _resolved_refs(view: View) -> Condition:
    if not view.loose_ends:
        message = "All Agents and Services that the manifest names are there."
        return Condition("ResolvedRefs", "True", "ResolvedRefs", message)
    sentences = dict.fromkeys(end.sentence for end in view.loose_ends)
    return Condition("ResolvedRefs", "False", view.loose_ends[0].reason, "; ".join(sentences))


def _progressing(view: View) -> Condition:
    if view.obstacle:
        return Condition("Progressing", "False", view.obstacle.reason, view.obstacle.sentence)
    if view.refusal:
        return Condition("Progressing", "False", "NotAccepted", "Nothing is changed meanwhile.")
    if is_settled(view.deployment):
        return Condition("Progressing", "False", "UpToDate", "All pods run the newest revision.")
    told = _deployment_condition(view.deployment, "Progressing")
    if told.get("reason") == "ProgressDeadlineExceeded":
        message = "The newest revision does not come up; Ready says why."
        return Condition("Progressing", "False", "Stuck", message)
    new, wanted = _count(view.deployment, "updatedReplicas"), _wanted(view.deployment)
    message = f"{new} of {wanted} pods run the newest revision."
    return Condition("Progressing", "True", "RollingOut", message)


def _ready(view: View) -> Condition:
    if view.deployment is None:
        reason = (view.refusal or view.obstacle or _NOT_MADE).reason
        return Condition("Ready", "False", reason, "There are no pods yet.")
    wanted, available = _wanted(view.deployment), _count(view.deployment, "availableReplicas")
    if is_settled(view.deployment):
        if wanted == 0:
            return Condition("Ready", "False", "ScaledToZero", "The agent is scaled to no pods.")
        message = f"{available} of {wanted} pods can take work."
        if view.refusal:
            message += " The manifest was not accepted; the last good revision keeps serving."
            return Condition("Ready", "True", "LastGoodRevision", message)
        is_degraded = _degraded(view).status == "True"
        return Condition("Ready", "True", "Degraded" if is_degraded else "Ready", message)
    trouble = _trouble(view)
    message = trouble.sentence if trouble else f"{available} of {wanted} pods can take work."
    older = _count(view.deployment, "replicas") - _count(view.deployment, "updatedReplicas")
    if available and older > 0:
        message += " The revision before it keeps serving meanwhile."
    return Condition("Ready", "False", trouble.reason if trouble else "RollingOut", message)


def _degraded(view: View) -> Condition:
    if view.former is not None:
        told = (view.former[field] for field in ("status", "reason", "message"))
        return Condition("Degraded", *told)
    if view.shortages is None:
        return Condition("Degraded", "Unknown", "NotAsked", "No pod has been asked yet.")
    if not view.shortages:
        return Condition("Degraded", "False", "NothingMissing", "The agent misses nothing.")
    kinds = {shortage.kind for shortage in view.shortages}
    reason = _SHORTAGE_REASONS.get(kinds.pop(), "Missing") if len(kinds) == 1 else "Missing"
    lines = dict.fromkeys(f"{s.kind} {s.name}: {s.reason}" for s in view.shortages)
    return Condition("Degraded", "True", reason, "; ".join(lines))


def _trouble(view: View) -> PodTrouble | None:
    """Name what keeps the newest revision from taking work."""
    failure = _deployment_condition(view.deployment, "ReplicaFailure")
    if failure.get("status") == "True":
        sentence = f"The cluster refuses the pods: {failure.get('message', '')}"
        return PodTrouble("PodsRefused", sentence)
    found = [trouble for pod in view.pods if (trouble := pod_trouble(pod))]
    return min(found, key=lambda trouble: trouble.reason, default=None)


def _deployment_condition(deployment: Object | None, name: str) -> Mapping[str, Any]:
    told = ((deployment or {}).get("status") or {}).get("conditions", ())
    return next((condition for condition in told if condition["type"] == name), {})


def _wanted(deployment: Object | None) -> int:
    return int(((deployment or {}).get("spec") or {}).get("replicas", 1))


def _count(deployment: Object | None, field: str) -> int:
    return int(((deployment or {}).get("status") or {}).get(field) or 0)


def _since(before: Mapping[str, Any] | None, condition: Condition, now: str) -> str:
    if before is None or before["status"] != condition.status:
        return now
    since: str = before["lastTransitionTime"]
    return since


_NOT_MADE = Refusal("RollingOut", "")
_SHORTAGE_REASONS = {
    "server": "ToolServerUnavailable",
    "agent": "AgentUnavailable",
    "key": "KeyMissing",
}
