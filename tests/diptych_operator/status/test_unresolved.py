"""References that lead nowhere, as the condition ResolvedRefs reports them."""

import pytest
from support.agents import agent, observed, service

from diptych_operator.status.unresolved import unresolved_references

DOMAIN = "cluster.local"


def reasons(one, state):
    return [end.reason for end in unresolved_references(one, state, DOMAIN)]


def tool(**fields):
    return agent(tools=[{"name": "wiki", **fields}])


def kept_in(**ref):
    return agent(sessions={"redis": {"serviceRef": {"name": "redis", **ref}}})


REDIS = [{"port": 6379}]


@pytest.mark.parametrize(
    ("one", "state", "expected"),
    [
        pytest.param(agent(), observed(), [], id="nothing to refer to"),
        pytest.param(tool(serviceRef={"name": "w"}), observed(), ["ServiceNotFound"], id="gone"),
        pytest.param(tool(serviceRef={"name": "w"}), observed(service("w")), [], id="there"),
        pytest.param(
            tool(serviceRef={"name": "w", "port": 80}),
            observed(service("w")),
            ["ServicePortNotFound"],
            id="another port",
        ),
        pytest.param(
            tool(serviceRef={"name": "w", "port": 80}),
            observed(service("w", clusterIP="None")),
            [],
            id="a headless Service, whose pods listen where they like",
        ),
        pytest.param(
            tool(serviceRef={"name": "w", "port": 80}),
            observed(service("w", type="ExternalName")),
            [],
            id="another name for a host outside",
        ),
        pytest.param(tool(url="http://w:8000"), observed(), ["ServiceNotFound"], id="by its name"),
        pytest.param(tool(url="http://example.com"), observed(), [], id="may be outside"),
        pytest.param(
            tool(url="http://w.docs:8000"), observed(service("w", "docs")), [], id="elsewhere"
        ),
        pytest.param(
            tool(serviceRef={"name": "w"}),
            observed(watched_namespaces=frozenset({"team"})),
            ["ServiceNotFound"],
            id="gone from a namespace that is watched",
        ),
        pytest.param(
            tool(url="http://w.docs.svc:8000"),
            observed(watched_namespaces=frozenset({"team"})),
            [],
            id="a namespace that is not watched",
        ),
        pytest.param(kept_in(), observed(), ["ServiceNotFound"], id="no Redis"),
        pytest.param(agent(agents=[{"name": "b"}]), observed(), ["AgentNotFound"], id="no agent"),
        pytest.param(agent(agents=[{"name": "b"}]), observed(agent("b")), [], id="an agent"),
        pytest.param(
            agent(agents=[{"name": "b", "namespace": "legal"}]),
            observed(agent("b", "legal")),
            ["AgentNotAllowed"],
            id="an agent that allows nobody",
        ),
        pytest.param(
            agent(agents=[{"name": "b", "namespace": "legal"}]),
            observed(watched_namespaces=frozenset({"team"})),
            ["NamespaceNotWatched"],
            id="an agent in a namespace that is not watched",
        ),
        pytest.param(
            agent(agents=[{"name": "coordinator"}]),
            observed(agent()),
            [],
            id="a circle is no fault",
        ),
    ],
)
def test_an_unresolved_reference_has_a_reason(one, state, expected):
    assert reasons(one, state) == expected


def test_the_message_names_what_is_missing():
    ends = unresolved_references(agent(agents=[{"name": "b"}]), observed(), DOMAIN)
    assert ends[0].message == "Agent b is not there; create it or correct spec.agents"
    ends = unresolved_references(
        tool(serviceRef={"name": "w", "port": 80}), observed(service("w")), DOMAIN
    )
    assert ends[0].message == "Service w has no port 80; it has 8000"
    ends = unresolved_references(kept_in(namespace="stores"), observed(), DOMAIN)
    assert ends[0].message == "Service redis is not there (namespace stores); create it"


def test_namespace_labels_that_may_not_be_read_are_reported():
    one = agent(agents=[{"name": "lawyer", "namespace": "legal"}])
    selector = {"matchLabels": {"a": "b"}}
    allowed = {"from": "Selector", "selector": selector}
    lawyer = agent("lawyer", "legal", allowedNamespaces=allowed)
    watched = frozenset({"team", "legal"})
    [end] = unresolved_references(one, observed(lawyer, watched_namespaces=watched), DOMAIN)
    assert end.reason == "NamespaceLabelsUnknown"
    assert "choose by kubernetes.io/metadata.name or from: All there" in end.message
