"""What rules conditions out without evaluating them agrees with evaluating them."""

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from diptych_cel.expressions import CallFacts, EvaluationFailed, check_expression
from diptych_cel.openings import Opening, Openings

TOOL = {"name": "pay", "server": "", "longName": "pay", "annotations": {"readOnlyHint": False}}
CONSTANTS = ['"prod"', '""', "'grüße'", "5", "-5", "0", "2.5", "-0.5", "5u", "9007199254740993"]
COMPARISONS = ["==", ">", ">=", "<", "<="]
CONDITIONS = [
    f"{guard}args.x {comparison} {constant}{rest}"
    for guard in ("", "has(args.x) && ")
    for comparison in COMPARISONS
    for constant in CONSTANTS
    for rest in ("", " && args.y > 1")
    if not (constant[0] in "\"'" and comparison != "==")
]
VALUES = st.one_of(
    st.sampled_from(["prod", "", "grüße", "5", 5, -5, 0, 2.5, -0.5, 5.0, 2**53 + 1, 2.0**53]),
    st.sampled_from([True, False, None, 2**63 - 1, 2**63, 2**64 - 1, -(2**63)]),
    st.text(max_size=3),
    st.integers(-10, 10),
    st.floats(),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=1), st.integers(), max_size=1),
)


def facts(**args):
    return CallFacts("tool", args, lambda: {"tool": TOOL, "caller": {}})


def opening(text):
    return check_expression(text, "tool").opening


def holds(text, **args):
    try:
        return check_expression(text, "tool").holds(facts(**args))
    except EvaluationFailed:
        return None


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("has(args.to)", Opening("to", is_guarded=True)),
        ("(has(args.to) && args.a) && (has(args.b) && args.b)", Opening("to", is_guarded=True)),
        ('has(args.to) && args.to == "x" && args.a', Opening("to", True, "_==_", "x")),
        ("has(args.to) && (args.to > -1 && args.a)", Opening("to", True, "_>_", -1)),
        ("has(args.to) && args.from > 1", Opening("to", is_guarded=True)),
        ("args.to <= 1.5 && has(args.to)", Opening("to", False, "_<=_", 1.5)),
        ("args.to == b'x'", None),
        ("args.to == true", None),
        ("args.to.name == 'x'", None),
        ("tool.name == 'x'", None),
        ("has(args.to) || true", None),
        ("!has(args.to) && true", None),
        ("has(args.to.name) && true", None),
        ("has(tool.server) && true", None),
        ("args.to && true", None),
        ("has(args.to) ? args.a : args.b", None),
    ],
)
def test_an_expression_says_what_it_asks_first(text, asked):
    assert opening(text) == asked


def test_without_the_argument_that_it_asks_for_first_it_is_false_whatever_follows():
    chance = random.Random(1)
    deep = "args.l.all(i, args.l.all(j, args.l.all(k, args.l.all(m, true))))"  # too many iterations
    follow = [deep, "args.a > 1", "1 / int(args.z) > 0", "tool.longName == 1", "args.s"]
    follow.append("!has(args.a)")
    args = {"l": [*range(30)], "z": 0, "s": "x"}
    for _ in range(150):
        text = " && ".join(["has(args.to)", *chance.choices(follow, k=chance.randrange(12))])
        if chance.random() < 0.3:
            text = f"({text}) && {chance.choice(follow)}"
        assert opening(text).name == "to"
        assert holds(text, **args) is False
        text = text.replace("has(args.to)", 'has(args.s) && args.s == "y"')
        assert Openings([opening(text)]).rule_out(args)
        assert holds(text, **args) is False


@given(st.lists(st.sampled_from(CONDITIONS), min_size=1, max_size=3), VALUES)
@example(["args.x > 5"], 2**63)
@example(["args.x < 5"], 2**63)
@example(["args.x == 5", 'args.x == "prod"'], 7)
@example(['has(args.x) && args.x == "prod"'], "prod\ud800")
@example(["args.x == 9007199254740993"], 2.0**53)
@example(["args.x >= 9007199254740993"], 2.0**53)
def test_what_is_ruled_out_is_false(conditions, value):
    of_call = facts(x=value)
    if of_call.are_ruled_out(Openings(map(opening, conditions))):
        assert [holds(text, x=value) for text in conditions] == [False] * len(conditions)


@pytest.mark.parametrize("condition", CONDITIONS)
def test_without_the_argument_those_are_ruled_out_that_are_guarded(condition):
    is_ruled_out = facts().are_ruled_out(Openings([opening(condition)]))
    assert is_ruled_out == condition.startswith("has(")
    assert holds(condition) is (False if is_ruled_out else None)


@pytest.mark.parametrize(
    ("condition", "out", "kept"),
    [
        ('args.x == "prod"', ["test", ""], ["prod", 5, None, True]),
        ("args.x == 5", [4, 5.5], [5, 5.0, "5"]),
        ("args.x > 5", [4, -1, 4.9], [5.5, 6, "6", True]),
        ("args.x >= 5", [4], [5]),
        ("args.x < 5", [6], [4, [4]]),
        ("args.x <= -5", [-4], [-5]),
        ("has(args.x)", [], ["x", 5, [5], None]),
    ],
)
def test_what_cannot_hold_is_ruled_out(condition, out, kept):
    asked = Openings([opening(condition)])
    assert all(facts(x=value).are_ruled_out(asked) for value in out)
    assert not any(facts(x=value).are_ruled_out(asked) for value in kept)
