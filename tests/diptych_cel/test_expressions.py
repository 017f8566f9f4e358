"""What an expression of a policy may be, and that one that fails never holds."""

import pytest

from diptych_cel.expressions import (
    CallFacts,
    EvaluationFailed,
    InvalidExpression,
    check_expression,
)

TOOL = {"name": "pay", "server": "bank", "annotations": {"destructiveHint": True}}
ELEMENT = "inside a macro, `matches` searches only the macro's own element"
CONSTANT = "a pattern must be a constant string"
COSTLY = (
    "is too costly: a pattern has at most 256 characters, and its repeats multiply to at most 500"
)


def holds(text, about="tool", **args):
    caller = {"subject": "user:ada", "kind": "user", "name": "ada"}
    of_call = {"tool": TOOL, "agent": {"name": "pay"}}[about]
    facts = CallFacts(about, args, lambda: {about: of_call, "caller": caller})
    return check_expression(text, about).holds(facts)


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("argz.amount > 1", "column 5: undeclared reference to 'argz.amount'"),
        (
            "args.a\n  && 1",
            "line 2, column 3: found no matching overload for '_&&_' applied to '(dyn, int)'",
        ),
        (
            'args.to.matches("[")',
            "column 17: is not a valid regular expression (RE2): missing ]: [",
        ),
        ("true && args.items.all(i, args.note.matches('x'))", f"column 44: {ELEMENT}"),
        ("args.a.all(x, x.all(y, y.all(z, z > 1)))", "column 29: macros are nested at most 2"),
        ('args.to.matches("((a|b){50}){19}c")', f"column 17: {COSTLY}"),
        ("args.to.matches(args.pattern)", f"column 21: {CONSTANT}"),
        ("['^a+$'].exists(p, args.note.matches(p))", f"column 38: {CONSTANT}"),
        ("tool.naem == 1", "column 5: tool has no naem; it has annotations, longName, name,"),
        ("args.a && tool.annotations.readonlyHint", "column 27: tool.annotations has no readonly"),
        ("has(tool.annotations.readOnly)", "column 4: tool.annotations has no readOnly;"),
        ("args.a = 1", "column 8: token recognition error at: '= '; write == to compare"),
        (
            "args.a == \"b'",
            "column 11: token recognition error at: '\"b''; a text ends with the quote that",
        ),
        (
            "New issue",
            "column 5: extraneous input 'issue' expecting the end; a text stands in quotes of its",
        ),
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
        "args.amount > 100 && args.amount == 250.0",
        'caller.kind == "user" && tool.annotations.destructiveHint',
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


@pytest.mark.parametrize(
    ("text", "args", "most"),
    [
        ("args.note.contains('x')", lambda n: {"note": "x" * n}, 65_525),
        ("args.items.all(i, i == 1)", lambda n: {"items": [1] * n}, 2_000),
        ("args.items.all(i, i != '')", lambda n: {"items": ["y" * n]}, 16_370),
    ],
)
def test_arguments_that_are_too_long_for_a_rule_are_denied(text, args, most):
    assert holds(text, **args(most))
    with pytest.raises(EvaluationFailed, match="for this rule"):
        holds(text, **args(most + 1))


@pytest.mark.parametrize(
    "pattern",
    [
        "^https://([a-z0-9-]{1,63}\\\\.){1,5}example\\\\.com/",
        "(?i)(drop|delete|truncate|alter)\\\\s+(table|database)",
        "^[\\\\pL\\\\pN ._-]+$",
    ],
)
def test_everyday_patterns_are_allowed(pattern):
    assert holds(f"args.note.matches('{pattern}') || args.note.contains('x')", note="x")
