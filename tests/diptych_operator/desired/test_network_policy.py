"""The NetworkPolicy of an Agent: who may reach it, and what it may reach."""

import pytest
from support.agents import agent, child, observed, service, settled

from diptych_operator.desired.network_policy import (
    DnsSettings,
    NetworkSettings,
    egress_rules,
    ingress_rules,
    redis_egress_rules,
)
from diptych_operator.desired.references import references
from diptych_operator.resources.kinds import DEPLOYMENT, NETWORK_POLICY, SERVICE

NETWORK = NetworkSettings(operator_namespace="system")
OWN = {"from": [{"podSelector": {}}], "ports": [{"protocol": "TCP", "port": 8000}]}


def in_namespace(name, **labels):
    return {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}},
        "podSelector": {"matchLabels": labels},
    }


def tcp(port):
    return [{"protocol": "TCP", "port": port}]


def outside(port):
    """What opens a port to every address but those of the link."""
    blocks = (("0.0.0.0/0", "169.254.0.0/16"), ("::/0", "fe80::/10"))
    to = [{"ipBlock": {"cidr": cidr, "except": [refused]}} for cidr, refused in blocks]
    return {"to": to, "ports": tcp(port)}


def outside_or_to_pods(*ports):
    """What opens ports to pods as well: a block of addresses need not select them."""
    return {
        "to": [*outside(0)["to"], {"namespaceSelector": {}}],
        "ports": [p for n in ports for p in tcp(n)],
    }


def egress(one, state=None):
    """The egress rules besides DNS and the model, which is outside the cluster."""
    rules = egress_rules(one, state or observed(), NETWORK)
    return [rule for rule in rules[1:] if rule != outside(443)]


@pytest.mark.parametrize(
    ("allowed", "selector"),
    [
        pytest.param({"from": "All"}, {}, id="all namespaces"),
        pytest.param(
            {"from": "Selector", "selector": {"matchLabels": {"team": "blue"}}},
            {"matchLabels": {"team": "blue"}},
            id="some namespaces",
        ),
    ],
)
def test_namespaces_that_may_delegate_to_it_may_reach_it(allowed, selector):
    rules = ingress_rules(agent(allowedNamespaces=allowed), NetworkSettings())
    who = [
        {
            "namespaceSelector": selector,
            "podSelector": {"matchLabels": {"app.kubernetes.io/name": app}},
        }
        for app in ("diptych-agent", "diptych-pool")
    ]
    assert rules == [OWN, {"from": who, "ports": tcp(8000)}]


def test_metrics_are_read_from_where_the_settings_say_and_nowhere_else():
    assert ingress_rules(agent(), NetworkSettings()) == [OWN]
    readers = {"namespaceSelector": {"matchLabels": {"team": "monitoring"}}}
    rules = ingress_rules(agent(), NetworkSettings(metrics_from=(readers,)))
    assert rules == [OWN, {"from": [readers], "ports": tcp(9090)}]


def test_issuers_of_the_platform_and_of_the_agent_are_reached_unless_their_keys_are_given():
    issuers = [
        {"url": "https://login.example.com:8443", "audience": "a"},
        {"url": "https://known.example.com:9443", "audience": "a", "jwks": {"keys": [{}]}},
    ]
    network = NetworkSettings(dns=DnsSettings((), {}, ()), issuers=("https://sso.example.com",))
    rules = egress_rules(agent(access={"issuers": issuers}), observed(), network)
    assert [port["port"] for rule in rules for port in rule["ports"]] == [443, 8443]


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        pytest.param("http://mcp.example.com", outside(80), id="a host outside"),
        pytest.param("http://example.com", outside(80), id="a host that may be a Service"),
        pytest.param(
            "http://10.0.0.7:99",
            {"to": [{"ipBlock": {"cidr": "10.0.0.7/32"}}], "ports": tcp(99)},
            id="an IPv4 address",
        ),
        pytest.param(
            "http://[fd00::7]:99",
            {"to": [{"ipBlock": {"cidr": "fd00::7/128"}}], "ports": tcp(99)},
            id="an IPv6 address",
        ),
    ],
)
def test_a_url_opens_egress_to_its_host(url, rule):
    assert egress(agent(tools=[{"name": "t", "url": url}])) == [rule]
    assert egress(agent(hooks=[{"at": "beforeCall", "url": url}])) == [rule]


@pytest.mark.parametrize(
    "name", ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "ALL_PROXY"]
)
def test_a_collector_or_a_proxy_is_reached_where_its_variable_names_it(name):
    def traced(value, **env):
        return agent(container={"env": [{"name": name, "value": value, **env}]})

    ports = [{"port": 4318, "targetPort": "otlp", "protocol": "TCP"}]
    state = observed(service("collector", "obs", ports=ports))
    rule = {"to": [in_namespace("obs", app="collector")], "ports": tcp("otlp")}
    assert egress(traced("http://collector.obs:4318"), state) == [rule]
    assert (SERVICE, "obs", "collector") in references(traced("http://collector.obs:4318"), "x")
    assert egress(traced("https://otlp.example.com:4318")) == [outside(4318)]
    for unknown in ("http://$(NODE_IP):4318", "collector:4318", "http://x:99999", "", "grpc://x"):
        assert egress(traced(unknown)) == []
    other = agent(container={"env": [{"name": "OTEL_X", "value": "http://collector.obs:4318"}]})
    assert egress(other, state) == []


BEHIND = {"to": [in_namespace("team", app="wiki")], "ports": tcp("web")}


@pytest.mark.parametrize(
    "tool",
    [
        pytest.param({"serviceRef": {"name": "wiki"}}, id="a reference"),
        pytest.param({"url": "http://wiki:8000/mcp"}, id="a name"),
        pytest.param({"url": "http://wiki.team.svc.cluster.local:8000"}, id="a full name"),
    ],
)
def test_a_service_opens_the_port_of_the_pods_behind_it(tool):
    one = agent(tools=[{"name": "t", **tool}])
    assert egress(one, observed(service("wiki"))) == [BEHIND]


def test_a_service_without_a_selector_opens_its_port_to_anywhere():
    one = agent(tools=[{"name": "t", "url": "http://wiki:8000"}])
    there = service("wiki", selector=None)
    assert egress(one, observed(there)) == [outside_or_to_pods("web")]


def test_no_rule_of_ours_opens_a_port_to_whoever_is_on_the_link():
    one = agent(
        tools=[
            {"name": "a", "url": "http://wiki:8000"},
            {"name": "b", "serviceRef": {"name": "other"}},
            {"name": "c", "url": "https://search.example.com"},
        ],
        sessions={"redis": {"urlFrom": REDIS_URL}},
    )
    other = service("other", type="ExternalName", externalName="169.254.169.254")
    there = observed(service("wiki", selector=None), other)
    for rules in (egress_rules(one, there, NETWORK), redis_egress_rules(one, there, NETWORK)):
        assert all(rule.get("to") for rule in rules)


def test_a_namespace_that_is_not_watched_is_open_as_a_whole():
    one = agent(tools=[{"name": "t", "url": "http://wiki.docs.svc:8000"}])
    [rule] = egress(one, observed(watched_namespaces=frozenset({"team"})))
    assert rule == {
        "to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "docs"}}}]
    }


def kept_in(**redis):
    return agent(sessions={"redis": redis})


REDIS_URL = {"secretKeyRef": {"name": "redis", "key": "url"}}


def test_a_redis_that_only_a_secret_knows_opens_its_usual_ports_to_anywhere():
    assert egress(kept_in(urlFrom=REDIS_URL)) == [outside_or_to_pods(6379, 26379)]


def test_a_peer_that_denies_delegation_opens_no_egress():
    one = agent(agents=[{"name": "lawyer", "namespace": "legal"}])
    assert egress(one, observed(agent("lawyer", "legal"))) == []


def test_the_users_own_rules_are_added():
    extra = {
        "extraIngress": [{"from": [{"namespaceSelector": {}}], "ports": [{"port": 8000}]}],
        "extraEgress": [{"to": [], "ports": [{"port": "dns", "protocol": "UDP"}]}],
    }
    one = agent(network=extra)
    assert ingress_rules(one, NetworkSettings())[1] == {
        "from": [{"namespaceSelector": {}}],
        "ports": tcp(8000),
    }
    assert egress(one) == [{"ports": [{"port": "dns", "protocol": "UDP"}]}]


def test_what_the_former_revision_needs_stays_open_until_its_pods_are_gone():
    before = agent(tools=[{"name": "t", "url": "http://old.example.com"}])
    policy = child(before, NETWORK_POLICY)
    deployment = settled(child(before, DEPLOYMENT))
    after = agent(tools=[{"name": "t", "url": "http://new.example.com:81"}])
    rolling = observed(deployment=deployment, network_policy=policy)
    assert outside(80) in child(after, NETWORK_POLICY, rolling)["spec"]["egress"]
    done = observed(deployment=settled(child(after, DEPLOYMENT, rolling)), network_policy=policy)
    assert outside(80) not in child(after, NETWORK_POLICY, done)["spec"]["egress"]


@pytest.mark.parametrize("field", ["proxy", "issuers"])
def test_what_every_agent_asks_in_the_cluster_is_reached_at_its_pods(field):
    url = "http://proxy.infra.svc:3128"
    network = NetworkSettings(
        dns=DnsSettings((), {}, ()), **{field: url if field == "proxy" else (url,)}
    )
    one = agent(model={"name": "m", "endpoint": "http://localhost:1"})
    assert (SERVICE, "infra", "proxy") in references(one, "cluster.local", network.shared_urls)
    ports = [{"port": 3128, "targetPort": "squid", "protocol": "TCP"}]
    state = observed(service("proxy", "infra", ports=ports))
    rule = {"to": [in_namespace("infra", app="proxy")], "ports": tcp("squid")}
    assert egress_rules(one, state, network) == [rule]
