"""Conditions and problems as values. Pure."""

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

FORMER_OWNER: Final = "FormerOwner"
"""The reason while an Agent waits until the children of a deleted Agent of its name are gone."""
WAITS_FOR_OTHERS: Final = "WaitsForOthers"
"""The reason while an Agent waits until other Agents are rolled out."""
ROLLOUT_STOPPED: Final = "RolloutStopped"
"""The reason while an Agent waits because a shared change did harm to another one."""
KIND_MISSING: Final = "KindMissing"
"""The reason while an Agent is not exposed, for the cluster lacks the kind of its route."""
LEAVES_PODS_ALONE: Final = frozenset((WAITS_FOR_OTHERS, ROLLOUT_STOPPED, KIND_MISSING))
"""Reasons of obstacles with which the pods are what the manifest asks for."""
GOES_ON_BY_ITSELF: Final = frozenset((FORMER_OWNER, WAITS_FOR_OTHERS))
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
    "ToolsDrifted",
    "Drifted",
    "AccessOpen",
    "Reconciling",
    "Stalled",
]


@dataclass(frozen=True, slots=True)
class Condition:
    """One aspect of an Agent's state."""

    type: ConditionType
    status: Status
    reason: str
    message: str
