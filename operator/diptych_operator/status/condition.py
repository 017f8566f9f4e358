"""A condition of an Agent's status, as a value. Pure."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

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
