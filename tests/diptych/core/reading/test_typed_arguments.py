"""When an argument is taken for something else than it is written as, and when not."""

import pytest

from diptych.core.reading.arguments import typed_arguments


def read(value, about, **schema):
    arguments = typed_arguments({"properties": {"x": about}, **schema}, {"x": value})
    return arguments.get("x", "dropped")


@pytest.mark.parametrize(
    ("text", "about", "value"),
    [
        ('{"a": 1}', {"type": "object"}, {"a": 1}),
        ("[1, 2]", {"type": "array", "items": {"type": "integer"}}, [1, 2]),
        ("5", {"type": "integer"}, 5),
        (" 5\n", {"type": "integer"}, 5),
        ("1.5", {"type": "number", "minimum": 0}, 1.5),
        ("true", {"type": "boolean"}, True),
        ("False", {"type": "boolean"}, False),
        ("[1]", {"type": ["object", "array"]}, [1]),
        ("5", {"type": ["integer", "null"]}, 5),
    ],
)
def test_a_text_is_taken_as_the_json_that_is_wanted(text, about, value):
    assert read(text, about) == value


@pytest.mark.parametrize(
    ("text", "about"),
    [
        ("5", {"type": "string"}),
        ("5", {"type": ["integer", "string"]}),
        ("5", {}),
        ("5", True),
        ("5", None),
        ("5", {"enum": [5, "5"]}),
        ("5", {"type": "integer", "enum": [5]}),
        ("5", {"anyOf": [{"type": "integer"}]}),
        ("5", {"$ref": "#/$defs/n"}),
        ("5", {"type": "boolean"}),
        ("true", {"type": "integer"}),
        ("1.5", {"type": "integer"}),
        ("five", {"type": "integer"}),
        ("NaN", {"type": "number"}),
        ("[1", {"type": "array"}),
        ('{"a": 1, "a": 2}', {"type": "object"}),
        ("null", {"type": ["integer", "null"]}),
        ("${a}", {"type": "integer"}),
        ("[" * 70 + "]" * 70, {"type": "array"}),
        ("5", {"type": "unheard-of"}),
    ],
)
def test_any_other_text_stays_a_text(text, about):
    assert read(text, about) == text


def test_what_is_inside_an_argument_is_left_alone():
    about = {"type": "object", "properties": {"y": {"type": "integer"}}}
    assert read({"y": "5", "z": None}, about) == {"y": "5", "z": None}


def test_a_null_is_dropped_unless_it_is_required():
    assert read(None, {"type": "integer"}) == "dropped"
    assert read(None, {"type": ["integer", "null"]}) == "dropped"
    assert read(None, {}, required=["x"]) is None
    assert typed_arguments({}, {"y": None, "z": 1}) == {"z": 1}
