"""Rules are evaluated together where that says the same as each of them would."""

import random

import pytest
from support.doubles import catalog

from diptych.core.messages import ToolCall
from diptych.policy.rule_groups import Rule, RuleGroup, grouped
from diptych.policy.rules import Policy, RunCaller
from diptych_cel.expressions import Expression, check_expression

ADA = RunCaller("run-1", "user:ada")
CONDITIONS = [
    "args.amount > 100",
    "has(args.amount) && args.amount <= 50 && args.missing > 1",  # fails, or is false
    'has(args.note) && args.note == "no bool"',
    'args.name == "y"',
    "args.amount > 100 // a comment",
    "has(args.amount) && args.amount > 200",
    "has(args.note) && args.note",
    "(has(args.note) || args.missing > 1) && true",
    "has(args.name.first) && args.amount > 1",  # fails where the name is no map
    "has(args.items) && args.items.exists(i, i > 2)",
    "args.missing > 1",  # fails
    "args.note",  # true, false, or no bool
    'args.name.startsWith("x")',
    "!tool.annotations.readOnlyHint && false",
    'caller.name == "bob"',
    "args.items.exists(i, i > 2)",
    "true",
    "false",
]
ARGUMENTS = [
    {},
    {"amount": 50},
    {"amount": 150, "note": True, "name": "y"},
    {"amount": 250, "note": False, "items": [1, 2, 3]},
    {"amount": "much", "note": "no bool", "items": []},
    {"amount": 1, "note": False, "name": "y" * 70_000, "items": [1]},  # too long
    {"amount": 1, "note": False, "missing": 1, "name": 2**70},  # no JSON for the library
]


def rules(*conditions, **rest):
    return tuple(Rule("tool", "*", "deny", check_expression(c, "tool"), **rest) for c in conditions)


def decide(policy, arguments):
    return policy.verdict(ToolCall("call_1_1", "pay", arguments), catalog("pay"), ADA)


def test_a_policy_decides_as_if_each_rule_was_asked_for_itself(monkeypatch, caplog):
    caplog.set_level("INFO", "diptych.audit")
    chosen = random.Random(14)
    checked = {text: check_expression(text, "tool") for text in CONDITIONS}
    for _ in range(150):
        some = tuple(
            Rule(
                "tool",
                "*",
                chosen.choice(["allow", "deny", "ask"]),
                checked[chosen.choice(CONDITIONS)] if chosen.random() < 0.9 else None,
                is_dry_run=chosen.random() < 0.3,
            )
            for _ in range(chosen.randrange(1, 6))
        )
        arguments = chosen.choice(ARGUMENTS)
        caplog.clear()
        together = decide(Policy(some), arguments), caplog.messages[:]
        caplog.clear()
        with monkeypatch.context() as patched:
            patched.setattr(RuleGroup, "is_surely_false", lambda *_: False)
            alone = decide(Policy(some), arguments), caplog.messages[:]
        assert together == alone


def test_rules_that_do_not_hold_take_one_evaluation(monkeypatch):
    asked = []
    holds = Expression.holds
    monkeypatch.setattr(Expression, "holds", lambda *a: asked.append(a) or holds(*a))
    policy = Policy(rules(*(f"args.amount > {n}" for n in range(100, 150))))
    assert decide(policy, {"amount": 50}).outcome == "allow"
    assert not asked
    assert decide(policy, {"amount": 120}).outcome == "deny"
    assert asked


def test_arguments_that_the_library_cannot_read_deny_also_without_those_that_rules_ask_for():
    policy = Policy(rules(*["has(args.amount) && args.amount > 1"] * 3))
    for unreadable in (2**70, "\ud800", {"deep": object()}):
        assert decide(policy, {"note": unreadable}).outcome == "deny"


@pytest.mark.parametrize(
    "conditions",
    [
        ["args.items.exists(i, i > 2)"] * 2,  # the library bounds the iterations of both together
        ["(" * 32 + "args.a" + ")" * 32] * 2,  # too deep together
    ],
)
def test_conditions_that_cannot_be_one_stay_apart(conditions):
    [group] = grouped(enumerate(rules(*conditions)))
    assert [number for number, _ in group.rules] == [*range(len(conditions))]
    assert group.conditions is None


def test_the_order_of_rules_stays():
    some = rules("args.a > 1", "args.b > 1", "args.c.exists(i, i > 2)", "args.d > 1")
    places = [number for group in grouped(enumerate(some)) for number, _ in group.rules]
    assert places == [0, 1, 2, 3]
