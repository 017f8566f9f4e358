"""The Agents and Services that a manifest refers to, and their observed state. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from diptych_operator.desired.access import Callers, TokenIssuer
from diptych_operator.resources.agent import Agent, PeerRef, ServiceRef
from diptych_operator.resources.agent_pool import AgentPool
from diptych_operator.resources.kinds import (
    AGENT,
    AGENT_POOL,
    ALLOWED_NAMESPACES,
    MCP_SERVER,
    MODEL_API,
    NAMESPACE,
    PORT,
    SERVICE,
    NamespacedName,
    Object,
    ObjectKey,
)
from diptych_operator.resources.labels import (
    NAMESPACE_NAME,
    selector_keys,
    selector_labels,
    selects,
)
from diptych_operator.resources.mcp_server import McpServer
from diptych_operator.resources.model_api import ModelApi
from diptych_operator.resources.owner import Owner

_Owner = TypeVar("_Owner", bound=Owner)


class ForeignRef(NamedTuple):
    """An object of another API group that has a tool server's address."""

    group: str
    kind: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Unresolved:
    """Why a reference cannot be resolved; the message is a sentence without its full stop."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Place:
    """Pods that serve an Agent, by namespace and labels, and the port at which they do."""

    namespace: str
    labels: Mapping[str, str]
    port: int = PORT


@dataclass(frozen=True, slots=True)
class Hosting:
    """A pool that hosts an Agent, at which port once it has one.

    `is_served` says that each of the pool's ready pods serves the Agent's newest manifest,
    `refusal` why the pool does not take it.
    """

    pool: AgentPool
    port: int | None = None
    is_served: bool = False
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class ObservedState:
    """The part of the cluster that concerns one Agent.

    `services` and `agents` are those that the Agent refers to and that exist. `namespace_labels`
    holds labels by namespace. `watched_namespaces` are the namespaces that the operator watches;
    None means all. `deployment`, `network_policy`, `config_maps` and `pods` are the Agent's own, as
    they are now. `callers` are the Agents that delegate to it, `issuer` signs the tokens of the
    cluster's ServiceAccounts; None until the API has said so.
    """

    services: Mapping[NamespacedName, Object] = field(default_factory=dict)
    agents: Mapping[NamespacedName, Agent] = field(default_factory=dict)
    namespace_labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    watched_namespaces: frozenset[str] | None = None
    deployment: Object | None = None
    network_policy: Object | None = None
    config_maps: Sequence[Object] = ()
    cron_jobs: Sequence[Object] = ()
    """The CronJobs of its schedules, as they are now."""
    pods: Sequence[Object] = ()
    callers: Callers = field(default_factory=dict)
    issuer: TokenIssuer | None = None
    mcp_servers: Mapping[NamespacedName, McpServer] = field(default_factory=dict)
    """The MCPServers that the Agent refers to and that exist."""
    foreign_servers: Mapping[ForeignRef, Object | Unresolved] = field(default_factory=dict)
    """Tool servers of other API groups, or why they cannot be read."""
    model_apis: Mapping[NamespacedName, ModelApi] = field(default_factory=dict)
    """The ModelAPIs that the Agent, or its ModelAPI's fallbacks, refer to and that exist."""
    former_urls: Sequence[str] = ()
    """The endpoints before the last change, which its pods may still ask."""
    exposed_at_host: Sequence[Object] = ()
    """The Agents that ask to be exposed under the host name of this one, itself among them."""
    service: Object | None = None
    """The Agent's own, as it is now."""
    hosting: Hosting | None = None
    """The pool that it chose, if that is there."""
    places: Mapping[NamespacedName, Sequence[Place]] = field(default_factory=dict)
    """Where the pods of `agents`, and its own, listen."""

    def places_of(self, name: NamespacedName) -> Sequence[Place]:
        return self.places.get(name) or (Place(name[0], selector_labels(name[1])),)

    def is_watched(self, namespace: str) -> bool:
        return self.watched_namespaces is None or namespace in self.watched_namespaces


_SCHEME_PORTS = {"http": 80, "https": 443}


class Permission(Enum):
    """Whether an owner's `spec.allowedNamespaces` lets Agents of a namespace use it."""

    ALLOWED = auto()
    DENIED = auto()
    UNKNOWN = auto()
    """It depends on labels of Namespaces, which this operator has no right to read."""


@dataclass(frozen=True, slots=True)
class Address:
    """Host and port of a URL; `service_name` is the Service that the host may name.

    `is_certain` says that the host can be nothing but a Service of the cluster.
    """

    host: str
    port: int
    service_name: NamespacedName | None = None
    is_certain: bool = False


def address(url: str, namespace: str, domain: str) -> Address:
    """Read a URL's host as a pod of this namespace would resolve it; `domain` is the cluster's.

    Raises `ValueError` for an invalid IPv6 address, the one mistake that the CRD lets through.
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


def addresses(agent: Agent, domain: str) -> Iterator[Address]:
    """Return the addresses of all URLs of a manifest. Invalid URLs are left out."""
    for url in agent.urls:
        with suppress(ValueError):  # the manifest is rejected for it: `controller.obstacles`
            yield address(url, agent.namespace, domain)


def references(owner: Owner, domain: str, shared: Iterable[str] = ()) -> frozenset[ObjectKey]:
    """List the objects whose creation, change or deletion may change what an owner needs.

    `shared` are the URLs that the platform has every Agent ask.
    """
    match owner:
        case Agent():
            return _agent_references(owner, domain, shared)
        case ModelApi():
            return _model_api_references(owner, domain, shared)
        case _:
            return frozenset()


def _agent_references(agent: Agent, domain: str, shared: Iterable[str]) -> frozenset[ObjectKey]:
    services = [ref.name for ref in agent.service_refs]
    services += [found.service_name for found in addresses(agent, domain) if found.service_name]
    others = [address(u, agent.namespace, domain) for u in (*agent.variable_urls, *shared)]
    services += [found.service_name for found in others if found.service_name]
    found = {ObjectKey(SERVICE, *name) for name in services}
    found |= {ObjectKey(AGENT, *peer.name) for peer in agent.peers}
    if agent.pool:
        found.add(ObjectKey(AGENT_POOL, agent.namespace, agent.pool))
    found |= {ObjectKey(MODEL_API, *name) for name in agent.model_apis}
    found |= {ObjectKey(MCP_SERVER, *name) for name in agent.mcp_servers}
    if any(one.namespace != agent.namespace for one in found if one.kind is not SERVICE):
        found.add(ObjectKey(NAMESPACE, "", agent.namespace))
    return frozenset(found)


def _model_api_references(
    api: ModelApi, domain: str, shared: Iterable[str]
) -> frozenset[ObjectKey]:
    found = {ObjectKey(MODEL_API, *name) for name in api.fallback_refs}
    if api.is_proxied:
        found |= {ObjectKey(SERVICE, *name) for name in proxy_services(api, domain, shared)}
    return frozenset(found)


def proxy_services(
    api: ModelApi, domain: str, shared: Iterable[str] = ()
) -> Iterator[NamespacedName]:
    """Name the Services that a ModelAPI's proxy may ask."""
    if ref := api.redis_service:
        yield ref.name
    for url in (*api.urls, *shared):
        with suppress(ValueError):
            if name := address(url, api.namespace, domain).service_name:
                yield name


def may_delegate(agent: Agent, peer: PeerRef, observed: ObservedState) -> bool:
    """Whether a peer is known to allow delegation; one that does not exist is no obstacle."""
    target = observed.agents.get(peer.name)
    return target is None or permission(target, agent.namespace, observed) is Permission.ALLOWED


def usable(
    agent: Agent, key: ObjectKey, found: _Owner | None, observed: ObservedState, said_in: str
) -> _Owner | Unresolved:
    """Return an object of ours that an Agent refers to, or why the Agent cannot use it.

    `found` is the object if it is there, `said_in` the field that refers to it.
    """
    kind, namespace = key.kind.name, key.namespace
    where = f"{kind} {key.name if namespace == agent.namespace else '/'.join(key.namespaced_name)}"
    use = "delegate to" if key.kind is AGENT else "use"
    if not observed.is_watched(namespace):
        message = f"{where} cannot be seen: this operator does not watch namespace {namespace}"
        return Unresolved("NamespaceNotWatched", message)
    if found is None:
        message = f"{where} is not there; create it or correct {said_in}"
        return Unresolved(f"{kind}NotFound", message)
    match permission(found, agent.namespace, observed):
        case Permission.UNKNOWN:
            return Unresolved(
                "NamespaceLabelsUnknown",
                f"{where} chooses by labels of namespaces who may {use} it, and this operator may "
                f"not read them; choose by {NAMESPACE_NAME} or from: All there, or let the "
                "operator watch all namespaces",
            )
        case Permission.DENIED:
            return Unresolved(
                f"{kind}NotAllowed",
                f"{where} lets no Agent of namespace {agent.namespace} {use} it; its "
                "spec.allowedNamespaces decides",
            )
    return found


def permission(owner: Owner, namespace: str, observed: ObservedState) -> Permission:
    """Evaluate an owner's `spec.allowedNamespaces` for Agents of a namespace.

    An operator that watches some namespaces only may not read Namespaces. Of their labels it knows
    one: the label with the namespace's name.
    """
    if namespace == owner.namespace:
        return Permission.ALLOWED
    allowed = owner.spec.get("allowedNamespaces") or {}
    match allowed.get("from"):
        case "All":
            return Permission.ALLOWED
        case "Selector":
            return _selector_permission(allowed["selector"], namespace, observed)
        case _:  # Same, which is the default
            return Permission.DENIED


def may_use(agent: Agent, ref: ServiceRef, observed: ObservedState) -> bool:
    """Whether a Service's annotation allows an Agent to use it as a tool server.

    A Service that is missing or not visible does not consent.
    """
    if not ref.needs_consent:
        return True
    metadata = (observed.services.get(ref.name) or {}).get("metadata") or {}
    allowed = (metadata.get("annotations") or {}).get(ALLOWED_NAMESPACES, "")
    return not {"*", agent.namespace}.isdisjoint(one.strip() for one in allowed.split(","))


def service_port(service: Object, port: int) -> Mapping[str, Any] | None:
    """Find a port of a Service by its number."""
    return next((p for p in service["spec"].get("ports", ()) if p["port"] == port), None)


def is_external_name(service: Object) -> bool:
    """Whether a Service is only a DNS alias for a host outside the cluster."""
    return bool(service["spec"].get("type") == "ExternalName")


def _selector_permission(
    selector: Mapping[str, Any], namespace: str, observed: ObservedState
) -> Permission:
    labels = observed.namespace_labels.get(namespace)
    if labels is None and not selector_keys(selector) <= {NAMESPACE_NAME}:
        is_readable = observed.watched_namespaces is None
        return Permission.DENIED if is_readable else Permission.UNKNOWN
    is_selected = selects(selector, labels or {NAMESPACE_NAME: namespace})
    return Permission.ALLOWED if is_selected else Permission.DENIED
