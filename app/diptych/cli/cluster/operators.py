"""The operators of a cluster, read by kubectl: their Deployments, their Leases, and the CRD."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from diptych.cli.cluster.errors import NotFound
from diptych.cli.cluster.kubectl import Kubectl
from diptych.cli.output.wording import one_line

CRD = "agents.diptych.dev"
CLAIM = "diptych-agents"
"""The Lease in each namespace with Agents that says which operator serves them."""
OPERATOR = "app.kubernetes.io/name=diptych,app.kubernetes.io/component=operator"
"""The label selector of the objects of an operator, as the chart sets their labels."""
_VERSION, _INSTANCE = "app.kubernetes.io/version", "app.kubernetes.io/instance"
_CLOCK_SKEW = timedelta(seconds=60)
_PERMANENT_REASONS = {
    *("CrashLoopBackOff", "CreateContainerConfigError"),
    *("ErrImageNeverPull", "ImagePullBackOff", "InvalidImageName"),
}
"""Reasons for which a container waits, and which time alone does not remove."""


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator's Deployment."""

    namespace: str
    name: str
    release: str
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
            labels.get(_INSTANCE, ""),
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
    served: dict[str, list[str]] = {}
    for lease in _claims(kubectl):
        holder = (lease.get("spec") or {}).get("holderIdentity", "")
        served.setdefault(holder, []).append(lease["metadata"]["namespace"])
    return served


def last_served(kubectl: Kubectl) -> str:
    """Read until when any operator served any namespace; empty if none did.

    Raises `ClusterError`.
    """
    times = ((lease.get("spec") or {}).get("renewTime") or "" for lease in _claims(kubectl))
    return max(times, default="")


def _claims(kubectl: Kubectl) -> list[Mapping[str, Any]]:
    selector = f"--field-selector=metadata.name={CLAIM}"
    listed = kubectl.json("get", "leases.coordination.k8s.io", "--all-namespaces", selector)
    claims: list[Mapping[str, Any]] = listed["items"]
    return claims


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


def start_failure(kubectl: Kubectl, operator: Operator) -> str:
    """Say why an operator's newest pod does not run; empty if its status does not say.

    Raises `ClusterError`.
    """
    selector = f"--selector={OPERATOR},{_INSTANCE}={operator.release}"
    pods = kubectl.in_namespace(operator.namespace).json("get", "pods", selector)["items"]
    newest: Mapping[str, Any] = max(
        pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"]), default={}
    )
    for container in (newest.get("status") or {}).get("containerStatuses", ()):
        waiting = (container.get("state") or {}).get("waiting") or {}
        ends = ((container.get(state) or {}).get("terminated") for state in ("state", "lastState"))
        end: Mapping[str, Any] = next(filter(None, ends), {})
        if end.get("reason") == "OOMKilled":
            return (
                f"OOMKilled: {container.get('restartCount')} restarts, the last at "
                f"{end.get('finishedAt')}; its limit of memory is {_memory_limit(newest)}: raise "
                "resources.limits.memory of the chart"
            )
        if waiting.get("reason") in _PERMANENT_REASONS:
            message = one_line(str(waiting.get("message", "")), 200)
            return f"{waiting['reason']} of image {container['image']}: {message}"
    return ""


def _memory_limit(pod: Mapping[str, Any]) -> str:
    resources = pod["spec"]["containers"][0].get("resources") or {}
    return str((resources.get("limits") or {}).get("memory", "not set"))
