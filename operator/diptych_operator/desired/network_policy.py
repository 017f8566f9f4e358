"""The NetworkPolicy of an Agent: who may reach it, and what it may reach. Pure.

A NetworkPolicy knows no host names, so a URL outside the cluster opens its port to any address
but link-local ones.
Inside the cluster, a rule selects the pods behind the Service, at the port that they listen on.
For a URL in a Secret, which the operator cannot read, the usual ports are open to any address,
and so is the port of a Service without pods of its own: to any but link-local ones.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from diptych_operator.desired.references import (
    Address,
    ObservedState,
    Place,
    address,
    is_external_name,
    may_delegate,
    may_use,
    service_port,
)
from diptych_operator.resources.agent import REDIS_PORT, Agent
from diptych_operator.resources.kinds import METRICS_PORT, PORT, NamespacedName
from diptych_operator.resources.labels import (
    AGENT_POD_LABELS,
    NAMESPACE_NAME,
    OPERATOR_POD_LABELS,
    POOL_POD_LABELS,
    schedule_pod_labels,
)
from diptych_operator.resources.mcp_server import McpServer
from diptych_operator.resources.model_api import ModelApi

Rule: TypeAlias = dict[str, Any]

_SENTINEL_PORT = 26379
_ANYWHERE: tuple[Rule, ...] = (
    {"ipBlock": {"cidr": "0.0.0.0/0", "except": ["169.254.0.0/16"]}},
    {"ipBlock": {"cidr": "::/0", "except": ["fe80::/10"]}},
)
"""Every address but those of this link, at which clouds give credentials to anybody."""
_ANYWHERE_OR_ANY_POD: tuple[Rule, ...] = (*_ANYWHERE, {"namespaceSelector": {}})
"""For what may be inside the cluster: to some plugins, no pod is in a block of addresses."""


@dataclass(frozen=True, slots=True)
class DnsSettings:
    """The cluster's name servers: their pods, other addresses of theirs, and their ports.

    Empty `labels` select all pods of the namespaces. A NetworkPolicy applies to the pod's port,
    which may differ from the Service's.
    """

    namespaces: tuple[str, ...] = ("kube-system",)
    labels: Mapping[str, str] = field(default_factory=lambda: {"k8s-app": "kube-dns"})
    blocks: tuple[str, ...] = ("169.254.20.10/32",)
    ports: tuple[int, ...] = (53,)


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """The cluster's DNS domain and name servers, and the operator's own namespace.

    `metrics_from` are the NetworkPolicy peers that may read the pods' metrics, `ingress_from` those
    that may reach all Agents. `issuers` are the
    URLs of issuers at which every pod asks for keys, `proxy` is that of the proxy to the outside.
    """

    domain: str = "cluster.local"
    operator_namespace: str | None = None
    dns: DnsSettings = field(default_factory=DnsSettings)
    metrics_from: tuple[Mapping[str, Any], ...] = ()
    ingress_from: tuple[Mapping[str, Any], ...] = ()
    issuers: tuple[str, ...] = ()
    proxy: str = ""

    @property
    def shared_urls(self) -> tuple[str, ...]:
        """URLs that every Agent calls, whatever its manifest."""
        return (*self.issuers, *([self.proxy] if self.proxy else []))


def policy_spec(
    agent: Agent,
    observed: ObservedState,
    network: NetworkSettings,
    sources: Sequence[Mapping[str, Any]] = (),
    *,
    keeps_former_egress: bool,
) -> dict[str, Any]:
    """Return the NetworkPolicy's spec; `sources` are the peers by which the Agent is exposed.

    `keeps_former_egress` is for a rollout: pods of the former revision may still run, and what
    they needed stays open to them.
    """
    egress = egress_rules(agent, observed, network)
    if keeps_former_egress:
        egress = _unique([*egress, *_live_egress(observed)])
    return _policy(agent.selector_labels, ingress_rules(agent, network, sources), egress)


def ingress_rules(
    agent: Agent, network: NetworkSettings, sources: Sequence[Mapping[str, Any]] = ()
) -> list[Rule]:
    """Return the ingress rules: the Agent's namespace, peers, the operator, gateways."""
    extra = _extra_rules(agent, "extraIngress")
    return _unique([*serving_rules(agent, network, sources), *metrics_rules(network), *extra])


def pooled_ingress_rules(
    agent: Agent, network: NetworkSettings, sources: Sequence[Mapping[str, Any]], port: int
) -> list[Rule]:
    """Return the ingress rules of an Agent in a pool: at its port alone, and not for metrics."""
    extra = [rule for rule in _extra_rules(agent, "extraIngress") if _has_port(rule)]
    rules = [*serving_rules(agent, network, sources), *extra]
    return [{**rule, "ports": [_tcp(port)]} for rule in rules]


def serving_rules(
    agent: Agent | None, network: NetworkSettings, sources: Sequence[Mapping[str, Any]] = ()
) -> list[Rule]:
    """Return the ingress rules at `PORT` of an Agent's pods, or of the door of a pool."""
    rules: list[Rule] = [{"from": [{"podSelector": {}}], "ports": [_tcp(PORT)]}]
    namespaces = _delegating_namespaces(agent) if agent else None
    if namespaces is not None:
        agents = [
            {"namespaceSelector": namespaces, "podSelector": {"matchLabels": labels}}
            for labels in (AGENT_POD_LABELS, POOL_POD_LABELS)
        ]
        rules.append({"from": agents, "ports": [_tcp(PORT)]})
    if network.operator_namespace:
        operator = pods_of(network.operator_namespace, OPERATOR_POD_LABELS)
        rules.append({"from": [operator], "ports": [_tcp(PORT)]})
    if gateways := [dict(source) for source in (*network.ingress_from, *sources)]:
        rules.append({"from": gateways, "ports": [_tcp(PORT)]})
    return rules


def metrics_rules(network: NetworkSettings) -> list[Rule]:
    """Return the ingress rules for the readers of metrics."""
    readers = [dict(reader) for reader in network.metrics_from]
    return [{"from": readers, "ports": [_tcp(METRICS_PORT)]}] if readers else []


def egress_rules(agent: Agent, observed: ObservedState, network: NetworkSettings) -> list[Rule]:
    """Return the egress rules: name servers, and every address in the manifest."""
    rules = [
        *_to_name_servers(network.dns),
        *_to_peers(agent, observed),
        *_to_services(agent, observed),
        *_to_redis(agent.redis),
        *_to_urls((*agent.urls, *network.shared_urls), agent.namespace, observed, network.domain),
        *_to_urls(agent.variable_urls, agent.namespace, observed, network.domain),
        *_to_urls(observed.former_urls, agent.namespace, observed, network.domain),
        *_extra_rules(agent, "extraEgress"),
    ]
    return _unique(rules)


def redis_egress_rules(
    agent: Agent, observed: ObservedState, network: NetworkSettings
) -> list[Rule]:
    """Return the egress rules of a pod that only needs the Agent's Redis."""
    rules = [*_to_name_servers(network.dns), *_to_redis(agent.redis)]
    if ref := agent.redis_service:
        rules += _to_service(ref.name, ref.port, observed)
    return _unique([*rules, *_extra_rules(agent, "extraEgress")])


def schedule_policy_spec(
    agent: Agent, observed: ObservedState, network: NetworkSettings
) -> dict[str, Any]:
    """Return the spec for the pods that start an Agent's scheduled runs: they reach it alone.

    They need no ingress rule of the Agent's own: its namespace may reach it.
    """
    to_agent = [
        {"to": [{"podSelector": {"matchLabels": place.labels}}], "ports": [_tcp(place.port)]}
        for place in observed.places_of(agent.namespaced_name)
    ]
    egress = [*_to_name_servers(network.dns), *to_agent]
    return _policy(schedule_pod_labels(agent.name), [], egress)


def server_policy_spec(
    server: McpServer, users: Sequence[Rule], network: NetworkSettings
) -> dict[str, Any]:
    """Return the spec for a tool server: its users and the operator reach it."""
    egress = [*_to_name_servers(network.dns), {"to": list(_ANYWHERE_OR_ANY_POD)}]
    return _policy(server.selector_labels, _ingress(users, server.port, network), egress)


def proxy_policy_spec(
    api: ModelApi, users: Sequence[Rule], observed: ObservedState, network: NetworkSettings
) -> dict[str, Any]:
    """Return the spec for a ModelAPI's proxy: `users` and the operator reach it, it the endpoint.

    Requests under way may still be at the former endpoint.
    """
    urls = (*api.urls, *observed.former_urls, network.proxy)
    egress = [
        *_to_name_servers(network.dns),
        *_to_redis(api.redis),
        *_to_urls(filter(None, urls), api.namespace, observed, network.domain),
    ]
    if ref := api.redis_service:
        egress += _to_service(ref.name, ref.port, observed)
    if api.hosted:
        ports = [_tcp(api.server_port)]
        egress.append({"to": [{"podSelector": {"matchLabels": api.server_labels}}], "ports": ports})
    ingress = [*_ingress(users, PORT, network), *metrics_rules(network)]
    return _policy(api.selector_labels, ingress, _unique(egress))


def model_server_policy_spec(
    api: ModelApi, users: Sequence[Rule], network: NetworkSettings
) -> dict[str, Any]:
    """Return the spec for a hosted model server: `users` reach it, and it all but this link.

    It loads its weights from wherever its arguments say.
    """
    sources = [{"podSelector": {"matchLabels": api.selector_labels}}] if api.is_proxied else users
    egress = [*_to_name_servers(network.dns), {"to": list(_ANYWHERE)}]
    return _policy(api.server_labels, _ingress(sources, api.server_port, network), egress)


def _policy(labels: Mapping[str, str], ingress: list[Rule], egress: list[Rule]) -> dict[str, Any]:
    return {
        "podSelector": {"matchLabels": dict(labels)},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": ingress,
        "egress": egress,
    }


def _ingress(sources: Sequence[Rule], port: int, network: NetworkSettings) -> list[Rule]:
    rules: list[Rule] = []
    if network.operator_namespace:
        operator = pods_of(network.operator_namespace, OPERATOR_POD_LABELS)
        rules.append({"from": [operator], "ports": [_tcp(port)]})
    if sources:
        rules.append({"from": list(sources), "ports": [_tcp(port)]})
    return rules


def _live_egress(observed: ObservedState) -> list[Rule]:
    policy = observed.network_policy or {}
    rules: list[Rule] = (policy.get("spec") or {}).get("egress") or []
    return rules


def _delegating_namespaces(agent: Agent) -> Mapping[str, Any] | None:
    """Return the selector of other namespaces that may delegate to the Agent, if there are any."""
    allowed = agent.spec.get("allowedNamespaces") or {}
    match allowed.get("from"):
        case "All":
            return {}
        case "Selector":
            selector: Mapping[str, Any] = allowed["selector"]
            return selector
        case _:  # Same, which is the default
            return None


def _to_name_servers(dns: DnsSettings) -> Iterator[Rule]:
    servers: list[Rule] = [
        pods_of(namespace, dns.labels) if dns.labels else _namespace(namespace)
        for namespace in dns.namespaces
    ]
    servers += [{"ipBlock": {"cidr": block}} for block in dns.blocks]
    if servers and dns.ports:
        ports = [{"protocol": name, "port": port} for port in dns.ports for name in ("UDP", "TCP")]
        yield {"to": servers, "ports": ports}


def _to_peers(agent: Agent, observed: ObservedState) -> Iterator[Rule]:
    for peer in agent.peers:
        if may_delegate(agent, peer, observed):
            yield from _to_places(observed.places_of(peer.name))


def _to_places(places: Iterable[Place]) -> Iterator[Rule]:
    for place in places:
        yield {"to": [pods_of(place.namespace, place.labels)], "ports": [_tcp(place.port)]}


def _to_services(agent: Agent, observed: ObservedState) -> Iterator[Rule]:
    for ref in (one for one in agent.service_refs if may_use(agent, one, observed)):
        yield from _to_service(ref.name, ref.port, observed)


def _to_redis(redis: Mapping[str, Any]) -> Iterator[Rule]:
    """Open the usual ports to any address if only a Secret holds the URL of the Redis."""
    if "urlFrom" in redis:
        ports = [_tcp(REDIS_PORT), _tcp(_SENTINEL_PORT)]
        yield {"to": list(_ANYWHERE_OR_ANY_POD), "ports": ports}


def _to_urls(
    urls: Iterable[str], namespace: str, observed: ObservedState, domain: str
) -> Iterator[Rule]:
    for url in urls:
        found = address(url, namespace, domain)
        if found.service_name and (found.is_certain or found.service_name in observed.services):
            yield from _to_service(found.service_name, found.port, observed)
        elif not _is_loopback(found):
            yield _to_outside(found)


def _to_service(name: NamespacedName, port: int, observed: ObservedState) -> Iterator[Rule]:
    namespace, _ = name
    service = observed.services.get(name)
    if service is None:
        if not observed.is_watched(namespace):  # nor are its pods and their ports known
            yield {"to": [_namespace(namespace)]}
        return
    spec = service["spec"]
    found = service_port(service, port) or {}
    target = port if spec.get("clusterIP") == "None" else found.get("targetPort", port)
    ports = [{"protocol": found.get("protocol", "TCP"), "port": target}]
    if is_external_name(service) or not spec.get("selector"):
        yield {"to": list(_ANYWHERE_OR_ANY_POD), "ports": ports}
    else:
        yield {"to": [pods_of(namespace, spec["selector"])], "ports": ports}


def _to_outside(found: Address) -> Rule:
    ports = [_tcp(found.port)]
    if ":" in found.host:
        return {"to": [{"ipBlock": {"cidr": f"{found.host}/128"}}], "ports": ports}
    if found.host.replace(".", "").isdigit():
        return {"to": [{"ipBlock": {"cidr": f"{found.host}/32"}}], "ports": ports}
    return {"to": list(_ANYWHERE), "ports": ports}


def _is_loopback(found: Address) -> bool:
    return found.host in {"localhost", "::1"} or found.host.startswith("127.")


def _has_port(rule: Rule) -> bool:
    """Whether a rule of the user's concerns `PORT`."""
    ports = rule.get("ports") or ()
    return not ports or any(
        port.get("port") == "http"
        or ("port" not in port)
        or (
            isinstance(port["port"], int)
            and port["port"] <= PORT <= port.get("endPort", port["port"])
        )
        for port in ports
    )


def _extra_rules(agent: Agent, field: str) -> list[Rule]:
    """Return the user's own rules, with the protocol that the API server would add."""
    rules = (agent.spec.get("network") or {}).get(field, ())
    return [_with_protocols({name: v for name, v in rule.items() if v}) for rule in rules]


def _with_protocols(rule: Rule) -> Rule:
    if "ports" not in rule:
        return rule
    return {**rule, "ports": [{"protocol": "TCP", **port} for port in rule["ports"]]}


def pods_of(namespace: str, labels: Mapping[str, str]) -> Rule:
    """Return the NetworkPolicy peer for pods with these labels."""
    return {**_namespace(namespace), "podSelector": {"matchLabels": dict(labels)}}


def _namespace(name: str) -> Rule:
    return {"namespaceSelector": {"matchLabels": {NAMESPACE_NAME: name}}}


def _tcp(port: int) -> Rule:
    return {"protocol": "TCP", "port": port}


def _unique(rules: list[Rule]) -> list[Rule]:
    return [rule for index, rule in enumerate(rules) if rule not in rules[:index]]
