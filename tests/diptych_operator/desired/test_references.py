"""Whom an agent refers to, and which of it leads nowhere."""

import pytest
from support.agents import agent, around, service

from diptych_operator.desired.references import (
    address,
    chooses,
    loose_ends,
    may_delegate,
    referents,
)

DOMAIN = "cluster.local"


@pytest.mark.parametrize(
    ("url", "service_name", "is_certain"),
    [
        pytest.param("http://wiki:8000/mcp", ("team", "wiki"), True, id="a name alone"),
        pytest.param("http://wiki.docs/mcp", ("docs", "wiki"), False, id="name and namespace"),
        pytest.param("http://wiki.docs.svc", ("docs", "wiki"), True, id="with svc"),
        pytest.param("http://wiki.docs.svc.cluster.local", ("docs", "wiki"), True, id="in full"),
        pytest.param("http://wiki.docs.svc.cluster.local.:80", ("docs", "wiki"), True, id="a dot"),
        pytest.param("https://example.com/v1", ("com", "example"), False, id="perhaps outside"),
        pytest.param("https://api.example.com/v1", None, False, id="surely outside"),
        pytest.param("http://localhost:8000", None, False, id="localhost"),
        pytest.param("http://10.0.0.1:8000", None, False, id="an IPv4 address"),
        pytest.param("http://[fd00::1]:8000", None, False, id="an IPv6 address"),
    ],
)
def test_a_host_is_looked_up_as_a_pod_would(url, service_name, is_certain):
    found = address(url, "team", DOMAIN)
    assert (found.service, found.is_certain) == (service_name, is_certain)


@pytest.mark.parametrize(
    ("url", "port"),
    [("http://a", 80), ("https://a", 443), ("http://a:8080/x", 8080)],
)
def test_a_url_without_a_port_has_that_of_its_scheme(url, port):
    assert address(url, "team", DOMAIN).port == port


def test_all_whose_coming_may_matter_are_listed():
    one = agent(
        tools=[{"name": "a", "serviceRef": {"name": "wiki"}}, {"name": "b", "url": "http://calc"}],
        sessions={"redis": {"serviceRef": {"name": "redis", "namespace": "stores"}}},
        agents=[{"name": "researcher"}, {"name": "lawyer", "namespace": "legal"}],
    )
    assert referents(one, DOMAIN) == {
        ("Service", "team", "wiki"),
        ("Service", "team", "calc"),
        ("Service", "stores", "redis"),
        ("Agent", "team", "researcher"),
        ("Agent", "legal", "lawyer"),
        ("Namespace", "", "team"),
    }


def reasons(one, surroundings):
    return [end.reason for end in loose_ends(one, surroundings, DOMAIN)]


def tool(**fields):
    return agent(tools=[{"name": "wiki", **fields}])


def kept_in(**ref):
    return agent(sessions={"redis": {"serviceRef": {"name": "redis", **ref}}})


REDIS = [{"port": 6379}]


@pytest.mark.parametrize(
    ("one", "surroundings", "expected"),
    [
        pytest.param(agent(), around(), [], id="nothing to refer to"),
        pytest.param(tool(serviceRef={"name": "w"}), around(), ["ServiceNotFound"], id="gone"),
        pytest.param(tool(serviceRef={"name": "w"}), around(service("w")), [], id="there"),
        pytest.param(
            tool(serviceRef={"name": "w", "port": 80}),
            around(service("w")),
            ["ServicePortNotFound"],
            id="another port",
        ),
        pytest.param(
            tool(serviceRef={"name": "w", "port": 80}),
            around(service("w", clusterIP="None")),
            [],
            id="a headless Service, whose pods listen where they like",
        ),
        pytest.param(
            tool(serviceRef={"name": "w", "port": 80}),
            around(service("w", type="ExternalName")),
            [],
            id="another name for a host outside",
        ),
        pytest.param(tool(url="http://w:8000"), around(), ["ServiceNotFound"], id="by its name"),
        pytest.param(tool(url="http://example.com"), around(), [], id="may be outside"),
        pytest.param(
            tool(url="http://w.docs:8000"), around(service("w", "docs")), [], id="elsewhere"
        ),
        pytest.param(
            tool(url="http://w.docs.svc:8000"),
            around(watched=frozenset({"team"})),
            [],
            id="where the operator may not look",
        ),
        pytest.param(kept_in(), around(), ["ServiceNotFound"], id="no Redis"),
        pytest.param(kept_in(), around(service("redis", ports=REDIS)), [], id="a Redis"),
        pytest.param(
            kept_in(port=7000),
            around(service("redis", ports=REDIS)),
            ["ServicePortNotFound"],
            id="a Redis at another port",
        ),
        pytest.param(
            kept_in(namespace="stores"),
            around(service("redis", ports=REDIS)),
            ["ServiceNotFound"],
            id="a Redis of another namespace",
        ),
        pytest.param(
            kept_in(namespace="stores"),
            around(service("redis", "stores", ports=REDIS)),
            [],
            id="a Redis there",
        ),
        pytest.param(
            kept_in(namespace="stores"),
            around(watched=frozenset({"team"})),
            [],
            id="a Redis where the operator may not look",
        ),
        pytest.param(agent(agents=[{"name": "b"}]), around(), ["AgentNotFound"], id="no agent"),
        pytest.param(agent(agents=[{"name": "b"}]), around(agent("b")), [], id="an agent"),
        pytest.param(
            agent(agents=[{"name": "b", "namespace": "legal"}]),
            around(agent("b", "legal")),
            ["AgentNotAllowed"],
            id="an agent that lets nobody in",
        ),
        pytest.param(
            agent(agents=[{"name": "b", "namespace": "legal"}]),
            around(watched=frozenset({"team"})),
            ["NamespaceNotWatched"],
            id="an agent where the operator may not look",
        ),
        pytest.param(
            agent(agents=[{"name": "coordinator"}]), around(agent()), [], id="a circle is no fault"
        ),
    ],
)
def test_what_leads_nowhere_has_a_reason(one, surroundings, expected):
    assert reasons(one, surroundings) == expected


def test_the_sentence_names_what_is_missing():
    ends = loose_ends(agent(agents=[{"name": "b"}]), around(), DOMAIN)
    assert ends[0].sentence == "Agent b is not there; create it or remove it from spec.agents"
    ends = loose_ends(tool(serviceRef={"name": "w", "port": 80}), around(service("w")), DOMAIN)
    assert ends[0].sentence == "Service w has no port 80; it has 8000"
    ends = loose_ends(kept_in(namespace="stores"), around(), DOMAIN)
    assert ends[0].sentence == "Service redis is not there (namespace stores); create it"


SELECTOR = {"from": "Selector", "selector": {"matchLabels": {"team": "blue"}}}


@pytest.mark.parametrize(
    ("allowed", "labels", "expected"),
    [
        pytest.param(None, {}, False, id="not told"),
        pytest.param({"from": "Same"}, {}, False, id="its own namespace only"),
        pytest.param({"from": "All"}, {}, True, id="all"),
        pytest.param(SELECTOR, {"team": "blue"}, True, id="a namespace that is chosen"),
        pytest.param(SELECTOR, {"team": "red"}, False, id="a namespace that is not"),
        pytest.param(SELECTOR, None, False, id="a namespace that cannot be seen"),
    ],
)
def test_an_agent_of_another_namespace_decides_who_may_delegate_to_it(allowed, labels, expected):
    one = agent(agents=[{"name": "lawyer", "namespace": "legal"}])
    extra = {} if allowed is None else {"allowedNamespaces": allowed}
    namespaces = {} if labels is None else {"team": labels}
    surroundings = around(agent("lawyer", "legal", **extra), namespaces=namespaces)
    assert may_delegate(one, one.peers[0], surroundings) is expected


def chosen_by(**selector):
    return agent("lawyer", "legal", allowedNamespaces={"from": "Selector", "selector": selector})


NAME_LABEL = "kubernetes.io/metadata.name"
BY_NAME = {"key": NAME_LABEL, "operator": "In", "values": ["team", "x"]}


def test_labels_of_namespaces_that_may_not_be_read_are_told_as_such():
    one = agent(agents=[{"name": "lawyer", "namespace": "legal"}])
    watched = frozenset({"team", "legal"})
    [end] = loose_ends(one, around(chosen_by(matchLabels={"a": "b"}), watched=watched), DOMAIN)
    assert end.reason == "NamespaceLabelsUnknown"
    assert "choose by kubernetes.io/metadata.name or from: All there" in end.sentence


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        pytest.param({"matchLabels": {NAME_LABEL: "team"}}, True, id="this one by name"),
        pytest.param({"matchLabels": {NAME_LABEL: "other"}}, False, id="another one by name"),
        pytest.param({"matchExpressions": [BY_NAME]}, True, id="one of several names"),
        pytest.param({}, True, id="all there are"),
    ],
)
def test_a_namespaces_name_is_known_without_reading_it(selector, expected):
    one = agent(agents=[{"name": "lawyer", "namespace": "legal"}])
    surroundings = around(chosen_by(**selector), watched=frozenset({"team", "legal"}))
    assert may_delegate(one, one.peers[0], surroundings) is expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ({"key": "a", "operator": "In", "values": ["1", "2"]}, True),
        ({"key": "a", "operator": "NotIn", "values": ["1"]}, False),
        ({"key": "b", "operator": "NotIn", "values": ["1"]}, True),
        ({"key": "a", "operator": "Exists"}, True),
        ({"key": "b", "operator": "DoesNotExist"}, True),
        ({"key": "a", "operator": "DoesNotExist"}, False),
    ],
)
def test_a_selector_chooses_as_kubernetes_does(expression, expected):
    assert chooses({"matchExpressions": [expression]}, {"a": "1"}) is expected
