"""References to earlier results: `${id}`, `${id.path}`, and the literal `$${` (loop.md §3)."""

from types import MappingProxyType

import pytest

from diptych.core.messages import JSON, Call, Delegation, ToolCall
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
        pytest.param("${none}", None, id="null stays null"),
        pytest.param("${ n }", 5, id="blanks do not count"),
        pytest.param("${rows.1.name}", "Bob", id="a field of an element"),
        pytest.param("${deep.a.b.1}", 1.5, id="deeper"),
        pytest.param("${deep.0}", "zero", id="a field whose name is a number"),
        pytest.param("n=${n}", "n=5", id="a number in text"),
        pytest.param("${n}${n}", "55", id="two in a text"),
        pytest.param(" ${n}", " 5", id="a blank makes it text"),
        pytest.param("${text}: ${deep.a}", 'ü: {"b":[true,1.5]}', id="an object in text"),
        pytest.param("${none}, ${deep.a.b.0}", "null, true", id="null and true in text"),
        pytest.param("so ${words}", 'so ["ü"]', id="other scripts in text"),
        pytest.param("so ${view}", 'so {"a":1}', id="any mapping in text"),
        pytest.param("$${n}", "${n}", id="a literal"),
        pytest.param("$${", "${", id="the beginning of a literal"),
        pytest.param("$$${n}", "$${n}", id="a dollar and a literal"),
        pytest.param("$5 ${n} $${ ${", "$5 5 ${ ${", id="dollars"),
        pytest.param(["${n}", {"x": "${n}", "${n}": 1}], [5, {"x": 5, "${n}": 1}], id="nested"),
        pytest.param([1, None, True], [1, None, True], id="nothing to fill"),
        pytest.param("${evil}", "${n} $${n}", id="what is inserted is not read again"),
        pytest.param("a ${evil}", "a ${n} $${n}", id="nor in text"),
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
        pytest.param("${rows.-1}", "'-1' is not in a list", id="an index below zero"),
        pytest.param("${rows.\u0661}", "is not in a list", id="another script's digit"),
        pytest.param("${rows." + "0" * 5000 + "}", "is not in a list", id="an endless index"),
        pytest.param("${rows.name}", "is not in a list", id="a field of a list"),
        pytest.param(
            "${deep.c}",
            "${deep.c} leads nowhere: 'c' is not in an object with the fields: 0, a",
            id="an unknown field",
        ),
        pytest.param("${empty.a}", "an empty object", id="a field of an empty object"),
        pytest.param("${n.x}", "5, which has no fields", id="a field of a number"),
        pytest.param("${text.x}", "a text, which has no fields", id="a field of a text"),
        pytest.param("${text.0}", "a text, which has no fields", id="an index of a text"),
        pytest.param("${deep.}", "'' is not in", id="an empty field"),
        pytest.param("so: ${other}", "there is no result of 'other'", id="an unknown call"),
    ],
)
def test_a_path_that_leads_nowhere_is_told(reference: str, named: str) -> None:
    detail = fill_references(ToolCall("1", "t", {"v": [reference, "${n.y}"]}), VALUES)
    assert isinstance(detail, str)
    assert named in detail
    assert len(detail) < 500


def test_the_call_itself_is_not_changed() -> None:
    call = ToolCall("1", "t", {"v": ["${n}"]})
    fill_references(call, VALUES)
    assert call == ToolCall("1", "t", {"v": ["${n}"]})


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(ToolCall("1", "t", {"v": "${big}" * 9}), id="in a text"),
        pytest.param(ToolCall("1", "t", {"v": ["${big}"] * 9}), id="as values"),
        pytest.param(Delegation("1", "a", "${big} " * 9), id="in a task"),
    ],
)
def test_what_references_insert_is_bounded(call: Call) -> None:
    detail = fill_references(call, {"big": "y" * (MAX_INSERTED // 8)})
    assert isinstance(detail, str)
    assert "more than" in detail


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
        pytest.param({"result": None}, "", None, id="a wrapper of null"),
        pytest.param({"result": 1, "x": 2}, "", {"result": 1, "x": 2}, id="no wrapper"),
        pytest.param([1], "", [1], id="a list"),
        pytest.param(0, "zero", 0, id="zero"),
        pytest.param(None, ' {"a": [1]}\n', {"a": [1]}, id="a text that is an object"),
        pytest.param(None, "[1]", [1], id="a text that is an array"),
        pytest.param(None, "7", "7", id="a text that is a number"),
        pytest.param(None, '{"a": 1} and more', '{"a": 1} and more', id="an object and more"),
        pytest.param(None, '{"a": 1, "a": 2}', '{"a": 1, "a": 2}', id="an object read two ways"),
        pytest.param(None, "[" * 99 + "]" * 99, "[" * 99 + "]" * 99, id="too deep an array"),
        pytest.param({"result": ' {"a": 1}'}, "", {"a": 1}, id="a wrapper of an object as JSON"),
        pytest.param({"result": "[1]"}, "[1]", [1], id="a wrapper of a list as JSON"),
        pytest.param({"result": "42"}, "42", "42", id="a wrapper of a number as text"),
        pytest.param({"result": "{1}"}, "{1}", "{1}", id="a wrapper of no JSON"),
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
