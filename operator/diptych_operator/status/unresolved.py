"""Unresolved references of a manifest, for the condition ResolvedRefs. Pure.

Objects may be created in any order: what is missing now may come later. So an unresolved reference
is reported and never rejected; the agent runs without what it lacks.
"""

from collections.abc import Iterator

from diptych_operator.desired.agent_model import unresolved_models, with_model
from diptych_operator.desired.references import (
    ObservedState,
    Unresolved,
    addresses,
    is_external_name,
    may_use,
    service_port,
    usable,
)
from diptych_operator.desired.tool_servers import unresolved_tool_servers, with_tool_servers
from diptych_operator.resources.agent import Agent
from diptych_operator.resources.kinds import (
    AGENT,
    ALLOWED_NAMESPACES,
    NamespacedName,
    Object,
    ObjectKey,
)
from diptych_operator.status.condition import Problem


def unresolved_references(
    agent: Agent, observed: ObservedState, domain: str
) -> tuple[Problem, ...]:
    """Return the references that are unresolved now; `domain` is the cluster's DNS domain."""
    found = *unresolved_models(agent, observed), *unresolved_tool_servers(agent, observed)
    agent = with_tool_servers(with_model(agent, observed), observed)
    return (
        *(Problem(one.reason, one.message) for one in found),
        *pool_problems(agent, observed),
        *_unresolved_peers(agent, observed),
        *_unresolved_services(agent, observed),
        *_unresolved_hosts(agent, observed, domain),
    )


def pool_problems(agent: Agent, observed: ObservedState) -> Iterator[Problem]:
    """Yield why an Agent has no place in its pool."""
    if agent.pool and observed.hosting is None:
        message = f"AgentPool {agent.pool} is not there; create it or correct spec.hosting.pool"
        yield Problem("PoolNotFound", message)
    elif observed.hosting and observed.hosting.refusal:
        yield Problem("PoolFull", observed.hosting.refusal)


def _unresolved_peers(agent: Agent, observed: ObservedState) -> Iterator[Problem]:
    for peer in agent.peers:
        key, found = ObjectKey(AGENT, *peer.name), observed.agents.get(peer.name)
        problem = usable(agent, key, found, observed, "spec.agents")
        if isinstance(problem, Unresolved):
            yield Problem(problem.reason, problem.message)


def _unresolved_services(agent: Agent, observed: ObservedState) -> Iterator[Problem]:
    for ref in agent.service_refs:
        if ref.name in observed.services and not may_use(agent, ref, observed):
            namespace, name = ref.name
            yield Problem(
                "ServiceNotAllowed",
                f"Service {name} of namespace {namespace} lets no Agent of namespace "
                f"{agent.namespace} use it; its annotation {ALLOWED_NAMESPACES} decides",
            )
        elif ref.needs_consent and not observed.is_watched(ref.name[0]):
            yield Problem(
                "NamespaceNotWatched",
                f"Service {ref.name[1]} cannot be seen: this operator does not watch namespace "
                f"{ref.name[0]}",
            )
        yield from _unresolved_port(observed, ref.name, ref.port)


def _unresolved_hosts(agent: Agent, observed: ObservedState, domain: str) -> Iterator[Problem]:
    for found in addresses(agent, domain):
        if found.service_name and (found.is_certain or found.service_name in observed.services):
            yield from _unresolved_port(observed, found.service_name, found.port)


def _unresolved_port(observed: ObservedState, name: NamespacedName, port: int) -> Iterator[Problem]:
    service = observed.services.get(name)
    if service is None:
        if observed.is_watched(name[0]):
            yield Problem(
                "ServiceNotFound",
                f"Service {name[1]} is not there (namespace {name[0]}); create it",
            )
    elif _has_fixed_ports(service) and service_port(service, port) is None:
        ports = ", ".join(str(p["port"]) for p in service["spec"]["ports"])
        yield Problem(
            "ServicePortNotFound", f"Service {name[1]} has no port {port}; it has {ports}"
        )


def _has_fixed_ports(service: Object) -> bool:
    """Whether a Service is reached at its own ports only. A headless one is just its pods."""
    spec = service["spec"]
    has_cluster_ip = spec.get("clusterIP") != "None"
    return bool(spec.get("ports")) and not is_external_name(service) and has_cluster_ip
