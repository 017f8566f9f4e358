"""What a platform says of calls, beside what the agent says: the stricter counts."""

import json
import logging
from itertools import product

import pytest
from support.doubles import catalog

from diptych.core.messages import ToolCall
from diptych.policy.rules import LayeredPolicy, Policy, Rule, RunCaller
from diptych_cel.expressions import check_expression

PAY = ToolCall("call_1_1", "pay", {"amount": 250})
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


def test_of_two_that_ask_the_platform_says_why_and_how_long():
    verdict = decide(rules("ask", reason="Ours.", expires=5.0), rules("ask", reason="Theirs."))
    assert (verdict.reason, verdict.expires) == ("Ours.", 5.0)


def test_an_approval_counts_for_both_and_a_denial_stays():
    assert decide(rules("ask"), rules("ask"), is_approved=True).outcome == "allow"
    assert decide(rules("deny"), rules("ask"), is_approved=True).outcome == "deny"
    assert decide(rules("ask"), rules("deny"), is_approved=True).outcome == "deny"


def test_a_rule_of_the_platform_that_fails_denies_and_is_called_the_platforms():
    verdict = decide(rules("allow", "args.missing > 1"), rules("allow"))
    assert verdict.outcome == "deny"
    assert verdict.reason.startswith("rule 1 of the platform's policy failed")
    assert decide(rules("deny"), ()).reason == "the platform's policy forbids it"


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
