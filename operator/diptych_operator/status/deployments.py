"""What the status of a live Deployment says. Pure."""

from collections.abc import Mapping
from typing import Any

from diptych_operator.desired.deployment import CONTAINER
from diptych_operator.resources.kinds import Object
from diptych_operator.status.problem import Problem


def refusal(deployment: Object | None) -> Problem | None:
    """Say why the cluster makes no pods: a quota, a policy."""
    failure = deployment_condition(deployment, "ReplicaFailure")
    if failure.get("status") != "True":
        return None
    return Problem("PodsRefused", f"The cluster refuses the pods: {failure.get('message', '')}")


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
