"""Whom an agent refers to, and which of it leads nowhere. Pure.

Order does not matter in a cluster: what is missing now may come later. So a loose end is told and
never refused; the agent runs without what it lacks.

Not here: Secrets and ConfigMaps, which only the pod reads (its `/ready` tells what it misses).
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from diptych_operator.resources.agent import Agent, PeerRef
from diptych_operator.resources.kinds import NAMESPACE_LABEL, Name, Object

Referent: TypeAlias = tuple[str, str, str]
"""Kind, namespace (empty for a Namespace) and name of what a decision depends on."""

_SCHEME_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class LooseEnd:
    """A reference that leads nowhere: a reason in one word, and what to do about it."""

    reason: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a decision about one agent depends on besides its manifest.

    `watched` are the namespaces that the operator may look into; None means all of them.
    `namespaces` holds labels by name. `deployment` and `policy` are the agent's own, as they are.
    """

    services: Mapping[Name, Object] = field(default_factory=dict)
    agents: Mapping[Name, Agent] = field(default_factory=dict)
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    watched: frozenset[str] | None = None
    deployment: Object | None = None
    policy: Object | None = None

    def sees(self, namespace: str) -> bool:
        return self.watched is None or namespace in self.watched


@dataclass(frozen=True, slots=True)
class Address:
    """The host and port of a URL; `service` is the Service that the host may name.

    `is_certain` says that nothing but a Service of the cluster can be meant.
    """

    host: str
    port: int
    service: Name | None = None
    is_certain: bool = False


def address(url: str, namespace: str, domain: str) -> Address:
    """Take a URL apart, as a pod of this namespace would look its host up.

    Raises `ValueError` for an IPv6 address that is none: the one mistake that the CRD lets pass.
    """
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or _SCHEME_PORTS[parts.scheme]
    if host == "localhost" or ":" in host or host.replace(".", "").isdigit():
        return Address(host, port)
    match host.removesuffix(".").removesuffix(f".{domain}").split("."):
        case [name]:
            return Address(host, port, (namespace, name), is_certain=True)
        case [name, inside]:
            return Address(host, port, (inside, name))
        case [name, inside, "svc"]:
            return Address(host, port, (inside, name), is_certain=True)
        case _:
            return Address(host, port)


def referents(agent: Agent, domain: str) -> frozenset[Referent]:
    """List all whose coming, going or changing may change what is made of the agent."""
    services = [ref.service for ref in agent.services]
    services += [a.service for a in _addresses(agent, domain) if a.service]
    found = {("Service", *name) for name in services}
    found |= {("Agent", *peer.agent) for peer in agent.peers}
    if any(peer.agent[0] != agent.namespace for peer in agent.peers):
        found.add(("Namespace", "", agent.namespace))
    return frozenset(found)


def loose_ends(agent: Agent, around: Surroundings, domain: str) -> tuple[LooseEnd, ...]:
    """Say which references lead nowhere now."""
    return (
        *_missing_agents(agent, around),
        *_missing_services(agent, around),
        *_missing_hosts(agent, around, domain),
    )


def may_delegate(agent: Agent, peer: PeerRef, around: Surroundings) -> bool:
    """Say whether a peer that is there lets this agent delegate to it, as far as is known."""
    return agrees(agent, peer, around) is True


def agrees(agent: Agent, peer: PeerRef, around: Surroundings) -> bool | None:
    """Say whether a peer lets this agent delegate to it; None if that cannot be known.

    An operator that watches only some namespaces may not read Namespaces, and of their labels it
    knows the one that is always the name.
    """
    namespace, _ = peer.agent
    target = around.agents.get(peer.agent)
    if target is None or namespace == agent.namespace:
        return True
    allowed = target.spec.get("allowedNamespaces") or {}
    match allowed.get("from", "Same"):
        case "All":
            return True
        case "Selector":
            labels = around.namespaces.get(agent.namespace)
            if labels is None and not keys_of(allowed["selector"]) <= {NAMESPACE_LABEL}:
                return None if around.watched is not None else False
            return chooses(allowed["selector"], labels or {NAMESPACE_LABEL: agent.namespace})
        case _:
            return False


def keys_of(selector: Mapping[str, Any]) -> set[str]:
    """Name the labels that a selector asks for."""
    expressions = selector.get("matchExpressions", ())
    return {*selector.get("matchLabels", {}), *(expression["key"] for expression in expressions)}


def chooses(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Say whether a label selector chooses an object with these labels."""
    wanted = selector.get("matchLabels", {}).items()
    expressions = selector.get("matchExpressions", ())
    return all(labels.get(key) == value for key, value in wanted) and all(
        _holds(expression, labels) for expression in expressions
    )


def service_port(service: Object, port: int) -> Mapping[str, Any] | None:
    """Find a port of a Service by its number."""
    return next((p for p in service["spec"].get("ports", ()) if p["port"] == port), None)


def is_external(service: Object) -> bool:
    """Say whether a Service is only another name for a host outside the cluster."""
    return bool(service["spec"].get("type") == "ExternalName")


def _addresses(agent: Agent, domain: str) -> Iterator[Address]:
    for url in agent.urls:
        with suppress(ValueError):  # the manifest is refused for it elsewhere (`reconcile`)
            yield address(url, agent.namespace, domain)


def _missing_agents(agent: Agent, around: Surroundings) -> Iterator[LooseEnd]:
    for peer in agent.peers:
        namespace, name = peer.agent
        where = f"Agent {name}" if namespace == agent.namespace else f"Agent {namespace}/{name}"
        if not around.sees(namespace):
            yield LooseEnd(
                "NamespaceNotWatched",
                f"{where} cannot be seen: this operator does not watch namespace {namespace}",
            )
        elif peer.agent not in around.agents:
            yield LooseEnd(
                "AgentNotFound", f"{where} is not there; create it or remove it from spec.agents"
            )
        elif (answer := agrees(agent, peer, around)) is None:
            yield LooseEnd(
                "NamespaceLabelsUnknown",
                f"{where} chooses by labels of namespaces who may delegate to it, and this "
                f"operator may not read them; choose by {NAMESPACE_LABEL} or from: All there, or "
                "let the operator watch all namespaces",
            )
        elif not answer:
            yield LooseEnd(
                "AgentNotAllowed",
                f"{where} lets no Agent of namespace {agent.namespace} delegate to it; "
                "its spec.allowedNamespaces decides",
            )


def _missing_services(agent: Agent, around: Surroundings) -> Iterator[LooseEnd]:
    for ref in agent.services:
        yield from _missing_port(around, ref.service, ref.port)


def _missing_hosts(agent: Agent, around: Surroundings, domain: str) -> Iterator[LooseEnd]:
    for found in _addresses(agent, domain):
        if found.service and (found.is_certain or found.service in around.services):
            yield from _missing_port(around, found.service, found.port)


def _missing_port(around: Surroundings, name: Name, port: int) -> Iterator[LooseEnd]:
    service = around.services.get(name)
    if service is None:
        if around.sees(name[0]):
            yield LooseEnd(
                "ServiceNotFound",
                f"Service {name[1]} is not there (namespace {name[0]}); create it",
            )
    elif _has_fixed_ports(service) and service_port(service, port) is None:
        ports = ", ".join(str(p["port"]) for p in service["spec"]["ports"])
        yield LooseEnd(
            "ServicePortNotFound", f"Service {name[1]} has no port {port}; it has {ports}"
        )


def _has_fixed_ports(service: Object) -> bool:
    """Say whether a Service can be reached at its own ports only (a headless one is its pods)."""
    spec = service["spec"]
    return bool(spec.get("ports")) and not is_external(service) and spec.get("clusterIP") != "None"


def _holds(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, values = expression["key"], expression.get("values", ())
    match expression["operator"]:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case _:
            return key not in labels
