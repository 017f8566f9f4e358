"""Schemas and arguments that would hold the event loop, each with the time that it may take."""

import time
from functools import reduce

import pytest

from diptych.core.catalog import Tool
from diptych.core.reading.arguments import check_arguments

SECONDS = 1.0  # of CPU; most take under 0.1
STANDARD = "https://json-schema.org/draft/2020-12/schema"


def problem(schema, arguments):
    return check_arguments(Tool("s", "t", "", schema), arguments, references_fit=False)


def deep(depth, wrap, inner):
    return reduce(lambda value, _: wrap(value), range(depth), inner)


def doubling(keyword, depth=40):
    """A schema of a few lines that is evaluated 2^depth times."""
    refs = [[{"$ref": f"#/$defs/a{n + 1}"}] * 2 for n in range(depth)]
    defs = {f"a{n}": {keyword: both} for n, both in enumerate(refs)}
    return {"$ref": "#/$defs/a0", "$defs": {**defs, f"a{depth}": {"minProperties": 1}}}


def rows(count):
    return [{"a": n, "b": [n]} for n in range(count)]


ATTACKS = {
    "a pattern that backtracks": (
        {"properties": {"x": {"type": "string", "pattern": "^(a+)+$"}}},
        {"x": "a" * 50_000 + "!"},
    ),
    "a pattern of many states": (
        {"properties": {"x": {"pattern": "((a{0,100}){0,100}){0,9}x"}}},
        {"x": "a" * 100_000},
    ),
    "a pattern with look-ahead that backtracks": (
        {"properties": {"x": {"pattern": "^(?=(a+)+$)"}}},
        {"x": "a" * 50 + "!"},
    ),
    "patterns of names that were not looked at": (
        {"allOf": [{"patternProperties": {"^(a+)+$": {}}}], "unevaluatedProperties": False},
        {"a" * 50 + "!": 1},
    ),
    "another dialect inside": (
        {"properties": {"x": {"$schema": STANDARD, "pattern": "^(a+)+$"}}},
        {"x": "a" * 50 + "!"},
    ),
    "the standard's own schema": ({"$ref": STANDARD}, {"required": rows(3_000)}),
    "anyOf that doubles": (doubling("anyOf"), {}),
    "two references to itself": ({"allOf": [{"$ref": "#"}, {"$ref": "#"}]}, {}),
    "arguments that double at each level": (
        {"properties": {"x": {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}}},
        deep(60, lambda inner: {"x": inner}, {}),
    ),
    "a deep schema": (deep(400, lambda inner: {"allOf": [inner]}, {}), {}),
    "a wide schema": ({"allOf": [{"type": "string"}] * 20_000}, {}),
    "items that must differ": (
        {"properties": {"x": {"uniqueItems": True}}},
        {"x": [*rows(10_000), {"a": 1, "b": [1]}]},
    ),
    "long messages of many branches": (
        {"anyOf": [{"properties": {"x": {"type": "integer"}}}] * 300},
        {"x": "y" * 1_000_000},
    ),
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_no_schema_holds_the_event_loop(attack):
    schema, arguments = attack
    began = time.process_time()
    problem(schema, arguments)
    assert time.process_time() - began < SECONDS


@pytest.mark.parametrize(
    ("schema", "fits", "fails"),
    [
        ({"pattern": r"^\d{4}-\d\d$"}, "2026-11", "26-11"),
        ({"uniqueItems": True}, [1, True, "1", [1], {"a": 1}], [{"a": 1.0}, {"a": 1}]),
        ({"patternProperties": {"^n_": {"type": "integer"}}}, {"n_a": 1, "x": ""}, {"n_a": ""}),
        (
            {"patternProperties": {"^n_": {}}, "additionalProperties": False},
            {"n_a": 1},
            {"m_a": 1},
        ),
        ({"properties": {"a": {}}, "additionalProperties": False}, {"a": 1}, {"b": 1}),
        ({"$ref": "#/$defs/tree"}, {"x": {"x": {}}}, {"x": {"x": 1}}),
    ],
)
def test_what_is_checked_in_our_own_way_is_checked_rightly(schema, fits, fails):
    defs = {"tree": {"type": "object", "properties": {"x": {"$ref": "#/$defs/tree"}}}}
    whole = {"properties": {"v": schema}, "$defs": defs}
    assert problem(whole, {"v": fits}) is None
    assert problem(whole, {"v": fails}) is not None


def test_the_messages_are_as_before():
    def told(schema, value):
        return (problem({"properties": {"v": schema}}, {"v": value}) or "").split(". Expected")[0]

    assert told({"pattern": "^a"}, "b") == "t: arguments.v: 'b' does not match '^a'"
    assert told({"additionalProperties": False}, {"b": 1, "a": 1}) == (
        "t: arguments.v: Additional properties are not allowed ('a', 'b' were unexpected)"
    )
    assert told({"patternProperties": {"^n": {}}, "additionalProperties": False}, {"b": 1}) == (
        "t: arguments.v: Additional properties are not allowed ('b' was unexpected)"
    )
