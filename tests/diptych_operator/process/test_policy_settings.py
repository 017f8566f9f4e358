"""The platform's rules for all Agents, as the chart writes them."""

import pytest

from diptych_operator.desired.call_policy import locked_by_policy
from diptych_operator.process.settings_files import SettingsError, pod_defaults, read_policy

RULE = {"match": {"tool": "*"}, "do": "deny"}
FULL = {
    "match": {"agent": "lawyer"},
    "when": 'args.task.contains("sue")',
    "do": "ask",
    "reason": "A person\ndecides.",
    "expires": "10m",
    "mode": "dryRun",
}


def test_rules_are_read_as_they_are():
    assert read_policy([RULE, FULL]) == (RULE, FULL)
    for expires in ("1m30s", "500ms", "24h", "1h0m"):
        assert read_policy([{**RULE, "expires": expires}])


def test_with_rules_what_the_container_runs_is_locked():
    assert pod_defaults("x", "Always", {}, {"policy": [RULE]}).locked == locked_by_policy()
    assert pod_defaults("x", "Always", {}, {"policy": []}).locked == ()


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ({}, "policy must be a list"),
        ([RULE] * 65, "of 64 rules at most"),
        (["x"], "policy[0] must be a mapping"),
        ([RULE, {**RULE, "doo": 1}], "policy[1] has unknown fields: doo"),
        ([{**RULE, "repeat": "deny"}], "policy[0] has unknown fields: repeat"),
        ([{**RULE, "expires": "1m 30s"}], "policy[0].expires does not have its form"),
        ([{**RULE, "expires": ""}], "policy[0].expires does not have its form"),
        ([{"do": "deny"}], "policy[0].match needs exactly one of tool, agent"),
        ([{"match": {"tool": "a", "agent": "b"}, "do": "deny"}], "needs exactly one of"),
        ([{"match": {"tool": 1}, "do": "deny"}], "needs exactly one of"),
        ([{"match": {"tool": "a\nb"}, "do": "deny"}], "in one line"),
        ([{"match": {"tool": "a"}}], "policy[0].do is required"),
        ([{**RULE, "do": "stop"}], "policy[0].do must be allow, deny or ask"),
        ([{**RULE, "mode": "dry"}], "policy[0].mode must be enforce or dryRun"),
        ([{**RULE, "when": 1}], "policy[0].when does not have its form"),
        ([{**RULE, "when": "x" * 2049}], "policy[0].when does not have its form"),
        ([{**RULE, "expires": "0s"}], "policy[0].expires must be more than 0s"),
        ([{**RULE, "expires": "24h1ms"}], "policy[0].expires must be more than 0s"),
        ([RULE, {**RULE, "when": "argz.x"}], "policy[1].when: column 5: undeclared reference"),
    ],
)
def test_a_mistake_is_one_line_with_its_place(rules, said):
    with pytest.raises(SettingsError) as error:
        read_policy(rules)
    assert str(error.value).startswith("--agents: policy")
    assert said in str(error.value)
