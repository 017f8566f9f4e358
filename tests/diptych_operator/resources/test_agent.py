"""An Agent as a typed value: the manifest's defaults, and its references to keys."""

import pytest

from diptych_operator.resources.agent import KeyRef, agent_of, ready_status

METADATA = {"namespace": "team", "name": "coordinator", "uid": "1"}


def test_what_is_absent_has_the_manifests_defaults():
    one = agent_of({"metadata": METADATA})
    assert (one.generation, one.replicas, one.is_terminating) == (0, 1, False)
    assert (one.tools, one.peers, one.service_refs, one.urls, one.key_refs) == ((),) * 5
    assert (one.redis, one.container, one.status) == ({}, {}, {})


def test_an_agent_with_a_deletion_timestamp_is_terminating():
    assert agent_of({"metadata": {**METADATA, "deletionTimestamp": "now"}}).is_terminating


def test_a_peer_has_the_manifests_defaults():
    entries = [{"name": "b"}, {"name": "c", "namespace": "n", "as": "d", "shareContext": False}]
    first, second = agent_of({"metadata": METADATA, "spec": {"agents": entries}}).peers
    assert (first.name, first.visible_name, first.shares_context) == (("team", "b"), "b", True)
    assert (second.name, second.visible_name, second.shares_context) == (("n", "c"), "d", False)


def test_keys_are_listed_once_and_sorted_wherever_they_are_referred_to():
    secret = {"secretKeyRef": {"name": "s", "key": "b"}}
    spec = {
        "instructionsFrom": {"configMapKeyRef": {"name": "c", "key": "a"}},
        "model": {"apiKey": secret},
        "tools": [{"headers": [{"valueFrom": secret}]}],
        "access": {"issuers": [{"caFrom": {"configMapKeyRef": {"name": "ca", "key": "ca.crt"}}}]},
        "hooks": [{"signingKey": {"secretKeyRef": {"name": "z", "key": "k"}}}],
        "container": {"env": [{"valueFrom": {"secretKeyRef": {"name": "hidden", "key": "x"}}}]},
        "outputSchema": {"secretKeyRef": {"name": "a property", "key": "x"}},
    }
    found = agent_of({"metadata": METADATA, "spec": spec}).key_refs
    assert found == (
        KeyRef("ConfigMap", "c", "a"),
        KeyRef("ConfigMap", "ca", "ca.crt"),
        KeyRef("Secret", "s", "b"),
        KeyRef("Secret", "z", "k"),
    )
    files = ["configmaps/c/a", "configmaps/ca/ca.crt", "secrets/s/b", "secrets/z/k"]
    assert [ref.file for ref in found] == files


def test_urls_are_those_of_model_tools_and_agents_each_once():
    spec = {
        "model": {"endpoint": "https://m", "fallbacks": [{"endpoint": "https://n"}]},
        "tools": [{"url": "https://t"}, {"serviceRef": {"name": "w"}}, {"url": "https://m"}],
        "agents": [{"as": "a", "url": "https://a"}, {"name": "b"}],
    }
    one = agent_of({"metadata": METADATA, "spec": spec, "status": {"replicas": 1}})
    assert one.urls == ("https://m", "https://n", "https://t", "https://a")
    assert one.status == {"replicas": 1}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "Unknown"),
        ({}, "Unknown"),
        ({"status": None}, "Unknown"),
        ({"status": {"conditions": [{"type": "Accepted", "status": "True"}]}}, "Unknown"),
        (
            {
                "status": {
                    "conditions": [
                        {"type": "Accepted", "status": "True"},
                        {"type": "Ready", "status": "False"},
                        {"type": "ResolvedRefs", "status": "True"},
                    ]
                }
            },
            "False",
        ),
    ],
)
def test_readiness_is_that_of_the_ready_condition(content, expected):
    assert ready_status(content) == expected
