"""Expressions of a policy, checked in the cluster as the pod would check them."""

from dataclasses import replace

import pytest
import yaml
from support.agents import PLATFORM, agent, children, observed

from diptych_operator.desired.call_policy import locked_by_policy
from diptych_operator.desired.children import desired_children
from diptych_operator.resources.owner import ManifestError

RIGHT = {"match": {"tool": "pay"}, "when": "args.amount > 100", "do": "ask"}


def wrong(when, about="tool"):
    return {"match": {about: "pay"}, "when": when, "do": "deny"}


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ([wrong("argz.x > 1")], "spec.policy[0].when: column 5: undeclared reference to 'argz"),
        ([RIGHT, wrong("args.x >")], "spec.policy[1].when: column "),
        ([wrong("1 + 1")], "spec.policy[0].when: column 1: must be true or false, and is int"),
        ([wrong("tool.name == 'x'", "agent")], "spec.policy[0].when: column 5: undeclared refe"),
        ([wrong("args.a.matches('[')")], "is not a valid regular expression (RE2)"),
        (
            [wrong("args.a.all(x, args.a.all(y, args.a.all(z, x.matches(string(y)))))")],
            "macros are nested at most 2 deep",
        ),
        ([wrong("x"), wrong("y")], "; spec.policy[1].when: column 1"),
    ],
)
def test_a_mistake_is_named_with_its_place_and_nothing_is_made(rules, said):
    with pytest.raises(ManifestError) as error:
        children(agent(policy=rules))
    assert error.value.reason == "PolicyInvalid"
    assert said in str(error.value)


def test_the_platforms_rules_reach_the_pod_beside_the_agents_own():
    platform = replace(PLATFORM, policy=({"match": {"tool": "*"}, "do": "ask"},))
    [own] = [desired_children(agent(policy=[RIGHT]), observed(), platform)]
    manifest = yaml.safe_load(own.to_apply[0]["data"]["agent.yaml"])
    assert manifest["metadata"]["annotations"]["diptych.dev/policy"] == (
        '[{"do": "ask", "match": {"tool": "*"}}]'
    )
    assert manifest["spec"]["policy"] == [RIGHT]


OTHER_PROGRAMS = [
    {"container": {"image": "evil"}},
    {"container": {"env": [{"name": "PYTHONPATH", "value": "/evil"}]}},
    {"container": {"envFrom": [{"secretRef": {"name": "x"}}]}},
    {"podTemplate": {"spec": {"shareProcessNamespace": True}}},
    {"podTemplate": {"spec": {"volumes": [{"name": "diptych", "emptyDir": {}}]}}},
    *(
        {"podTemplate": {"spec": {"containers": [{"name": "agent", **change}]}}}
        for change in (
            {"image": "evil"},
            {"command": ["sh"]},
            {"args": ["serve", "/evil.yaml"]},
            {"env": [{"name": "LD_PRELOAD", "value": "/evil.so"}]},
            {"env": [{"name": "OPENSSL_CONF", "value": "/tmp/openssl.cnf"}]},
            {"env": [{"name": "GCONV_PATH", "value": "/tmp"}]},
            {"volumeMounts": [{"name": "x", "mountPath": "/etc/diptych"}]},
            {"lifecycle": {"postStart": {"exec": {"command": ["sh"]}}}},
            {"livenessProbe": {"exec": {"command": ["sh"]}}},
        )
    ),
]


@pytest.mark.parametrize("spec", OTHER_PROGRAMS)
def test_under_a_policy_of_the_platform_no_agent_runs_another_program(spec):
    children(agent(**spec))
    locked = replace(PLATFORM, pods=replace(PLATFORM.pods, locked=locked_by_policy()))
    with pytest.raises(ManifestError, match=r"is locked \(agents.policy holds for all Agents"):
        desired_children(agent(**spec), observed(), locked)
