"""Drift: does a live object still say what was applied to it?"""

import copy

import pytest
from support.agents import agent, child

from diptych_operator.desired.drift import contains, has_drifted
from diptych_operator.resources.kinds import (
    DEPLOYMENT,
    NETWORK_POLICY,
    SERVICE,
    SERVICE_ACCOUNT,
)

RICH = agent(
    network={
        "extraEgress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}], "ports": [{"port": 1}]}]
    },
    container={"resources": {"limits": {"cpu": "1", "memory": "1Gi"}}},
    podTemplate={"spec": {"tolerations": []}},
)


def stored(kind):
    """The object as an API server keeps it, its defaults added."""
    found = copy.deepcopy(child(RICH, kind))
    found["metadata"] |= {"uid": "1", "resourceVersion": "5", "creationTimestamp": "…"}
    if kind is DEPLOYMENT:
        spec = found["spec"]["template"]["spec"]
        spec |= {"restartPolicy": "Always", "dnsPolicy": "ClusterFirst"}
        del spec["tolerations"]
        spec["containers"][0]["livenessProbe"]["successThreshold"] = 1
    if kind is SERVICE:
        found["spec"] |= {"clusterIP": "10.0.0.1", "sessionAffinity": "None"}
    return found


@pytest.mark.parametrize("kind", [DEPLOYMENT, NETWORK_POLICY, SERVICE, SERVICE_ACCOUNT])
def test_what_the_server_adds_is_no_drift(kind):
    assert not has_drifted(stored(kind), child(RICH, kind))


def test_a_port_that_was_added_to_a_service_is_no_drift_and_one_that_was_changed_is():
    found = stored(SERVICE)
    found["spec"]["ports"].insert(0, {"name": "extra", "port": 9999, "protocol": "TCP"})
    assert not has_drifted(found, child(RICH, SERVICE))
    found["spec"]["ports"][1]["targetPort"] = 1
    assert has_drifted(found, child(RICH, SERVICE))
    del found["spec"]["ports"][1]
    assert has_drifted(found, child(RICH, SERVICE))


def edit(*path, value):
    def change(content):
        for step in path[:-1]:
            content = content[step]
        if value is None:
            del content[path[-1]]
        else:
            content[path[-1]] = value

    return change


POD = ("spec", "template", "spec")


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        pytest.param(DEPLOYMENT, edit(*POD, "containers", 0, "image", value="evil"), id="image"),
        pytest.param(DEPLOYMENT, edit("spec", "replicas", value=5), id="replicas"),
        pytest.param(
            DEPLOYMENT,
            edit(*POD, "containers", 0, "resources", "limits", "memory", value="2Gi"),
            id="a limit",
        ),
        pytest.param(
            DEPLOYMENT, edit(*POD, "automountServiceAccountToken", value=None), id="a token"
        ),
        pytest.param(DEPLOYMENT, edit(*POD, "volumes", value=[]), id="volumes"),
        pytest.param(
            DEPLOYMENT, edit(*POD, "volumes", 1, value={"name": "tmp", "hostPath": {}}), id="a host"
        ),
        pytest.param(SERVICE, edit("spec", "selector", value={"app": "evil"}), id="a selector"),
        pytest.param(SERVICE, edit("spec", "selector", "x", value="y"), id="a narrower selector"),
        pytest.param(SERVICE, edit("metadata", "labels", value={}), id="labels"),
        pytest.param(SERVICE, edit("metadata", "ownerReferences", value=[]), id="the owner"),
        pytest.param(SERVICE, edit("metadata", "annotations", value={}), id="the digest"),
        pytest.param(
            NETWORK_POLICY, edit("spec", "ingress", 0, "from", value=None), id="a rule widened"
        ),
    ],
)
def test_an_edit_is_drift(kind, change):
    live = stored(kind)
    change(live)
    assert has_drifted(live, child(RICH, kind))


def test_a_rule_added_to_a_policy_is_drift_though_nothing_is_missing():
    live = stored(NETWORK_POLICY)
    live["spec"]["ingress"].append({})
    assert has_drifted(live, child(RICH, NETWORK_POLICY))


def test_a_field_that_must_be_removed_is_noticed_by_the_digest():
    without = agent(**{**RICH.spec, "podTemplate": {}})
    with_label = agent(**{**RICH.spec, "podTemplate": {"metadata": {"labels": {"x": "y"}}}})
    assert has_drifted(child(with_label, DEPLOYMENT), child(without, DEPLOYMENT))


@pytest.mark.parametrize(
    ("live", "desired", "expected"),
    [
        pytest.param({}, {"list": []}, True, id="an empty list that is left out"),
        pytest.param({"list": [1]}, {"list": []}, False, id="a list that should be empty"),
        pytest.param({}, {"text": ""}, True, id="an empty text that is left out"),
        pytest.param({"text": "x"}, {"text": ""}, False, id="a text that should be empty"),
        pytest.param({"x": 1}, {"x": None}, False, id="a value that should be absent"),
        pytest.param({}, {"optional": False}, False, id="a False that is never left out"),
        pytest.param({"args": ["a", "b"]}, {"args": ["a", "b"]}, True, id="equal lists"),
        pytest.param({"args": ["a", "b"]}, {"args": ["a"]}, False, id="a longer list"),
        pytest.param({"args": ["a"]}, {"args": ["a", "b"]}, False, id="a shorter list"),
        pytest.param({"args": ["a", "c"]}, {"args": ["a", "b"]}, False, id="another entry"),
        pytest.param(
            {"nodeSelector": {"a": "b", "c": "d"}},
            {"nodeSelector": {"a": "b"}},
            False,
            id="an addition to an atomic mapping",
        ),
        pytest.param({"args": "ab"}, {"args": ["a", "b"]}, False, id="a text for a list"),
        pytest.param({"env": "x"}, {"env": {"a": "b"}}, False, id="a text for a mapping"),
    ],
)
def test_a_live_value_must_say_all_that_is_desired(live, desired, expected):
    assert contains(live, desired) is expected


@pytest.mark.parametrize(
    ("live", "expected"),
    [
        pytest.param({"containerPort": 80, "protocol": "TCP"}, True, id="TCP is the default"),
        pytest.param({"containerPort": 80}, True, id="and may be left out"),
        pytest.param({"containerPort": 80, "protocol": "UDP"}, False, id="another protocol"),
        pytest.param({"containerPort": 81, "protocol": "TCP"}, False, id="another number"),
    ],
)
def test_a_container_port_is_told_from_others_by_number_and_protocol(live, expected):
    other = {"containerPort": 80, "protocol": "SCTP", "name": "other"}
    desired = {"containerPort": 80}
    assert contains({"ports": [other, live]}, {"ports": [desired]}) is expected
    desired = {"containerPort": 80, "protocol": "SCTP"}
    assert contains({"ports": [live, other]}, {"ports": [desired]})
