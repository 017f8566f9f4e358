"""Which rule of a policy decides, the platform's beside the agent's, and what the audit says."""

import json
import logging
from itertools import product

import pytest
from support.doubles import catalog, tool

from diptych.core.catalog import Catalog
from diptych.core.messages import Delegation, ToolCall
from diptych.policy.rules import LayeredPolicy, Policy, Rule, RunCaller
from diptych_cel.expressions import check_expression

ADA = RunCaller("run-1", "user:ada")
PAY = ToolCall("call_1_1", "pay", {"amount": 250})


def rule(do, glob="*", when=None, about="tool", **rest):
    return Rule(about, glob, do, check_expression(when, about) if when else None, **rest)


def outcome(*rules, call=PAY, offered=None, **rest):
    verdict = Policy(rules).verdict(call, offered or catalog("pay", agents=["x"]), ADA, **rest)
    return verdict.outcome


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([], "allow"),
        ([rule("deny", "pa*")], "deny"),
        ([rule("allow", "pay"), rule("deny")], "allow"),
        ([rule("deny", when="args.amount > 1000"), rule("ask")], "ask"),
        ([rule("allow", when="args.missing > 1")], "deny"),
        ([rule("deny", when='caller.subject == "user:ada"')], "deny"),
        ([rule("deny", is_dry_run=True), rule("ask")], "ask"),
        ([rule("allow", when="args.missing > 1", is_dry_run=True)], "allow"),
    ],
)
def test_the_first_rule_that_matches_decides(rules, expected):
    assert outcome(*rules) == expected


def test_a_rule_tells_the_caller_from_whom_it_says_to_work_for():
    front = RunCaller("run-1", "agent:team/front", "user:ada")
    for when in ('caller.subject == "agent:team/front"', 'caller.onBehalfOf == "user:ada"'):
        policy = Policy((rule("deny", when=when),))
        assert policy.verdict(PAY, catalog("pay"), front).outcome == "deny"
    policy = Policy((rule("deny", when='caller.subject == "user:ada"'),))
    assert policy.verdict(PAY, catalog("pay"), front).outcome == "allow"


def test_delegations_have_rules_of_their_own():
    errand = Delegation("call_1_1", "x", "delete it all")
    assert outcome(rule("deny", "x", 'args.task.contains("delete")', "agent"), call=errand) == (
        "deny"
    )
    assert outcome(rule("deny"), call=errand) == "allow"


@pytest.mark.parametrize(
    ("marks", "hints"),
    [
        ({}, {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": True}),
        ({"read_only": True}, {"readOnlyHint": True, "destructiveHint": False}),
        ({"destructive": False, "open_world": False}, {"openWorldHint": False}),
    ],
)
def test_annotations_are_the_servers_or_mcps_defaults(marks, hints):
    offered = Catalog((tool("pay", **marks),))
    for name, value in hints.items():
        when = f"tool.annotations.{name} == {str(value).lower()}"
        assert outcome(rule("deny", when=when), offered=offered) == "deny"


class Bomb:
    def holds(self, variables):
        raise ZeroDivisionError


class BrokenCatalog(Catalog):
    def tool(self, name):
        raise ZeroDivisionError


def test_a_crash_denies_and_is_a_line_of_the_audit(caplog):
    assert outcome(Rule("tool", "*", "allow", Bomb())) == "deny"
    caplog.clear()
    assert outcome(rule("allow"), offered=BrokenCatalog()) == "deny"
    [line] = [json.loads(r.message) for r in caplog.records if r.name == "diptych.audit"]
    assert (line["outcome"], line["why"]) == ("denied", "the agent's policy failed")


def test_each_verdict_is_a_line_of_the_audit(caplog):
    caplog.set_level(logging.INFO, "diptych.audit")
    outcome(rule("deny", is_dry_run=True), rule("ask", "nope"), rule("deny", reason="too much"))
    outcome(rule("ask", "nope"))
    lines = [json.loads(r.message) for r in caplog.records if r.name == "diptych.audit"]
    about = {"subject": "user:ada", "run": "run-1", "call": "call_1_1", "what": "tool pay"}
    about["policy"] = "agent"
    forbids = "denied by the agent's policy"
    assert lines == [
        {**about, "outcome": "would be denied", "rule": 1, "why": forbids},
        {**about, "outcome": "denied", "rule": 3, "why": "too much"},
        {**about, "outcome": "allowed", "rule": None, "why": ""},
    ]
    assert "250" not in caplog.text
    # Whatever handles it finds a text, and nothing of the arguments.
    assert all(type(r.msg) is str and not r.args for r in caplog.records)


def test_a_line_of_the_audit_is_json_whatever_it_says(caplog):
    caplog.set_level(logging.INFO, "diptych.audit")
    said = 'a "quoted" \\ line\r\n\0\x7f\u202e\u2028 für {x} %s \ud800 💸'
    caller = RunCaller(said, said)
    Policy((rule("deny", reason=said),)).verdict(ToolCall(said, said), catalog("pay"), caller)
    [line] = [r.getMessage() for r in caplog.records if r.name == "diptych.audit"]
    about = {"subject": said, "outcome": "denied", "run": said, "call": said}
    rest = {"what": f"tool {said}", "policy": "agent", "rule": 1, "why": said}
    assert line == json.dumps(about | rest)
    assert line.isascii()
    assert line.isprintable()


ORDER = ("allow", "ask", "deny")


def rules(do, when=None, **rest):
    if do is None:
        return ()
    return (Rule("tool", "*", do, check_expression(when, "tool") if when else None, **rest),)


def decide(platform, own, **facts):
    policy = LayeredPolicy(Policy(platform, "platform"), Policy(own))
    return policy.verdict(PAY, catalog("pay"), RunCaller("run-1", "user:ada"), **facts)


@pytest.mark.parametrize(("platform", "own"), list(product((None, *ORDER), repeat=2)))
def test_the_stricter_of_both_counts(platform, own):
    expected = max(platform or "allow", own or "allow", key=ORDER.index)
    assert decide(rules(platform), rules(own)).outcome == expected


def test_a_rule_of_the_platform_that_fails_denies_and_is_called_the_platforms():
    verdict = decide(rules("allow", "args.missing > 1"), rules("allow"))
    assert verdict.outcome == "deny"
    assert verdict.reason.startswith("rule 1 of the platform's policy failed")
    assert decide(rules("deny"), ()).reason == "denied by the platform's policy"


def test_the_audit_says_whose_rule_it_was(caplog):
    caplog.set_level(logging.INFO, "diptych.audit")
    decide(rules("allow"), rules("deny", reason="no"))
    decide(rules("deny"), rules("allow"))
    lines = [json.loads(r.message) for r in caplog.records if r.name == "diptych.audit"]
    assert [(line["policy"], line["outcome"], line["rule"]) for line in lines] == [
        ("platform", "allowed", 1),
        ("agent", "denied", 1),
        ("platform", "denied", 1),
    ]


def test_repeated_calls_are_the_agents_affair():
    assert decide(rules("allow"), rules("allow"), repeats=2).outcome == "repeated"
    assert decide(rules("allow"), rules("allow", repeat="allow"), repeats=2).outcome == "allow"
    assert decide(rules("deny"), rules("allow", repeat="allow"), repeats=2).outcome == "deny"
