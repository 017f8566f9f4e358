"""The states that an Agent can be in, each as what its conditions follow from."""

from support.live_objects import DOWN, deployment, pod, waiting

from diptych_operator.status.condition import FORMER_OWNER, Problem
from diptych_operator.status.conditions import MissingDependency, StatusInputs

UP = deployment()
PAUSED = deployment(updated=0, total=1)
PAUSED["spec"]["paused"] = True
NO_ROOM = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: few"}
STUCK = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}


def _missing(kind: str, name: str, reason: str) -> StatusInputs:
    return StatusInputs(deployment=UP, missing_dependencies=[MissingDependency(kind, name, reason)])


UNSCHEDULED = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/1 nodes are available",
}

STATES: dict[str, tuple[StatusInputs, str]] = {
    "all is well": (StatusInputs(deployment=UP, missing_dependencies=()), "Healthy"),
    "not asked yet": (StatusInputs(deployment=UP), "Healthy"),
    "nothing is there yet": (StatusInputs(), "Progressing"),
    "a first pod starts": (StatusInputs(deployment=DOWN), "Progressing"),
    "a rollout": (StatusInputs(deployment=deployment(total=2)), "Progressing"),
    "scaled to none": (
        StatusInputs(deployment=deployment(0, 0, 0), missing_dependencies=()),
        "Healthy",
    ),
    "a former Agent's objects": (
        StatusInputs(blocker=Problem(FORMER_OWNER, "The Service is still there.")),
        "Progressing",
    ),
    "a rejected manifest": (
        StatusInputs(rejection=Problem("PodTemplateInvalid", "No such field.")),
        "Degraded",
    ),
    "a rejected change": (
        StatusInputs(rejection=Problem("Refused", "No such field."), deployment=UP),
        "Degraded",
    ),
    "a missing right": (
        StatusInputs(blocker=Problem("Forbidden", "May not."), deployment=UP),
        "Degraded",
    ),
    "a webhook": (
        StatusInputs(blocker=Problem("WriteFailed", "No endpoint."), deployment=UP),
        "Degraded",
    ),
    "paused": (
        StatusInputs(deployment=PAUSED),
        "Suspended",
    ),
    "a quota": (
        StatusInputs(deployment=deployment(updated=0, total=1, conditions=[NO_ROOM])),
        "Degraded",
    ),
    "stuck": (StatusInputs(deployment=deployment(total=2, conditions=[STUCK])), "Degraded"),
    "an image": (
        StatusInputs(deployment=DOWN, pods=[waiting("ImagePullBackOff")]),
        "Degraded",
    ),
    "no node": (StatusInputs(deployment=DOWN, pods=[pod(conditions=[UNSCHEDULED])]), "Degraded"),
    "a store that is away": (
        StatusInputs(
            deployment=DOWN, missing_dependencies=[MissingDependency("store", "redis", "away")]
        ),
        "Degraded",
    ),
    "a model that is away": (_missing("model", "gpt", "unreachable"), "Progressing"),
    "a tool server that is away": (_missing("server", "calc", "away"), "Progressing"),
    "a missing key": (_missing("key", "models/api-key", "missing"), "Progressing"),
    "a mistyped rule": (_missing("rule", "spec.policy[0]", "no tool"), "Progressing"),
    "a peer that is away": (_missing("agent", "aide", "away"), "Progressing"),
    "tools that drifted": (_missing("tool", "add", "changed since it was pinned"), "Degraded"),
    "an unresolved reference": (
        StatusInputs(
            deployment=UP,
            missing_dependencies=(),
            unresolved=[Problem("AgentNotFound", "Agent aide is not there")],
        ),
        "Progressing",
    ),
}
"""By name: what the conditions follow from, and Argo CD's health."""
