"""The operators of a cluster, read by kubectl: their Deployments, their Leases, and the CRD."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from diptych.cli.cluster.errors import NotFound
from diptych.cli.cluster.kubectl import Kubectl

CRD = "agents.diptych.dev"
CLAIM = "diptych-agents"
"""The Lease in each namespace with Agents that says which operator serves them."""
OPERATOR = "app.kubernetes.io/name=diptych,app.kubernetes.io/component=operator"
"""The label selector of the objects of an operator, as the chart sets their labels."""
_VERSION = "app.kubernetes.io/version"
_CLOCK_SKEW = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator's Deployment."""

    namespace: str
    name: str
    version: str
    image: str
    wanted: int
    available: int

    @property
    def is_available(self) -> bool:
        return self.available > 0

    @classmethod
    def from_deployment(cls, deployment: Mapping[str, Any]) -> "Operator":
        metadata, spec = deployment["metadata"], deployment["spec"]
        status: Mapping[str, Any] = deployment.get("status") or {}
        labels: Mapping[str, str] = metadata.get("labels") or {}
        return cls(
            metadata["namespace"],
            metadata["name"],
            labels.get(_VERSION, "of an unknown version"),
            spec["template"]["spec"]["containers"][0]["image"],
            spec.get("replicas", 1),
            status.get("availableReplicas", 0),
        )


@dataclass(frozen=True, slots=True)
class LeaseHolder:
    """The pod that holds an operator's Lease, and whether it has renewed it in time."""

    name: str
    is_current: bool
    renewed: datetime | None


def list_operators(kubectl: Kubectl) -> list[Operator]:
    """Read all operators of the cluster. Raises `ClusterError`; for many people, `Forbidden`."""
    listed = kubectl.json("get", "deployments.apps", f"--selector={OPERATOR}", "--all-namespaces")
    return [Operator.from_deployment(item) for item in listed["items"]]


def lease_holder(kubectl: Kubectl, operator: Operator) -> LeaseHolder | None:
    """Read who holds an operator's Lease; None if nobody does. Raises `ClusterError`."""
    try:
        lease = kubectl.in_namespace(operator.namespace).json(
            "get", "leases.coordination.k8s.io", operator.name
        )
    except NotFound:
        return None
    spec: Mapping[str, Any] = lease.get("spec") or {}
    if not (holder := spec.get("holderIdentity")):
        return None
    if not (timestamp := spec.get("renewTime")):
        return LeaseHolder(holder, is_current=False, renewed=None)
    renewed = datetime.fromisoformat(timestamp)
    valid_for = timedelta(seconds=spec.get("leaseDurationSeconds", 0)) + _CLOCK_SKEW
    return LeaseHolder(holder, datetime.now(UTC) - renewed < valid_for, renewed)


def served_namespaces(kubectl: Kubectl) -> dict[str, list[str]]:
    """Read which namespaces each operator has claimed, by `namespace/Lease` of the operator.

    A claim that has expired counts, too: nobody has taken it over. Raises `ClusterError`.
    """
    selector = f"--field-selector=metadata.name={CLAIM}"
    listed = kubectl.json("get", "leases.coordination.k8s.io", "--all-namespaces", selector)
    served: dict[str, list[str]] = {}
    for lease in listed["items"]:
        holder = (lease.get("spec") or {}).get("holderIdentity", "")
        served.setdefault(holder, []).append(lease["metadata"]["namespace"])
    return served


def agent_crd(kubectl: Kubectl) -> Mapping[str, Any] | None:
    """Read the Agent CRD; None if it is not installed. Raises `ClusterError`."""
    try:
        crd: Mapping[str, Any] = kubectl.json("get", "customresourcedefinitions", CRD)
    except NotFound:
        return None
    return crd


def is_established(crd: Mapping[str, Any]) -> bool:
    """Whether the API server serves the objects of a CRD."""
    conditions = (crd.get("status") or {}).get("conditions", ())
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


def served_versions(crd: Mapping[str, Any]) -> list[str]:
    """Give the versions of a CRD in which objects may be written."""
    return [version["name"] for version in crd["spec"]["versions"] if version["served"]]
