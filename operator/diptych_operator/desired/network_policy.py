"""The NetworkPolicy of an agent: who may reach it, and whom it may reach. Pure.

Kubernetes knows no host names: towards a URL outside the cluster, its port is open to anywhere.
Inside, a rule names the pods behind the Service, with the port that they listen at. Where a URL
stands in a Secret, which the operator cannot read, the ports that are usual are open to anywhere.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from diptych_operator.desired.references import (
    Address,
    Surroundings,
    address,
    is_external,
    may_delegate,
    service_port,
)
from diptych_operator.resources.agent import REDIS_PORT, Agent
from diptych_operator.resources.kinds import (
    NAMESPACE_LABEL,
    OPERATOR_PODS,
    PORT,
    Name,
    selector_labels,
)

Rule: TypeAlias = dict[str, Any]

_SENTINEL_PORT = 26379


@dataclass(frozen=True, slots=True)
class Dns:
    """Where the cluster's name servers are: their pods, their addresses, the ports of both.

    Empty `labels` are all pods of the namespaces. A policy sees a pod's own port, which may be
    another one than the Service's.
    """

    namespaces: tuple[str, ...] = ("kube-system",)
    labels: Mapping[str, str] = field(default_factory=lambda: {"k8s-app": "kube-dns"})
    blocks: tuple[str, ...] = ("169.254.20.10/32",)
    ports: tuple[int, ...] = (53,)


@dataclass(frozen=True, slots=True)
class Network:
    """What a policy must know of the cluster: domain, the operator's own namespace, DNS."""

    domain: str = "cluster.local"
    operator_namespace: str | None = None
    dns: Dns = field(default_factory=Dns)


def ingress_rules(agent: Agent, network: Network) -> list[Rule]:
    """Say who may reach the agent: its namespace, others that may delegate, the operator."""
    rules = [{"from": [{"podSelector": {}}], "ports": [_tcp(PORT)]}]
    if (delegators := _delegators(agent)) is not None:
        rules.append({"from": [{"namespaceSelector": delegators}], "ports": [_tcp(PORT)]})
    if network.operator_namespace:
        operator = _pods(network.operator_namespace, OPERATOR_PODS)
        rules.append({"from": [operator], "ports": [_tcp(PORT)]})
    return _unique([*rules, *_extra(agent, "extraIngress")])


def egress_rules(agent: Agent, around: Surroundings, network: Network) -> list[Rule]:
    """Say whom the agent may reach: DNS, and all that its manifest names.

    While another revision's pods may still run, what they needed stays open to them.
    """
    rules = [
        *_to_name_servers(network.dns),
        *_to_peers(agent, around),
        *_to_services(agent, around),
        *_to_redis(agent),
        *_to_urls(agent, around, network.domain),
        *_extra(agent, "extraEgress"),
    ]
    return _unique(rules)


def policy_spec(agent: Agent, ingress: list[Rule], egress: list[Rule]) -> dict[str, Any]:
    """Give the NetworkPolicy's spec."""
    return {
        "podSelector": {"matchLabels": selector_labels(agent.name)},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": ingress,
        "egress": egress,
    }


def _delegators(agent: Agent) -> Mapping[str, Any] | None:
    allowed = agent.spec.get("allowedNamespaces") or {}
    match allowed.get("from", "Same"):
        case "All":
            return {}
        case "Selector":
            selector: Mapping[str, Any] = allowed["selector"]
            return selector
        case _:
            return None


def _to_name_servers(dns: Dns) -> Iterator[Rule]:
    servers: list[Rule] = [
        _pods(namespace, dns.labels) if dns.labels else _namespace(namespace)
        for namespace in dns.namespaces
    ]
    servers += [{"ipBlock": {"cidr": block}} for block in dns.blocks]
    if servers and dns.ports:
        ports = [{"protocol": name, "port": port} for port in dns.ports for name in ("UDP", "TCP")]
        yield {"to": servers, "ports": ports}


def _to_peers(agent: Agent, around: Surroundings) -> Iterator[Rule]:
    for peer in agent.peers:
        namespace, name = peer.agent
        if may_delegate(agent, peer, around):
            yield {"to": [_pods(namespace, selector_labels(name))], "ports": [_tcp(PORT)]}


def _to_services(agent: Agent, around: Surroundings) -> Iterator[Rule]:
    for ref in agent.services:
        yield from _to_service(ref.service, ref.port, around)


def _to_redis(agent: Agent) -> Iterator[Rule]:
    """Open the usual ports to anywhere, where only a Secret knows which Redis is meant."""
    if "urlFrom" in agent.redis:
        yield {"ports": [_tcp(REDIS_PORT), _tcp(_SENTINEL_PORT)]}


def _to_urls(agent: Agent, around: Surroundings, domain: str) -> Iterator[Rule]:
    for url in agent.urls:
        found = address(url, agent.namespace, domain)
        if found.service and (found.is_certain or found.service in around.services):
            yield from _to_service(found.service, found.port, around)
        elif not _is_loopback(found):
            yield _to_outside(found)


def _to_service(name: Name, port: int, around: Surroundings) -> Iterator[Rule]:
    namespace, _ = name
    service = around.services.get(name)
    if service is None:
        if not around.sees(namespace):  # then nor its pods and their ports
            yield {"to": [_namespace(namespace)]}
        return
    spec = service["spec"]
    found = service_port(service, port) or {}
    target = port if spec.get("clusterIP") == "None" else found.get("targetPort", port)
    ports = [{"protocol": found.get("protocol", "TCP"), "port": target}]
    if is_external(service) or not spec.get("selector"):
        yield {"ports": ports}
    else:
        yield {"to": [_pods(namespace, spec["selector"])], "ports": ports}


def _to_outside(found: Address) -> Rule:
    ports = [_tcp(found.port)]
    if ":" in found.host:
        return {"to": [{"ipBlock": {"cidr": f"{found.host}/128"}}], "ports": ports}
    if found.host.replace(".", "").isdigit():
        return {"to": [{"ipBlock": {"cidr": f"{found.host}/32"}}], "ports": ports}
    return {"ports": ports}


def _is_loopback(found: Address) -> bool:
    return found.host in {"localhost", "::1"} or found.host.startswith("127.")


def _extra(agent: Agent, field: str) -> list[Rule]:
    """Give the user's own rules, with the protocol that the API would add."""
    rules = (agent.spec.get("network") or {}).get(field, ())
    return [_with_protocols({name: v for name, v in rule.items() if v}) for rule in rules]


def _with_protocols(rule: Rule) -> Rule:
    if "ports" not in rule:
        return rule
    return {**rule, "ports": [{"protocol": "TCP", **port} for port in rule["ports"]]}


def _pods(namespace: str, labels: Mapping[str, str]) -> Rule:
    return {**_namespace(namespace), "podSelector": {"matchLabels": dict(labels)}}


def _namespace(name: str) -> Rule:
    return {"namespaceSelector": {"matchLabels": {NAMESPACE_LABEL: name}}}


def _tcp(port: int) -> Rule:
    return {"protocol": "TCP", "port": port}


def _unique(rules: list[Rule]) -> list[Rule]:
    return [rule for index, rule in enumerate(rules) if rule not in rules[:index]]
