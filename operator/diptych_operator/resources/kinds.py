"""Kinds of Kubernetes objects, their API paths, and the names that the operator writes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

Object: TypeAlias = dict[str, Any]
"""A Kubernetes object as the API's JSON."""

NamespacedName: TypeAlias = tuple[str, str]
"""Namespace and name of an object; the namespace is empty for a cluster-scoped object."""

FIELD_MANAGER: Final = "diptych"
OVERWRITE_MANAGER: Final = "diptych-mend"
"""The field manager of objects that were overwritten because applying them was refused."""
APPLIED_DIGEST: Final = "diptych.dev/applied"
"""The annotation with the digest of what was applied last; shows that a field must be removed."""
RETRIED: Final = "diptych.dev/pods-retried"
"""The annotation of a Deployment with the time at which refused pods were last tried again."""
ALLOWED_NAMESPACES: Final = "diptych.dev/allowed-namespaces"
"""The annotation of a Service with the namespaces whose Agents may have it as a tool server, by
commas; `*` is all."""
CLAIM_NAME: Final = "diptych-agents"
"""The Lease in each namespace with Agents that says which operator serves them."""
OPERATOR_NAME: Final = "diptych-operator"
PORT: Final = 8000
METRICS_PORT: Final = 9090


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of objects, and its place in the API."""

    group: str
    version: str
    plural: str
    name: str
    is_namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None) -> str:
        """Return the path of one object, or of all objects (of a namespace, if one is given)."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        inside = f"/namespaces/{namespace}" if namespace and self.is_namespaced else ""
        return f"{root}{inside}/{self.plural}" + (f"/{name}" if name else "")


class ObjectKey(NamedTuple):
    """An object, whether or not it exists: what the work queue holds and references point to."""

    kind: Kind
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind.name} {self.namespace}/{self.name}"

    @property
    def namespaced_name(self) -> NamespacedName:
        return self.namespace, self.name


AGENT: Final = Kind("diptych.dev", "v1alpha1", "agents", "Agent")
AGENT_POOL: Final = Kind("diptych.dev", "v1alpha1", "agentpools", "AgentPool")
MCP_SERVER: Final = Kind("diptych.dev", "v1alpha1", "mcpservers", "MCPServer")
MODEL_API: Final = Kind("diptych.dev", "v1alpha1", "modelapis", "ModelAPI")
DEPLOYMENT: Final = Kind("apps", "v1", "deployments", "Deployment")
SERVICE: Final = Kind("", "v1", "services", "Service")
CONFIG_MAP: Final = Kind("", "v1", "configmaps", "ConfigMap")
SERVICE_ACCOUNT: Final = Kind("", "v1", "serviceaccounts", "ServiceAccount")
NETWORK_POLICY: Final = Kind("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
POD_DISRUPTION_BUDGET: Final = Kind("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
PERSISTENT_VOLUME_CLAIM: Final = Kind("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
JOB: Final = Kind("batch", "v1", "jobs", "Job")
CRON_JOB: Final = Kind("batch", "v1", "cronjobs", "CronJob")
HTTP_ROUTE: Final = Kind("gateway.networking.k8s.io", "v1", "httproutes", "HTTPRoute")
INGRESS: Final = Kind("networking.k8s.io", "v1", "ingresses", "Ingress")
POD: Final = Kind("", "v1", "pods", "Pod")
NAMESPACE: Final = Kind("", "v1", "namespaces", "Namespace", is_namespaced=False)
LEASE: Final = Kind("coordination.k8s.io", "v1", "leases", "Lease")
EVENT: Final = Kind("events.k8s.io", "v1", "events", "Event")

CHILD_KINDS: Final = (
    SERVICE_ACCOUNT,
    NETWORK_POLICY,
    SERVICE,
    POD_DISRUPTION_BUDGET,
    PERSISTENT_VOLUME_CLAIM,
    DEPLOYMENT,
)
"""The children that are watched and named after their owner (`Owner.child_name`), in the order of
their creation. Its ConfigMaps, watched too, have names of their own."""

SCHEDULES: Final = ".schedules"
"""Ends the names of the account and the NetworkPolicy of an Agent's schedules; no Agent's name has
a dot."""
ROUTE_KINDS: Final = (HTTP_ROUTE, INGRESS)
"""Children, too, where the platform lets Agents be exposed. They are listed and not watched: the
cluster may lack the Gateway API."""

KINDS: Final[Mapping[str, Kind]] = {
    kind.name: kind
    for kind in (
        *(*CHILD_KINDS, *ROUTE_KINDS, AGENT, AGENT_POOL, MODEL_API, MCP_SERVER, CONFIG_MAP),
        *(JOB, CRON_JOB, POD, NAMESPACE, LEASE, EVENT),
    )
}


def schedules_name(agent: str) -> str:
    """Name the account and the NetworkPolicy of an Agent's schedules."""
    return f"{agent}{SCHEDULES}"


def kind_of(content: Mapping[str, Any]) -> Kind:
    """Return the kind of an object. Raises `KeyError` for a kind that the operator does not use."""
    return KINDS[content["kind"]]


def namespaced_name_of(content: Mapping[str, Any]) -> NamespacedName:
    """Return the namespace and name of an object."""
    metadata = content["metadata"]
    return metadata.get("namespace", ""), metadata["name"]
