"""What the status of a live Deployment says. Pure."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from diptych_operator.desired.deployment import CONTAINER
from diptych_operator.resources.kinds import Object
from diptych_operator.status.problem import Problem

NUDGE_SECONDS = 30
"""Between two nudges of a Deployment whose pods are refused: its controller alone waits ever longer
before it asks again, up to 16 minutes."""


def refusal(deployment: Object | None) -> Problem | None:
    """Say why the cluster makes no pods: a quota, a policy."""
    failure = deployment_condition(deployment, "ReplicaFailure")
    if failure.get("status") != "True":
        return None
    seen = failure.get("lastUpdateTime") or failure.get("lastTransitionTime")
    when = f" since {seen}, and is asked again every {NUDGE_SECONDS} s" if seen else ""
    message = f"The cluster refuses the pods{when}: {failure.get('message', '')}"
    return Problem("PodsRefused", message)


def rollout_deadline(deployment: Object | None) -> str | None:
    """Return the time after which the rollout counts as stuck; None if it has not begun."""
    progress = deployment_condition(deployment, "Progressing").get("lastUpdateTime")
    if progress is None:
        return None
    seconds = ((deployment or {}).get("spec") or {}).get("progressDeadlineSeconds", 600)
    until = datetime.fromisoformat(progress) + timedelta(seconds=seconds)
    return until.strftime("%Y-%m-%dT%H:%M:%SZ")


def is_paused(deployment: Object | None) -> bool:
    """Say whether somebody has paused its rollouts."""
    return bool(((deployment or {}).get("spec") or {}).get("paused"))


def deployment_condition(deployment: Object | None, name: str) -> Mapping[str, Any]:
    """Give a condition of a Deployment; empty if it has none."""
    live = ((deployment or {}).get("status") or {}).get("conditions", ())
    return next((condition for condition in live if condition["type"] == name), {})


def wanted_replicas(deployment: Object | None) -> int:
    """Give how many pods are wanted."""
    return int(((deployment or {}).get("spec") or {}).get("replicas", 1))


def count_of(deployment: Object | None, field: str) -> int:
    """Give one of the counts of a Deployment's status; 0 if it has none."""
    return int(((deployment or {}).get("status") or {}).get(field) or 0)


def agent_image(deployment: Object | None) -> str:
    """Return the image of the agent's container; "" if it is not known."""
    template = ((deployment or {}).get("spec") or {}).get("template") or {}
    containers = (template.get("spec") or {}).get("containers", ())
    return next((str(one["image"]) for one in containers if one["name"] == CONTAINER), "")
