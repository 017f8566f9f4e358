"""An Agent as a typed value, whose an object is, and label selectors."""

import pytest
from support.agents import agent

from diptych_operator.resources.agent import Agent, KeyRef
from diptych_operator.resources.labels import selects
from diptych_operator.resources.owner import is_controlled_by, is_owned_by

METADATA = {"namespace": "team", "name": "coordinator", "uid": "1"}


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
    found = Agent.read({"metadata": METADATA, "spec": spec}).key_refs
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
    one = Agent.read({"metadata": METADATA, "spec": spec, "status": {"replicas": 1}})
    assert one.urls == ("https://m", "https://n", "https://t", "https://a")
    assert one.status == {"replicas": 1}


APPLIED = {"manager": "diptych", "operation": "Apply"}
OURS = {"kind": "Agent", "name": "coordinator", "uid": "coordinator-1", "controller": True}
FORMER = {**OURS, "uid": "another"}
NO_CONTROLLER = {**OURS, "controller": False}


def live(*owners, managers=()):
    return {"metadata": {"ownerReferences": list(owners), "managedFields": list(managers)}}


@pytest.mark.parametrize(
    ("content", "is_owned", "is_controlled"),
    [
        pytest.param(live(OURS), True, True, id="controlled by the Agent"),
        pytest.param(live(FORMER), False, False, id="by a former Agent of its name"),
        pytest.param(live(FORMER, managers=[APPLIED]), False, False, id="and applied by us"),
        pytest.param(live(managers=[APPLIED]), True, False, id="applied, without an owner"),
        pytest.param(live(NO_CONTROLLER), False, False, id="an owner that does not control"),
        pytest.param(live(NO_CONTROLLER, OURS), True, True, id="a controller among the owners"),
        pytest.param(
            live(managers=[{**APPLIED, "manager": "helm"}]), False, False, id="applied by another"
        ),
        pytest.param(
            live(managers=[{**APPLIED, "operation": "Update"}]), False, False, id="only updated"
        ),
        pytest.param({"metadata": {}}, False, False, id="nothing is known"),
    ],
)
def test_the_controller_decides_on_ownership(content, is_owned, is_controlled):
    assert is_owned_by(content, agent()) is is_owned
    assert is_controlled_by(content, agent()) is is_controlled


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ({"key": "a", "operator": "In", "values": ["1", "2"]}, True),
        ({"key": "a", "operator": "NotIn", "values": ["1"]}, False),
        ({"key": "b", "operator": "NotIn", "values": ["1"]}, True),
        ({"key": "a", "operator": "NotIn", "values": ["2"]}, True),
        ({"key": "a", "operator": "Exists"}, True),
        ({"key": "b", "operator": "DoesNotExist"}, True),
        ({"key": "a", "operator": "DoesNotExist"}, False),
    ],
)
def test_a_selector_matches_as_in_kubernetes(expression, expected):
    assert selects({"matchExpressions": [expression]}, {"a": "1"}) is expected
