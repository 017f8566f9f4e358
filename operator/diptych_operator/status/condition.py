"""Conditions and problems as values, and as a status holds them. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from diptych_operator.resources.owner import Owner

MAX_MESSAGE = 2048  # characters; the CRD allows twice as many

FORMER_OWNER: Final = "FormerOwner"
"""The reason while an Agent waits until the children of a deleted Agent of its name are gone."""
WAITS_FOR_OTHERS: Final = "WaitsForOthers"
"""The reason while an Agent waits until other Agents are rolled out."""
ROLLOUT_STOPPED: Final = "RolloutStopped"
"""The reason while an Agent waits because a shared change did harm to another one."""
MOVES_TO_POOL: Final = "MovesToPool"
"""The reason while an Agent's own pods serve it until its pool does."""
KIND_MISSING: Final = "KindMissing"
"""The reason while an Agent is not exposed, for the cluster lacks the kind of its route."""
LEAVES_PODS_ALONE: Final = frozenset(
    (WAITS_FOR_OTHERS, ROLLOUT_STOPPED, MOVES_TO_POOL, KIND_MISSING)
)
"""Reasons of obstacles with which the pods are what the manifest asks for."""
GOES_ON_BY_ITSELF: Final = frozenset((FORMER_OWNER, WAITS_FOR_OTHERS, MOVES_TO_POOL))
"""Reasons of obstacles that nobody must do anything about."""

NOT_EXPOSED: Final = frozenset(("ExposeNotAllowed", "HostConflict"))
"""Reasons for which an Agent is not reached from outside of the cluster, whatever it says."""

MENDED_ELSEWHERE: Final = frozenset(("NameConflict", "HostConflict"))
"""Reasons of rejections that end when another object goes, of which no watch may tell."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A reason in one CamelCase word, and a message with advice."""

    reason: str
    message: str


Status: TypeAlias = Literal["True", "False", "Unknown"]
ConditionType: TypeAlias = Literal[
    "Accepted",
    "ResolvedRefs",
    "Progressing",
    "Available",
    "Ready",
    "Degraded",
    "Verified",
    "ToolsDrifted",
    "Drifted",
    "AccessOpen",
    "Reconciling",
    "Stalled",
]


@dataclass(frozen=True, slots=True)
class Condition:
    """One aspect of an owner's state."""

    type: ConditionType
    status: Status
    reason: str
    message: str


def written(owner: Owner, shown: Iterable[Condition], now: str) -> list[dict[str, Any]]:
    """Return conditions as the status holds them; `now` is the time of those that have changed."""
    former = {c["type"]: c for c in owner.status.get("conditions", ())}
    order = {kind: place for place, kind in enumerate(former)}  # the API keeps it: so must we
    return [
        {
            "type": condition.type,
            "status": condition.status,
            "reason": condition.reason,
            "message": condition.message[:MAX_MESSAGE],
            "observedGeneration": owner.generation,
            "lastTransitionTime": transition_time(former.get(condition.type), condition, now),
        }
        for condition in sorted(shown, key=lambda one: order.get(one.type, len(order)))
    ]


def transition_time(former: Mapping[str, Any] | None, condition: Condition, now: str) -> str:
    """Return the time from which a condition has had its status."""
    if former is None or former["status"] != condition.status:
        return now
    since: str = former["lastTransitionTime"]
    return since
