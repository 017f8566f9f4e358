"""An `AgentPool` as a typed value."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from diptych_operator.resources.kinds import AGENT_POOL, PORT, NamespacedName, Object
from diptych_operator.resources.labels import APP, INSTANCE, POOL_APP
from diptych_operator.resources.owner import Owner

FIRST_PORT: Final = 10000
"""An Agent's port at its pool's pods is this one plus its number."""
MAX_AGENTS: Final = 200


@dataclass(frozen=True, slots=True)
class AgentPool(Owner):
    """An AgentPool as the API shows it."""

    kind = AGENT_POOL
    app = POOL_APP
    component = "agent"
    audience_path = "pool/"
    suffixes = ("-pool",)

    @property
    def verifies_tokens(self) -> bool:
        return True

    @property
    def replicas(self) -> int:
        return int(self.spec.get("replicas", 1))

    @property
    def redis(self) -> Mapping[str, Any]:
        """The Redis of Agents that name none; empty if there is none."""
        return self.spec.get("redis") or {}

    @property
    def max_agents(self) -> int:
        return int(self.spec.get("maxAgents", MAX_AGENTS))

    @property
    def account(self) -> NamespacedName:
        """The ServiceAccount as which its pods ask."""
        return self.namespace, self.child_name

    @property
    def url(self) -> str:
        """The URL of its door inside the cluster."""
        return f"http://{self.child_name}.{self.namespace}:{PORT}"


def pool_of_service(service: Object | None) -> str | None:
    """Name the pool at whose pods a Service points, if at any."""
    selector = ((service or {}).get("spec") or {}).get("selector") or {}
    return selector.get(INSTANCE) if selector.get(APP) == POOL_APP else None


def target_port(service: Object | None) -> int | None:
    """Return the pods' port at which an Agent's Service points."""
    ports = ((service or {}).get("spec") or {}).get("ports") or ()
    return next((port.get("targetPort") for port in ports), None)
