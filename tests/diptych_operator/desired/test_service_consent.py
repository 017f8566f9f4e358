"""A tool server of another namespace: its Service says by an annotation who may use it."""

import pytest
import yaml
from support.agents import agent, child, observed, service

from diptych_operator.resources.kinds import ALLOWED_NAMESPACES, CONFIG_MAP, NETWORK_POLICY
from diptych_operator.status.unresolved import unresolved_references

AGENT = agent(tools=[{"name": "wiki", "serviceRef": {"name": "wiki", "namespace": "docs"}}])


def wiki(allowed=None):
    content = service("wiki", "docs")
    if allowed is not None:
        content["metadata"]["annotations"] = {ALLOWED_NAMESPACES: allowed}
    return content


def tools(state):
    text = child(AGENT, CONFIG_MAP, state)["data"]["agent.yaml"]
    return [tool["url"] for tool in yaml.safe_load(text)["spec"]["tools"]]


def reaches_docs(state):
    return "docs" in str(child(AGENT, NETWORK_POLICY, state)["spec"]["egress"])


def reasons(state):
    return [problem.reason for problem in unresolved_references(AGENT, state, "cluster.local")]


@pytest.mark.parametrize("allowed", ["*", "team", "legal, team"])
def test_with_consent_the_agent_knows_and_reaches_it(allowed):
    state = observed(wiki(allowed))
    assert tools(state) == ["http://wiki.docs.svc:8000/mcp"]
    assert reaches_docs(state)
    assert reasons(state) == []


@pytest.mark.parametrize("allowed", [None, "", "legal", "tea", "team2", "te*"])
def test_without_consent_it_is_left_out_and_the_status_says_why(allowed):
    state = observed(wiki(allowed))
    assert tools(state) == []
    assert not reaches_docs(state)
    assert reasons(state) == ["ServiceNotAllowed"]
    [problem] = unresolved_references(AGENT, state, "cluster.local")
    assert ALLOWED_NAMESPACES in problem.message


def test_one_that_is_not_there_or_not_seen_consents_to_nothing():
    assert tools(observed()) == []
    assert reasons(observed()) == ["ServiceNotFound"]
    unseen = observed(watched_namespaces=frozenset({"team"}))
    assert (tools(unseen), reaches_docs(unseen)) == ([], False)
    assert reasons(unseen) == ["NamespaceNotWatched"]


def test_a_service_of_the_own_namespace_needs_none():
    one = agent(tools=[{"name": "w", "serviceRef": {"name": "wiki", "namespace": "team"}}])
    text = child(one, CONFIG_MAP, observed(service("wiki")))["data"]["agent.yaml"]
    assert "http://wiki.team.svc:8000/mcp" in text
