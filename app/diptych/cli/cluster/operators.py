"""The operators of a cluster, read by kubectl: their Deployments and Leases."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from diptych.cli.cluster.kubectl import Kubectl, NotFound
from diptych.cli.output.wording import one_line

CLAIM = "diptych-agents"
"""The Lease in each namespace with Agents that says which operator serves them."""
OPERATOR = "app.kubernetes.io/name=diptych,app.kubernetes.io/component=operator"
"""The label selector of the objects of an operator, as the chart sets their labels."""
_VERSION, _INSTANCE = "app.kubernetes.io/version", "app.kubernetes.io/instance"
_LEASES = "leases.coordination.k8s.io"
_CLOCK_SKEW = timedelta(seconds=60)
_PERMANENT_REASONS = {
    *("CrashLoopBackOff", "CreateContainerConfigError"),
    *("ErrImageNeverPull", "ImagePullBackOff", "InvalidImageName"),
}
"""Reasons for which a container waits, and which time alone does not remove."""


class Operator:
    """An operator's Deployment."""

    def __init__(self, deployment: Mapping[str, Any]) -> None:
        metadata, spec = deployment["metadata"], deployment["spec"]
        labels: Mapping[str, str] = metadata.get("labels") or {}
        self.namespace: str = metadata["namespace"]
        self.name: str = metadata["name"]
        self.release = labels.get(_INSTANCE, "")
        self.version = labels.get(_VERSION, "of an unknown version")
        self.image: str = spec["template"]["spec"]["containers"][0]["image"]
        self.wanted: int = spec.get("replicas", 1)
        self.available: int = (deployment.get("status") or {}).get("availableReplicas", 0)

    @property
    def full_name(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class LeaseHolder:
    """The pod that holds an operator's Lease, and whether it has renewed it in time."""

    name: str
    is_current: bool
    renewed: str


def list_operators(kubectl: Kubectl) -> list[Operator]:
    """Read all operators of the cluster. Raises `ClusterError`; for many people, `Forbidden`."""
    listed = kubectl.json("get", "deployments.apps", f"--selector={OPERATOR}", "--all-namespaces")
    return [Operator(item) for item in listed["items"]]


def lease_holder(kubectl: Kubectl, operator: Operator) -> LeaseHolder | None:
    """Read who holds an operator's Lease; None if nobody does. Raises `ClusterError`."""
    try:
        lease = kubectl.in_namespace(operator.namespace).json("get", _LEASES, operator.name)
    except NotFound:
        return None
    spec: Mapping[str, Any] = lease.get("spec") or {}
    if not (holder := spec.get("holderIdentity")):
        return None
    if not (timestamp := spec.get("renewTime")):
        return LeaseHolder(holder, is_current=False, renewed="never")
    renewed = datetime.fromisoformat(timestamp)
    valid_for = timedelta(seconds=spec.get("leaseDurationSeconds", 0)) + _CLOCK_SKEW
    is_current = datetime.now(UTC) - renewed < valid_for
    return LeaseHolder(holder, is_current, f"{renewed:%Y-%m-%d %H:%M:%S %Z}")


def read_claims(kubectl: Kubectl) -> tuple[dict[str, list[str]], str]:
    """Read which namespaces each operator has claimed, and when a claim was last renewed.

    Keys are the operators' full names. An expired claim counts, too: nobody has taken it over.
    Raises `ClusterError`.
    """
    selector = f"--field-selector=metadata.name={CLAIM}"
    served: dict[str, list[str]] = {}
    last = ""
    for lease in kubectl.json("get", _LEASES, "--all-namespaces", selector)["items"]:
        spec = lease.get("spec") or {}
        last = max(last, spec.get("renewTime") or "")
        namespace = (lease.get("metadata") or {}).get("namespace", "")
        served.setdefault(spec.get("holderIdentity", ""), []).append(namespace)
    return served, last


def start_failure(kubectl: Kubectl, operator: Operator) -> str:
    """Return why an operator's newest pod does not run; empty if its status does not say.

    Raises `ClusterError`.
    """
    selector = f"--selector={OPERATOR},{_INSTANCE}={operator.release}"
    pods = kubectl.in_namespace(operator.namespace).json("get", "pods", selector)["items"]
    newest: Mapping[str, Any] = max(
        pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"]), default={}
    )
    for container in (newest.get("status") or {}).get("containerStatuses", ()):
        ends = ((container.get(state) or {}).get("terminated") for state in ("state", "lastState"))
        end: Mapping[str, Any] = next(filter(None, ends), {})
        if end.get("reason") == "OOMKilled":
            resources = newest["spec"]["containers"][0].get("resources") or {}
            limit = (resources.get("limits") or {}).get("memory", "not set")
            return (
                f"OOMKilled: {container.get('restartCount')} restarts, the last at "
                f"{end.get('finishedAt')}; its limit of memory is {limit}: raise "
                "resources.limits.memory of the chart"
            )
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in _PERMANENT_REASONS:
            message = one_line(str(waiting.get("message", "")), 200)
            return f"{waiting['reason']} of image {container['image']}: {message}"
    return ""
