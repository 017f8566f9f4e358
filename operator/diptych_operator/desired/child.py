"""Parts that the children of all kinds of owners share. Pure."""

from collections.abc import Iterable, Iterator
from typing import Any

from diptych_operator.desired.drift import digest
from diptych_operator.desired.rollout import has_ended
from diptych_operator.resources.kinds import (
    APPLIED_DIGEST,
    POD,
    POD_DISRUPTION_BUDGET,
    PORT,
    Kind,
    Object,
)
from diptych_operator.resources.owner import Owner


def service_spec(owner: Owner, target: int = PORT) -> dict[str, Any]:
    """Return a Service's spec: `PORT`, at `target` of the owner's pods."""
    return {
        "type": "ClusterIP",
        "selector": owner.selector_labels,
        "ports": [
            {
                "name": "http",
                "protocol": "TCP",
                "appProtocol": "http",
                "port": PORT,
                "targetPort": target,
            }
        ],
    }


def pod_disruption_budget(owner: Owner, replicas: int) -> Iterator[Object]:
    """Yield the PodDisruptionBudget of an owner with several replicas."""
    if replicas > 1:
        spec = {"maxUnavailable": 1, "selector": {"matchLabels": owner.selector_labels}}
        yield child_of(owner, POD_DISRUPTION_BUDGET, spec=spec)


def child_of(
    owner: Owner,
    kind: Kind,
    name: str = "",
    annotations: dict[str, str] | None = None,
    **content: object,
) -> Object:
    """Return a child of an owner, by default with the name of most of them."""
    metadata: dict[str, Any] = {
        "name": name or owner.child_name,
        "namespace": owner.namespace,
        "labels": owner.child_labels,
        "ownerReferences": [
            {
                "apiVersion": owner.kind.api_version,
                "kind": owner.kind.name,
                "name": owner.name,
                "uid": owner.uid,
                "controller": True,
            }
        ],
    }
    if annotations:
        metadata["annotations"] = annotations
    return {"apiVersion": kind.api_version, "kind": kind.name, "metadata": metadata, **content}


def owned_by_pods(child: Object, pods: Iterable[Object]) -> Object:
    """Add the pods that may run to an object's owners, so that it goes with the last of them."""
    references = [
        {"apiVersion": POD.api_version, "kind": POD.name, "name": name, "uid": uid}
        for name, uid in sorted(
            (pod["metadata"]["name"], pod["metadata"]["uid"]) for pod in pods if not has_ended(pod)
        )
    ]
    metadata = child["metadata"]
    owners = [*metadata["ownerReferences"], *references]
    return {**child, "metadata": {**metadata, "ownerReferences": owners}}


def with_digest(child: Object) -> Object:
    """Annotate a child with its digest, so that a field that must be removed is noticed later."""
    annotations = {**child["metadata"].get("annotations", {}), APPLIED_DIGEST: digest(child)}
    return {**child, "metadata": {**child["metadata"], "annotations": annotations}}
