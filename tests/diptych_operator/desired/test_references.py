"""The Agents and Services that a manifest refers to, and who may delegate."""

import pytest
from support.agents import agent, observed

from diptych_operator.desired.references import address, may_delegate, references
from diptych_operator.resources.kinds import AGENT, NAMESPACE, SERVICE

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
        pytest.param("http://2130706433", None, False, id="an address as one number"),
        pytest.param("http://127.1", None, False, id="a short IPv4 address"),
    ],
)
def test_a_host_is_resolved_as_in_a_pod(url, service_name, is_certain):
    found = address(url, "team", DOMAIN)
    assert (found.service_name, found.is_certain) == (service_name, is_certain)


def test_every_object_that_may_matter_is_referenced():
    one = agent(
        tools=[{"name": "a", "serviceRef": {"name": "wiki"}}, {"name": "b", "url": "http://calc"}],
        sessions={"redis": {"serviceRef": {"name": "redis", "namespace": "stores"}}},
        agents=[{"name": "researcher"}, {"name": "lawyer", "namespace": "legal"}],
    )
    assert references(one, DOMAIN) == {
        (SERVICE, "team", "wiki"),
        (SERVICE, "team", "calc"),
        (SERVICE, "stores", "redis"),
        (AGENT, "team", "researcher"),
        (AGENT, "legal", "lawyer"),
        (NAMESPACE, "", "team"),
    }


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
def test_a_peer_of_another_namespace_decides_who_may_delegate_to_it(allowed, labels, expected):
    one = agent(agents=[{"name": "lawyer", "namespace": "legal"}])
    extra = {} if allowed is None else {"allowedNamespaces": allowed}
    namespaces = {} if labels is None else {"team": labels}
    state = observed(agent("lawyer", "legal", **extra), namespace_labels=namespaces)
    assert may_delegate(one, one.peers[0], state) is expected


def chosen_by(**selector):
    return agent("lawyer", "legal", allowedNamespaces={"from": "Selector", "selector": selector})


NAME_LABEL = "kubernetes.io/metadata.name"
BY_NAME = {"key": NAME_LABEL, "operator": "In", "values": ["team", "x"]}


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
    state = observed(chosen_by(**selector), watched_namespaces=frozenset({"team", "legal"}))
    assert may_delegate(one, one.peers[0], state) is expected
