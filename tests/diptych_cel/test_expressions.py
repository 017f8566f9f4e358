"""What an expression of a policy may be, and that one that fails never holds."""

import random
import sys
import time

import pytest

from diptych_cel.cost import COST_LIMIT
from diptych_cel.expressions import (
    USUAL_ARGS,
    CallFacts,
    EvaluationFailed,
    InvalidExpression,
    check_expression,
)

TOOL = {"name": "pay", "server": "bank", "annotations": {"destructiveHint": True}}
COSTLY = "is too costly; hold each element against itself or constants only"

SEARCH = "is too costly; use a constant pattern with fewer repeats"


def holds(text, about="tool", **args):
    caller = {"subject": "user:ada", "kind": "user", "name": "ada"}
    of_call = {"tool": TOOL, "agent": {"name": "pay"}}[about]
    facts = CallFacts(about, args, lambda: {about: of_call, "caller": caller})
    return check_expression(text, about).holds(facts)


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
        ('args.to.matches("((a|b){50}){19}c")', f"column 16: {SEARCH}"),
        ('args.to.matches("\\\\pL{200}c")', f"column 16: {SEARCH}"),
        ("args.to.matches(args.pattern)", f"column 16: {SEARCH}"),
        ('args.to.matches(tool.name + "x")', f"column 16: {SEARCH}"),
        ("args.items.exists(i, i.matches(args.pattern))", f"column 31: {SEARCH}"),
        ("args.a.all(x, args.a.filter(y, y > 1) != [])", f"column 11: {COSTLY}"),
        ("tool.naem == 1", "column 5: tool has no naem; it has annotations, longName, name,"),
        ("args.a && tool.annotations.readonlyHint", "column 27: tool.annotations has no readonly"),
        ("has(tool.annotations.readOnly)", "column 4: tool.annotations has no readOnly;"),
        ("!has(caller.groups)", "column 5: caller has no groups; it has kind, name, onBehalfOf,"),
        ("args.a.all(x, tool['annotations'].x)", "column 34: tool.annotations has no x;"),
        ("caller.subject > 1", "column 16: found no matching overload for '_>_'"),
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
        "args.items.all(tool, tool.url != '')",
        'has(args.tool) == false && args.items[0]["url"] == "https://a"',
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


@pytest.mark.parametrize(
    "args",
    [{"path": "ok\0/etc/shadow"}, {"path": {"in": ["ok\\\0"]}}, {"path": "ok", "amount\0": 1}],
)
@pytest.mark.parametrize("text", ['args.path.contains("shadow")', "true", "false"])
def test_what_stands_behind_a_nul_is_not_hidden_from_a_rule(text, args):
    with pytest.raises(EvaluationFailed, match="NUL"):
        holds(text, **args)


def test_a_backslash_before_a_u_is_no_nul():
    assert holds("size(args.path) == 6", path="\\u0000")
    assert holds("size(args.path) == 7", path="\\\\u0000")


def test_a_caller_cannot_pass_for_one_whose_name_ends_where_its_own_has_a_nul():
    caller = {"subject": "user:ada\0m", "kind": "user", "name": "ada\0m"}
    facts = CallFacts("tool", {}, lambda: {"tool": TOOL, "caller": caller})
    with pytest.raises(EvaluationFailed, match="NUL"):
        check_expression('caller.subject == "user:ada"', "tool").holds(facts)


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


def test_a_pattern_costs_its_size_once_repeats_are_written_out():
    text = 'args.note.matches("(a|b)*a(a|b){100}c")'
    note = "".join(random.Random(1).choices("ab", k=900_000))
    assert not holds(text, note=note[:4_000])
    begun = time.process_time()
    with pytest.raises(EvaluationFailed, match="too long for this rule"):
        holds(text, note=note)
    assert time.process_time() - begun < 0.5


@pytest.mark.parametrize(
    "pattern",
    [
        "^https://([a-z0-9-]{1,63}\\\\.){1,5}example\\\\.com/",
        "^[A-Z]{2}[0-9]{2}[A-Z0-9]{11,30}$",
        "(?i)(drop|delete|truncate|alter)\\\\s+(table|database)",
        "-----BEGIN [A-Z ]+PRIVATE KEY-----",
        "(sk|pk)_live_[0-9a-zA-Z]{24,99}",
        "^[\\\\pL\\\\pN ._-]+$",
    ],
)
def test_everyday_patterns_are_held_against_texts_of_some_kilobytes(pattern):
    expression = f"args.note.matches('{pattern}') || args.note.contains('x')"
    assert holds(expression, note="x" * 4_000)


def test_constant_patterns_may_stand_in_a_list():
    text = "['^a+$', '^b+$'].exists(p, args.note.matches(p))"
    assert holds(text, note="b" * 9_000)
    assert holds("args.note.matches(args.old ? '^a' : '^b')", note="b" * 9_000, old=False)


@pytest.mark.parametrize(
    "text",
    [
        "args.items.filter(x, x > 10).size() > 99999",
        "args.items.map(x, x).exists(x, x > 99999)",
        "[1, 2, 3, 4, 5, 6].exists(i, args.items.map(x, x).size() == i)",
        "(args.items + args.items).map(x, x) == []",
    ],
)
def test_the_copies_of_a_list_that_a_macro_makes_are_counted(text):
    assert not holds(text, items=[11] * 500)
    assert holds("args.items.filter(x, x != '').size() == 900", items=["long enough" * 9] * 900)
    with pytest.raises(EvaluationFailed, match="too long for this rule"):
        holds(text, items=[11] * 3_000)
    expression = check_expression(text, "tool")
    took = worst_allowed(expression, lambda n: {"items": [11] * n}, 9_000)
    sys.stdout.write(f"{text}: {took * 1e3:.1f} ms\n")  # pytest -s shows it


@pytest.mark.parametrize(
    "pattern", ["(a|b)*a(a|b){100}c", "(a|b)*a(a|b){14}c", "(a?b?){90}z", "a[a-y]{400}z"]
)
def test_the_worst_search_that_is_still_allowed_is_timed(pattern):
    expression = check_expression(f"args.note.matches('{pattern}')", "tool")
    note = "".join(random.Random(1).choices("ab", k=900_000))
    took = worst_allowed(expression, lambda n: {"note": note[:n]}, 900_000)
    sys.stdout.write(f"{pattern}: {took * 1e3:.1f} ms\n")  # pytest -s shows it


def test_the_rules_about_a_call_read_it_once_up_to_what_one_may_cost():
    facts = CallFacts("tool", {"amount": 1}, lambda: {"tool": TOOL, "caller": {}})
    expression = check_expression("args.amount > 5", "tool")
    first = facts.activation(0)
    assert [expression.holds(facts) for _ in range(50)] == [False] * 50
    assert facts.activation(0) is first
    for _ in range(COST_LIMIT // USUAL_ARGS):  # what evaluations make is freed now and then
        assert not expression.holds(facts)
    assert facts.activation(0) is not first
    last = facts.activation(COST_LIMIT)
    assert facts.activation(1) is not last


def worst_allowed(expression, arguments, most):
    """Take the time of the largest arguments that are not denied, found by bisection."""
    least, took = 0, 0.0
    while most - least > 1:
        size = (least + most) // 2
        facts = CallFacts("tool", arguments(size), lambda: {"tool": TOOL, "caller": {}})
        begun = time.process_time()
        try:
            expression.holds(facts)
        except EvaluationFailed:
            most = size
        else:
            least, took = size, time.process_time() - begun
    assert least
    return took
