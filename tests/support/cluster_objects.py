"""Objects of a cluster as its API gives them: Agents, pods, an operator with its Lease, the CRD."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

Object = dict[str, Any]
CRD: Object = {
    "metadata": {"labels": {"helm.sh/chart": "diptych-0.1.0"}},
    "spec": {"versions": [{"name": "v1alpha1", "served": True}, {"name": "v0", "served": False}]},
    "status": {"conditions": [{"type": "Established", "status": "True"}]},
}
NOT_FOUND = 'Error from server (NotFound): agents.diptych.dev "x" not found'
FORBIDDEN = "Error from server (Forbidden): it is forbidden"


def condition(kind: str, status: str, reason: str, message: str = "") -> Object:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def agent(name: str, *conditions: Object, namespace: str = "default", **spec: object) -> Object:
    given = {c["type"]: c for c in conditions}
    well = (
        condition("Accepted", "True", "Accepted", "The manifest can be served."),
        condition("Ready", "True", "Ready", "1 of 1 pods can take work."),
        condition("Degraded", "False", "NothingMissing", "The agent misses nothing."),
    )
    return {
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
        "status": {
            "selector": f"app.kubernetes.io/instance={name}",
            "url": f"http://{name}.{namespace}:8000",
            "conditions": list(({c["type"]: c for c in well} | given).values()),
        },
    }


NOT_READY = condition("Ready", "False", "ImagePullFailed", "The image x cannot be pulled.")


def pod(name: str, *, is_ready: bool = True, containers: int = 1) -> Object:
    return {
        "metadata": {"name": name, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"nodeName": "node-1", "containers": [{}] * containers},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": str(is_ready)}],
            "containerStatuses": [{"restartCount": 2}],
        },
    }


def items(*objects: Mapping[str, Any]) -> Object:
    return {"items": list(objects)}


def deployment(*, available: int = 1) -> Object:
    return {
        "kind": "Deployment",
        "metadata": {
            "name": "diptych",
            "namespace": "diptych-system",
            "labels": {"app.kubernetes.io/version": "0.1.0"},
        },
        "spec": {"replicas": 1, "template": {"spec": {"containers": [{"image": "diptych:0.1.0"}]}}},
        "status": {"availableReplicas": available},
    }


def lease(*, age: float = 1, holder: str = "diptych-1") -> Object:
    renewed = (datetime.now(UTC) - timedelta(seconds=age)).isoformat().replace("+00:00", "Z")
    spec = {"holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": 15}
    return {"spec": spec}
