"""Arguments against input schemas that strangers wrote."""

import json
from pathlib import Path

import pytest

from diptych.core.catalog import Tool
from diptych.core.messages import JSONObject
from diptych.core.reading.arguments import check_arguments

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


def test_the_model_is_told_that_a_tool_takes_nothing() -> None:
    found = problem({"type": "object", "additionalProperties": False}, {"n": 1})
    assert found
    assert found.endswith("Expected: an object without fields")


def test_a_long_value_is_cut_out_of_the_message() -> None:
    schema: JSONObject = {"properties": {"n": INTEGER}}
    found = problem(schema, {"n": "y" * 1_000_000})
    assert found
    assert len(found) < 500
    assert "is not of type 'integer'" in found


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param({"$schema": "http://json-schema.org/draft-04/schema#"}, id="draft 4"),
        pytest.param({"$schema": "http://json-schema.org/draft-07/schema#"}, id="draft 7"),
        pytest.param({"$schema": "https://example.com/unknown"}, id="an unknown draft"),
    ],
)
def test_the_schema_names_its_draft(schema: JSONObject) -> None:
    assert problem({**schema, "properties": {"n": INTEGER}}, {"n": "x"}) is not None


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
        pytest.param({"$ref": "#"}, id="a ref to itself"),
        pytest.param({"properties": {"n": {"pattern": "(["}}}, id="a pattern that is none"),
        pytest.param({"properties": {"n": {"pattern": "\\p{L}"}}}, id="another dialect's pattern"),
        pytest.param({"$id": "http://[", "$ref": "x"}, id="an id that is no URL"),
        pytest.param({"$schema": "http://["}, id="a draft that is no URL"),
        pytest.param({"x": object()}, id="no JSON at all"),
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
        pytest.param({"type": "string", "maxLength": 3}, "${a.b.c}", id="a length"),
        pytest.param(
            {"anyOf": [{"properties": {"x": INTEGER}}, {"required": ["y"]}]},
            {"x": "${a}"},
            id="one of the branches",
        ),
        pytest.param({"oneOf": [{}, {"type": "object"}]}, {"x": "${a}"}, id="too many branches"),
        pytest.param({"uniqueItems": True}, ["${a}", "${a}"], id="unique items"),
        pytest.param({"const": {"x": 1}}, {"x": "${a}"}, id="a constant"),
        pytest.param(
            {"if": {"properties": {"x": {"const": 1}}}, "else": {"required": ["y"]}},
            {"x": "${a}"},
            id="a condition",
        ),
        pytest.param(
            {"if": {"properties": {"x": {"type": "string"}}}, "then": {"required": ["y"]}},
            {"x": "${a}"},
            id="a condition that holds",
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
            {"anyOf": [{"required": ["y"]}, {"required": ["z"]}]}, {"x": "${a}"}, id="no branch"
        ),
        pytest.param(
            {"anyOf": [{"required": ["y"], "properties": {"x": INTEGER}}, {"required": ["z"]}]},
            {"x": "${a}"},
            id="a part of a branch",
        ),
        pytest.param({"properties": {"x": {"minItems": 2}}}, {"x": ["${a}"]}, id="too few"),
    ],
)
def test_what_no_reference_can_mend_is_told_at_once(
    schema: JSONObject, arguments: JSONObject
) -> None:
    assert problem(schema, arguments, references_fit=True) is not None
