"""What an expression of a policy may be, and that one that fails never holds."""

import time

import pytest

from diptych.policy.expressions import (
    CallFacts,
    EvaluationFailed,
    InvalidExpression,
    check_expression,
)

TOOL = {"name": "pay", "server": "bank", "annotations": {"destructiveHint": True}}
COSTLY = "is too costly; hold each element against itself or constants only"


def holds(text, about="tool", **args):
    caller = {"subject": "user:ada", "kind": "user", "name": "ada"}
    variables = {"args": args, about: TOOL, "caller": caller}
    return check_expression(text, about).holds(CallFacts(variables))


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("argz.amount > 1", "column 5: undeclared reference to 'argz.amount'"),
        ("args.amount >", "column 14: mismatched input the end"),
        (
            "args.a\n  && 1",
            "line 2, column 3: found no matching overload for '_&&_' applied to '(dyn, int)'",
        ),
        ('tool.naem == "x" && nope(1)', "column 25: undeclared reference to 'nope'"),
        ("size(args.x)", "column 1: must be true or false, and is int"),
        (
            'args.to.matches("[")',
            "column 17: is no regular expression (RE2): missing ]: [",
        ),
        ("true && args.items.all(i, args.note.matches('x'))", f"column 23: {COSTLY}"),
        ("a" * 2_049, "is longer than 2048 characters"),
        ("(" * 40 + "true" + ")" * 40, "column 1: CANCELLED: Expression recursion limit"),
    ],
)
def test_a_mistake_is_told_with_its_place(text, mistake):
    with pytest.raises(InvalidExpression) as caught:
        check_expression(text, "tool")
    assert str(caught.value).startswith(mistake)


def test_an_expression_about_agents_knows_no_tool():
    assert holds('agent.name == "pay" && args.task.contains("x")', "agent", task="x")
    with pytest.raises(InvalidExpression, match="column 17"):
        check_expression("tool.annotations.destructiveHint", "agent")


@pytest.mark.parametrize(
    "text",
    [
        "args.amount > 100 && args.amount == 250.0",
        'args.items.exists(i, i.url.startsWith("https://"))',
        'caller.kind == "user" && tool.annotations.destructiveHint',
        'args.to.matches("^DE[0-9]+$")',
        "!has(args.note)",
        "args.items.all(x, args.items.exists(y, x == y))",
    ],
)
def test_what_policies_ask_holds(text):
    assert holds(text, amount=250, to="DE89", items=[{"url": "https://a"}])


@pytest.mark.parametrize(
    ("text", "args"),
    [
        ("args.missing > 1", {}),
        ("args.amount > 1", {"amount": "much"}),
        ("args.amount", {"amount": 3}),
        ("args.amount > 1", {"amount": 10**30}),
        ("args.amount > 1", {"amount": 2, "note": "\ud800"}),
        ("args.a.all(x, args.a.all(y, true))", {"a": list(range(300))}),
        ("args.a == args.a", {"a": {"b": {1: 2}}}),
    ],
)
def test_what_cannot_be_evaluated_fails(text, args):
    with pytest.raises(EvaluationFailed):
        holds(text, **args)


def test_long_arguments_are_bounded_by_what_they_may_cost():
    text = "args.items.all(i, i in args.allowed)"
    assert holds(text, items=["a"], allowed=["a"])
    begun = time.process_time()
    with pytest.raises(EvaluationFailed, match="too long for this rule"):
        holds(text, items=["a"] * 9_000, allowed=["b" * 50] * 9_000)
    assert time.process_time() - begun < 0.5
    assert holds('args.note.contains("x")', note="y" * 1_000_000 + "x")


def test_patterns_cannot_run_away():
    begun = time.process_time()
    assert not holds('args.note.matches("(x+x+)+y")', note="x" * 100_000)
    assert time.process_time() - begun < 0.5
