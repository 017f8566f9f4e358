"""The kinds of objects that the operator deals with, and the words it writes on them.

Not here: what the objects say (`children`), how the API is called (`cluster`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

Object: TypeAlias = dict[str, Any]
"""A Kubernetes object as the API shows it."""

Name: TypeAlias = tuple[str, str]
"""Namespace and name of an object."""

FIELD_MANAGER: Final = "diptych"
MENDER: Final = "diptych-mend"
"""The field manager of objects that were overwritten, as what others had set made ours invalid."""
PORT: Final = 8000
APPLIED: Final = "diptych.dev/applied"
"""The annotation with the digest of what was applied last: tells that a field must be removed."""

_PREFIX: Final = "app.kubernetes.io"
AGENT_APP: Final = "diptych-agent"
MANAGED_BY: Final = f"{_PREFIX}/managed-by"
INSTANCE: Final = f"{_PREFIX}/instance"
MANAGER: Final = "diptych-operator"
OPERATOR_PODS: Final = {f"{_PREFIX}/name": "diptych", f"{_PREFIX}/component": "operator"}
NAMESPACE_LABEL: Final = "kubernetes.io/metadata.name"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of objects, and where the API keeps it."""

    group: str
    version: str
    plural: str
    name: str
    is_namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None) -> str:
        """Give the path of one object, or of all (of a namespace, if one is given)."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        inside = f"/namespaces/{namespace}" if namespace and self.is_namespaced else ""
        return f"{root}{inside}/{self.plural}" + (f"/{name}" if name else "")


AGENT: Final = Kind("diptych.dev", "v1alpha1", "agents", "Agent")
DEPLOYMENT: Final = Kind("apps", "v1", "deployments", "Deployment")
SERVICE: Final = Kind("", "v1", "services", "Service")
CONFIG_MAP: Final = Kind("", "v1", "configmaps", "ConfigMap")
SERVICE_ACCOUNT: Final = Kind("", "v1", "serviceaccounts", "ServiceAccount")
NETWORK_POLICY: Final = Kind("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
BUDGET: Final = Kind("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
POD: Final = Kind("", "v1", "pods", "Pod")
NAMESPACE: Final = Kind("", "v1", "namespaces", "Namespace", is_namespaced=False)
LEASE: Final = Kind("coordination.k8s.io", "v1", "leases", "Lease")
EVENT: Final = Kind("events.k8s.io", "v1", "events", "Event")

OWNED: Final = (SERVICE_ACCOUNT, NETWORK_POLICY, SERVICE, BUDGET, DEPLOYMENT)
"""What an agent owns and the operator watches, in the order of their making. (ConfigMaps are owned
too, but the operator has no right to read any.)"""

WATCHED_BY_LABEL: Final = (SERVICE_ACCOUNT, NETWORK_POLICY, BUDGET, DEPLOYMENT, POD)
"""Kinds of which only the operator's own objects are watched."""

KINDS: Final[Mapping[str, Kind]] = {
    kind.name: kind for kind in (*OWNED, AGENT, CONFIG_MAP, POD, NAMESPACE, LEASE, EVENT)
}


def kind_of(content: Mapping[str, Any]) -> Kind:
    """Give the kind of an object. Raises `KeyError` for one that the operator does not know."""
    return KINDS[content["kind"]]


def name_of(content: Mapping[str, Any]) -> Name:
    """Give namespace and name of an object; the namespace is empty if it has none."""
    metadata = content["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def selector_labels(agent: str) -> dict[str, str]:
    """Give the labels that choose an agent's pods; they never change."""
    return {f"{_PREFIX}/name": AGENT_APP, INSTANCE: agent}


def labels(agent: str) -> dict[str, str]:
    """Give the labels of all that an agent owns."""
    return {
        **selector_labels(agent),
        f"{_PREFIX}/component": "agent",
        f"{_PREFIX}/part-of": "diptych",
        MANAGED_BY: MANAGER,
    }
