"""The schema of an answer: what is refused as one, and what fits."""

import pytest

from diptych.core.output_schema import Fit, Misfit, read_output, schema_problem

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "size": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
DEEP: dict = {}
for _ in range(100):
    DEEP = {"properties": {"a": DEEP}}


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"$ref": "#/$defs/A", "$defs": {"A": CITY}},
        {"const": {"$ref": "http://x.example/data"}},
    ],
)
def test_a_json_schema_can_be_used(schema):
    assert schema_problem(schema) is None


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        pytest.param({"type": "strin"}, "is not a valid JSON schema", id="no type"),
        pytest.param({"$ref": "#/nowhere"}, "refers to #/nowhere, which is not", id="no target"),
        pytest.param({"$ref": "http://10.0.0.1/s"}, "refers to another document", id="remote"),
        pytest.param(DEEP, "is nested too deeply", id="deep"),
        pytest.param(
            {"$ref": "#"},
            "is not a valid JSON schema: it refers to itself without end",
            id="a circle",
        ),
    ],
)
def test_what_cannot_be_used_is_refused(schema, problem):
    found = schema_problem(schema)
    assert found is not None
    assert found.text.startswith(problem)


def test_what_is_wrong_in_a_schema_is_told_with_its_place():
    found = schema_problem({"properties": {"a": {"anyOf": [{"minimum": "x"}]}}})
    assert found is not None
    assert found.place == ".properties.a.anyOf[0].minimum"


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        pytest.param('```json\n{"city": "Bonn"}\n```', '{"city": "Bonn"}', id="in a fence"),
        pytest.param('Here:\n```json\n{"city": "Bonn"}\n```\nSo.', '{"city": "Bonn"}', id="prose"),
        pytest.param('{"city": "```\\nx"}', '{"city": "```\\nx"}', id="a fence inside"),
    ],
)
def test_the_json_of_an_answer_is_taken_out_of_its_fence(answer, text):
    found = read_output(CITY, answer)
    assert isinstance(found, Fit)
    assert found.text == text
    assert set(found.value) == {"city"}


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        pytest.param("It is Bonn.", "it is not valid JSON", id="prose"),
        pytest.param('{"city": 1}', "answer.city: 1 is not of type 'string'", id="wrong type"),
        pytest.param("[" * 500 + "]" * 500, "it is nested too deeply", id="deep"),
    ],
)
def test_the_model_is_told_why_its_answer_does_not_fit(answer, problem):
    found = read_output(CITY, answer)
    assert isinstance(found, Misfit)
    assert found.problem.startswith(problem)


def test_without_a_schema_any_object_fits_and_nothing_else():
    assert isinstance(read_output({}, '{"a": 1}'), Fit)
    assert isinstance(read_output({}, "[1]"), Misfit)
    assert isinstance(read_output({}, '"text"'), Misfit)


def test_a_schema_that_breaks_on_a_value_fits_nothing():
    schema = {"properties": {"a": {"$ref": "#/nowhere"}}}
    assert isinstance(read_output(schema, '{"a": 1}'), Misfit)
