"""The operators of a cluster as kubectl reads them: their Deployments, Leases, and the CRD.

Not here: installing one (`release`), what is shown of them (`status`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from diptych.cli.cluster.errors import ClusterError, Missing
from diptych.cli.cluster.kubectl import Kubectl
from diptych.cli.output.wording import one_line

CRD = "agents.diptych.dev"
OPERATOR = "app.kubernetes.io/name=diptych,app.kubernetes.io/component=operator"
"""The labels that the chart gives to an operator's objects."""
_VERSION, _INSTANCE = "app.kubernetes.io/version", "app.kubernetes.io/instance"
_SLACK = timedelta(seconds=60)  # by which the cluster's clock and ours may differ
_HOPELESS = {
    "CrashLoopBackOff",
    "CreateContainerConfigError",
    "ErrImageNeverPull",
    "ImagePullBackOff",
    "InvalidImageName",
}
"""What a container waits for that does not become better by waiting."""


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
    is_settled: bool

    @property
    def is_well(self) -> bool:
        return self.available > 0

    @classmethod
    def of(cls, deployment: Mapping[str, Any]) -> "Operator":
        metadata, spec = deployment["metadata"], deployment["spec"]
        status: Mapping[str, Any] = deployment.get("status") or {}
        labels: Mapping[str, str] = metadata.get("labels") or {}
        wanted, available = spec.get("replicas", 1), status.get("availableReplicas", 0)
        return cls(
            metadata["namespace"],
            metadata["name"],
            labels.get(_INSTANCE, ""),
            labels.get(_VERSION, "of an unknown version"),
            spec["template"]["spec"]["containers"][0]["image"],
            wanted,
            available,
            status.get("observedGeneration", 0) >= metadata.get("generation", 0)
            and status.get("updatedReplicas", 0)
            == status.get("replicas", 0)
            == wanted
            == available,
        )


@dataclass(frozen=True, slots=True)
class Leader:
    """Who holds an operator's Lease, and whether it was renewed in time."""

    name: str
    is_current: bool
    renewed: datetime | None


def operators(kubectl: Kubectl) -> list[Operator]:
    """Find all operators of the cluster. Raises `ClusterError`; `Forbidden` to many people."""
    found = kubectl.read("get", "deployments.apps", f"--selector={OPERATOR}", "--all-namespaces")
    return [Operator.of(item) for item in found["items"]]


def leader(kubectl: Kubectl, operator: Operator) -> Leader | None:
    """Read an operator's Lease; None if nobody holds it. Raises `ClusterError`."""
    try:
        lease = kubectl.within(operator.namespace).read(
            "get", "leases.coordination.k8s.io", operator.name
        )
    except Missing:
        return None
    spec: Mapping[str, Any] = lease.get("spec") or {}
    if not (holder := spec.get("holderIdentity")):
        return None
    if not (text := spec.get("renewTime")):
        return Leader(holder, is_current=False, renewed=None)
    renewed = datetime.fromisoformat(text)
    lasts = timedelta(seconds=spec.get("leaseDurationSeconds", 0)) + _SLACK
    return Leader(holder, datetime.now(UTC) - renewed < lasts, renewed)


def crd(kubectl: Kubectl) -> Mapping[str, Any] | None:
    """Read the Agent CRD; None if there is none. Raises `ClusterError`."""
    try:
        found: Mapping[str, Any] = kubectl.read("get", "customresourcedefinitions", CRD)
    except Missing:
        return None
    return found


def is_established(definition: Mapping[str, Any]) -> bool:
    """Whether the API serves what a CRD defines."""
    conditions = (definition.get("status") or {}).get("conditions", ())
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


def served_versions(definition: Mapping[str, Any]) -> list[str]:
    """Name the versions in which Agents may be written."""
    return [version["name"] for version in definition["spec"]["versions"] if version["served"]]


def hopeless_pod(pods: Sequence[Mapping[str, Any]]) -> str | None:
    """Say why the newest pod does not come up by itself; None if it may still."""
    newest = max(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"]), default=None)
    statuses = ((newest or {}).get("status") or {}).get("containerStatuses", ())
    for container in statuses:
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in _HOPELESS:
            said = one_line(str(waiting.get("message", "")), 200)
            return f"{waiting['reason']} of image {container['image']}: {said}"
    return None


def installed_operator(kubectl: Kubectl, release: str) -> tuple[Operator | None, str | None]:
    """Give a release's operator, and what keeps its newest pod from coming up. Raises errors."""
    selector = f"--selector={OPERATOR},{_INSTANCE}={release}"
    items = kubectl.read("get", "deployments.apps,pods", selector)["items"]
    found = [Operator.of(item) for item in items if item["kind"] == "Deployment"]
    if len(found) > 1:
        raise ClusterError(f"release {release} has several operators; look with `kubectl get all`")
    return (found[0] if found else None), hopeless_pod([i for i in items if i["kind"] == "Pod"])
