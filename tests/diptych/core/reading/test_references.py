"""References to earlier results: `${id}`, `${id.path}`, and the literal `$${` (loop.md §3)."""

from types import MappingProxyType

import pytest

from diptych.core.messages import JSON, Delegation, ToolCall
from diptych.core.reading.references import (
    MAX_INSERTED,
    fill_references,
    reference_value,
    referenced_labels,
)

VALUES: dict[str, JSON] = {
    "n": 5,
    "text": "ü",
    "none": None,
    "rows": [{"name": "Ada"}, {"name": "Bob"}],
    "deep": {"a": {"b": [True, 1.5]}, "0": "zero"},
    "evil": "${n} $${n}",
    "words": ["ü"],
    "empty": {},
    "view": MappingProxyType({"a": 1}),
}


def filled(value: JSON) -> JSON:
    call = fill_references(ToolCall("1", "t", {"v": value}), VALUES)
    return call.arguments["v"] if isinstance(call, ToolCall) else str(call)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("${n}", 5, id="a number stays one"),
        pytest.param("${rows}", VALUES["rows"], id="a list stays one"),
        pytest.param("${rows.1.name}", "Bob", id="a field of an element"),
        pytest.param("${deep.0}", "zero", id="a field whose name is a number"),
        pytest.param(" ${n}", " 5", id="a blank makes it text"),
        pytest.param("${text}: ${deep.a}", 'ü: {"b":[true,1.5]}', id="an object in text"),
        pytest.param("${none}, ${deep.a.b.0}", "null, true", id="null and true in text"),
        pytest.param("$${n}", "${n}", id="a literal"),
        pytest.param("$5 ${n} $${ ${", "$5 5 ${ ${", id="dollars"),
        pytest.param(["${n}", {"x": "${n}", "${n}": 1}], [5, {"x": 5, "${n}": 1}], id="nested"),
        pytest.param("${evil}", "${n} $${n}", id="what is inserted is not read again"),
    ],
)
def test_references_are_filled(before: JSON, after: JSON) -> None:
    assert filled(before) == after


def test_a_task_is_text() -> None:
    task = Delegation("1", "writer", "${rows.0}", label="x", after=("rows",))
    assert fill_references(task, VALUES) == Delegation(
        "1", "writer", '{"name":"Ada"}', "x", ("rows",)
    )


@pytest.mark.parametrize(
    ("reference", "named"),
    [
        pytest.param("${rows.2.name}", "'2' is not in a list of 2", id="an index too large"),
        pytest.param("${rows.\u0661}", "is not in a list", id="another script's digit"),
        pytest.param("${text.x}", "a text, which has no fields", id="a field of a text"),
        pytest.param("so: ${other}", "there is no result of 'other'", id="an unknown call"),
    ],
)
def test_a_path_that_leads_nowhere_is_told(reference: str, named: str) -> None:
    detail = fill_references(ToolCall("1", "t", {"v": [reference, "${n.y}"]}), VALUES)
    assert isinstance(detail, str)
    assert named in detail
    assert len(detail) < 500


@pytest.mark.parametrize(
    ("more", "is_filled"),
    [pytest.param("", True, id="all of it"), pytest.param("y", False, id="one more")],
)
def test_references_may_insert_so_much(more: str, *, is_filled: bool) -> None:
    call = ToolCall("1", "t", {"v": ["${all}", "${more}"]})
    found = fill_references(call, {"all": "y" * MAX_INSERTED, "more": more})
    assert isinstance(found, ToolCall) == is_filled


def test_endless_nesting_is_told() -> None:
    endless: JSON = []
    for _ in range(100_000):
        endless = [endless]
    assert (
        fill_references(ToolCall("1", "t", {"v": endless}), {})
        == "the arguments are nested too deeply"
    )
    assert "nested" in str(fill_references(ToolCall("1", "t", {"v": "${a}"}), {"a": endless}))
    assert referenced_labels(endless) == set()


@pytest.mark.parametrize(
    ("value", "text", "stands_for"),
    [
        pytest.param(None, "hello", "hello", id="no value"),
        pytest.param({"result": [1]}, "[1]", [1], id="a wrapper"),
        pytest.param({"result": 1, "x": 2}, "", {"result": 1, "x": 2}, id="no wrapper"),
        pytest.param(None, ' {"a": [1]}\n', {"a": [1]}, id="a text that is an object"),
        pytest.param(None, "[1]", [1], id="a text that is an array"),
        pytest.param(None, '{"a": 1, "a": 2}', '{"a": 1, "a": 2}', id="an object read two ways"),
        pytest.param({"result": ' {"a": 1}'}, "", {"a": 1}, id="a wrapper of an object as JSON"),
        pytest.param({"result": "[1]"}, "[1]", [1], id="a wrapper of a list as JSON"),
        pytest.param({"result": "42"}, "42", "42", id="a wrapper of a number as text"),
        pytest.param({"result": {"result": "[1]"}}, "", {"result": "[1]"}, id="two wrappers"),
    ],
)
def test_a_result_stands_for_its_value_or_its_text(
    value: JSON, text: str, stands_for: JSON
) -> None:
    assert reference_value(value, text) == stands_for


def test_the_ids_that_references_lead_to_are_known() -> None:
    value: JSON = {"${key}": ["${a} $${b} ${c.d}", {"x": "${ e }${f", "y": 5}], "z": "${}"}
    assert referenced_labels(value) == {"a", "c", "e", ""}
