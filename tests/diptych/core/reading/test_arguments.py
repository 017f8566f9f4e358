"""Arguments against input schemas that strangers wrote."""

import json
from pathlib import Path

import pytest

from diptych.core.catalog import Tool
from diptych.core.messages import JSONObject
from diptych.core.reading.arguments import check_arguments, typed_arguments

INTEGER: JSONObject = {"type": "integer"}


def problem(
    schema: JSONObject, arguments: JSONObject, *, references_fit: bool = False
) -> str | None:
    return check_arguments(Tool("s", "t", "", schema), arguments, references_fit=references_fit)


def test_the_model_is_told_what_is_wrong_where_and_what_is_expected() -> None:
    schema: JSONObject = {
        "type": "object",
        "properties": {
            "list": {"type": "array", "items": {"properties": {"n": INTEGER}}},
            "mode": {"enum": ["a", "b"]},
            "odd": True,
        },
        "required": ["list"],
    }
    assert problem(schema, {"list": [{"n": 1}, {"n": "x"}]}) == (
        "t: arguments.list[1].n: 'x' is not of type 'integer'. "
        "Expected: list (array, required); mode; odd"
    )


def test_a_long_value_is_cut_out_of_the_message() -> None:
    schema: JSONObject = {"properties": {"n": INTEGER}}
    found = problem(schema, {"n": "y" * 1_000_000})
    assert found
    assert len(found) < 500
    assert "is not of type 'integer'" in found


def test_draft_4_has_its_own_meaning() -> None:
    limit: JSONObject = {"properties": {"n": {"minimum": 1, "exclusiveMinimum": True}}}
    draft_4: JSONObject = {"$schema": "http://json-schema.org/draft-04/schema#", **limit}
    assert problem(draft_4, {"n": 1}) is not None
    assert problem(limit, {"n": 1}) is None  # no schema of today's draft, so it checks nothing


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param({"type": "objekt"}, id="an unknown type"),
        pytest.param({"properties": {"n": {"$ref": "http://127.0.0.1:9/x"}}}, id="a remote ref"),
        pytest.param({"properties": {"n": {"$ref": "#/$defs/none"}}}, id="a ref to nothing"),
        pytest.param({"properties": {"n": {"pattern": "(["}}}, id="a pattern that is none"),
        pytest.param({"$id": "http://[", "$ref": "x"}, id="an id that is no URL"),
    ],
)
def test_a_schema_that_is_wrong_in_itself_checks_nothing(schema: JSONObject) -> None:
    assert problem(schema, {"n": "x"}) is None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_another_document_is_never_fetched(tmp_path: Path) -> None:
    document = tmp_path / "n.json"
    document.write_text(json.dumps(INTEGER))
    assert problem({"properties": {"n": {"$ref": document.as_uri()}}}, {"n": "x"}) is None


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        pytest.param(INTEGER, "${a}", id="a type"),
        pytest.param(
            {"anyOf": [{"properties": {"x": INTEGER}}, {"required": ["y"]}]},
            {"x": "${a}"},
            id="one of the branches",
        ),
        pytest.param({"oneOf": [{}, {"type": "object"}]}, {"x": "${a}"}, id="too many branches"),
        pytest.param({"uniqueItems": True}, ["${a}", "${a}"], id="unique items"),
        pytest.param(
            {"if": {"properties": {"x": {"const": 1}}}, "else": {"required": ["y"]}},
            {"x": "${a}"},
            id="a condition",
        ),
    ],
)
def test_what_depends_on_a_reference_fits_for_now(schema: JSONObject, value: object) -> None:
    outer: JSONObject = {"properties": {"v": schema}}
    arguments: JSONObject = {"v": value}  # type: ignore[dict-item]
    assert problem(outer, arguments, references_fit=True) is None
    assert problem(outer, arguments) is not None


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        pytest.param({"required": ["y"]}, {"x": "${a}"}, id="a missing field"),
        pytest.param(
            {"properties": {"x": {}}, "additionalProperties": False},
            {"x": "${a}", "z": 1},
            id="a field too many",
        ),
        pytest.param(
            {"properties": {"x": INTEGER, "y": INTEGER}}, {"x": "${a}", "y": "b"}, id="its sibling"
        ),
        pytest.param(
            {"anyOf": [{"required": ["y"], "properties": {"x": INTEGER}}, {"required": ["z"]}]},
            {"x": "${a}"},
            id="a part of a branch",
        ),
    ],
)
def test_what_no_reference_can_mend_is_told_at_once(
    schema: JSONObject, arguments: JSONObject
) -> None:
    assert problem(schema, arguments, references_fit=True) is not None


def read(value, about, **schema):
    arguments = typed_arguments({"properties": {"x": about}, **schema}, {"x": value})
    return arguments.get("x", "dropped")


@pytest.mark.parametrize(
    ("text", "about", "value"),
    [
        ('{"a": 1}', {"type": "object"}, {"a": 1}),
        ("5", {"type": "integer"}, 5),
        ("1.5", {"type": "number", "minimum": 0}, 1.5),
        ("False", {"type": "boolean"}, False),
        ("5", {"type": ["integer", "null"]}, 5),
    ],
)
def test_a_text_is_taken_as_the_json_that_is_wanted(text, about, value):
    assert read(text, about) == value


@pytest.mark.parametrize(
    ("text", "about"),
    [
        ("5", {"type": ["integer", "string"]}),
        ("5", {}),
        ("5", {"anyOf": [{"type": "integer"}]}),
        ("true", {"type": "integer"}),
        ("five", {"type": "integer"}),
        ("NaN", {"type": "number"}),
        ("[" * 70 + "]" * 70, {"type": "array"}),
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
