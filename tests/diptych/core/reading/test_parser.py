"""What calls a reply asks for, and what is wrong with those it cannot have (loop.md §3)."""

import json

import pytest

from diptych.core.catalog import Catalog, Peer, Tool, Unavailable
from diptych.core.messages import JSON, Delegation, ToolCall
from diptych.core.reading import (
    ActionError,
    Calls,
    check_calls,
    parse,
)

ADD = Tool(
    "calculator",
    "add",
    "Adds.",
    {
        "type": "object",
        "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
        "required": ["a"],
        "additionalProperties": False,
    },
)
ECHO = Tool("words", "echo", "Says it again.", {"type": "object"})
OFFERS = Catalog(
    tools=(ADD, ECHO, Tool("one", "list", "", {}), Tool("two", "list", "", {})),
    agents=(Peer("researcher", "Looks things up."), Peer("writer", "Writes.")),
)
SERVER_DOWN = Catalog((ADD,), unavailable=(Unavailable("server", "files", "refused"),))
AGENT_DOWN = Catalog((ADD,), unavailable=(Unavailable("agent", "lawyer", "refused"),))


def echo(label: str, **arguments: JSON) -> dict[str, JSON]:
    return {"tool": "echo", "id": label, "arguments": arguments}


def error_of(*values: JSON, catalog: Catalog = OFFERS) -> ActionError:
    found = check_calls(values, catalog)
    assert isinstance(found, ActionError)
    return found


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param('[{"tool": "echo"}, {"agent": "writer", "task": "x"}]', id="a list"),
        pytest.param('{"calls": [{"tool": "echo"}, {"agent": "writer", "task": "x"}]}', id="calls"),
        pytest.param('{"tool": "echo"}\n{"agent": "writer", "task": "x"}', id="one after another"),
        pytest.param(
            '[{"tool": "echo"}, {}, {"agent": "writer", "task": "x"}]', id="a no-op in it"
        ),
        pytest.param('[{"tool": "echo"}]\n{"agent": "writer", "task": "x"}', id="mixed forms"),
    ],
)
def test_several_calls_keep_their_order(reply: str) -> None:
    calls = (ToolCall("1", "echo"), Delegation("2", "writer", "x"))
    assert parse(reply, OFFERS) == Calls(calls)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param({"tool": "echo"}, id="no arguments"),
        pytest.param({"tool": "echo", "arguments": None}, id="null arguments"),
        pytest.param({"thought": None, "tool": "echo", "type": "function"}, id="keys of others"),
        pytest.param({"tool": "echo", "after": []}, id="after nothing"),
        pytest.param({"tool": "echo", "calls": None}, id="null calls"),
    ],
)
def test_what_means_nothing_is_let_be(value: JSON) -> None:
    assert check_calls([value], OFFERS) == Calls((ToolCall("1", "echo"),))


@pytest.mark.parametrize(
    ("value", "ignored"),
    [
        pytest.param({"calls": [{"tool": "echo"}], "output": "a"}, ("output",), id="beside calls"),
        pytest.param({"tool": "echo", "answer": 4, "why": ""}, ("answer", "why"), id="in a call"),
        pytest.param({"calls": [{"tool": "echo", "a": 1}], "id": 1}, ("a",), id="within calls"),
    ],
)
def test_what_a_call_says_beside_itself_is_ignored_and_named(
    value: JSON, ignored: tuple[str, ...]
) -> None:
    assert parse(json.dumps(value), OFFERS) == Calls((ToolCall("1", "echo"),), (), ignored)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        pytest.param({"tool": None, "arguments": {"a": 1}}, "missing_field", id="a null tool"),
        pytest.param({"tool": " "}, "missing_field", id="a tool without a name"),
        pytest.param({"arguments": {"a": 1}}, "missing_field", id="arguments alone"),
        pytest.param({"name": "nope", "arguments": {}}, "missing_field", id="another API's form"),
        pytest.param({"name": "add", "arguments": {}}, "invalid_arguments", id="a known name"),
        pytest.param({"agent": "writer"}, "missing_field", id="no task"),
        pytest.param({"agent": ["writer"], "task": "x"}, "missing_field", id="a list of agents"),
        pytest.param({"calls": {"tool": "echo"}}, "missing_field", id="calls that are no list"),
        pytest.param({"calls": [{"calls": []}]}, "missing_field", id="calls in calls"),
        pytest.param([{"tool": "echo"}, 5], "missing_field", id="a number among calls"),
        pytest.param([{"tool": "echo"}, {"x": 5}], "missing_field", id="data among calls"),
        pytest.param({"tool": "echo", "agent": "writer", "task": "x"}, "ambiguous", id="both"),
        pytest.param({"calls": [], "tool": "echo"}, "ambiguous", id="calls and a tool"),
        pytest.param({"calls": [], "arguments": {}}, "ambiguous", id="calls and arguments"),
        pytest.param({"tool": "echo", "arguments": []}, "invalid_arguments", id="a list"),
        pytest.param({"tool": "echo", "arguments": "{}"}, "invalid_arguments", id="JSON as text"),
        pytest.param(
            {"tool": "one__list", "arguments": []}, "invalid_arguments", id="a list for any schema"
        ),
        pytest.param({"tool": "add", "arguments": {}}, "invalid_arguments", id="a missing one"),
        pytest.param({"tool": "Add"}, "unknown_tool", id="another case"),
        pytest.param({"tool": "list"}, "unknown_tool", id="a name of two servers"),
        pytest.param({"tool": "x\n\x00" * 999}, "unknown_tool", id="a prompt for a name"),
        pytest.param({"agent": "poet", "task": "x"}, "unknown_agent", id="an unknown agent"),
        pytest.param({"tool": "echo", "id": "a b"}, "invalid_graph", id="an id with a space"),
        pytest.param({"tool": "echo", "after": "a"}, "invalid_graph", id="after that is a text"),
        pytest.param({"tool": "echo", "after": [None]}, "invalid_graph", id="after null"),
        pytest.param({"tool": "echo", "after": ["a"]}, "invalid_graph", id="after an unknown id"),
    ],
)
def test_what_is_wrong_with_a_call_is_a_typed_error(value: JSON, error: str) -> None:
    found = error_of(value)
    assert found.type == error
    assert 0 < len(found.detail) < 2000


def test_an_unknown_name_is_told_what_there_is() -> None:
    assert error_of({"tool": "nope"}).detail == (
        'there is no tool "nope"; tools available: add, echo, one__list, two__list'
    )
    assert error_of({"agent": "echo", "task": "x"}).detail == (
        'there is no agent "echo" (it is a tool); agents available: researcher, writer'
    )
    assert error_of({"agent": "poet", "task": "x"}).detail == (
        'there is no agent "poet"; agents available: researcher, writer'
    )
    assert "(it is an agent)" in error_of({"tool": "writer"}).detail
    assert error_of({"tool": "x"}, catalog=Catalog()).detail.endswith("available: none")


def test_a_long_name_is_cut() -> None:
    assert f'no tool "{"ü" * 60}";' in error_of({"tool": "ü" * 60}).detail
    assert f'no tool "{"ü" * 60}…";' in error_of({"tool": "ü" * 61}).detail


def test_a_long_list_of_names_is_cut() -> None:
    many = Catalog(tuple(Tool("s", f"tool_{n}", "", {}) for n in range(5000)))
    assert len(error_of({"tool": "nope"}, catalog=many).detail) < 1200


def test_while_a_server_is_down_a_name_that_nobody_offers_passes() -> None:
    call: JSON = {"tool": "read", "arguments": {"any": "thing"}}
    assert check_calls([call], SERVER_DOWN) == Calls((ToolCall("1", "read", {"any": "thing"}),))
    assert error_of({"tool": "add", "arguments": {}}, catalog=SERVER_DOWN).type == (
        "invalid_arguments"
    )
    assert error_of({"agent": "lawyer", "task": "x"}, catalog=SERVER_DOWN).type == "unknown_agent"


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        pytest.param("files__new", "files", id="its prefix, and a name that it did not offer"),
        pytest.param("read", "files, disk", id="a name that two of them offered"),
        pytest.param("format", "disk", id="a name that one of them offered"),
        pytest.param("guess", None, id="a name that none of them offered"),
        pytest.param("never__read", "never", id="the prefix of one that was never connected"),
    ],
)
def test_an_unknown_tool_is_blamed_only_on_a_server_that_is_down_and_had_it(
    name: str, owner: str | None
) -> None:
    down = (
        Unavailable("server", "files", "refused", ("read",)),
        Unavailable("server", "disk", "refused", ("read", "format")),
        Unavailable("server", "never", "refused", ()),
        Unavailable("agent", "lawyer", "refused"),
    )
    catalog = Catalog((ADD,), unavailable=down)
    assert catalog.missing_for_tool(name) == owner
    if owner is None:
        error = error_of({"tool": name}, catalog=catalog)
        assert error.type == "unknown_tool"
        assert error.detail == f'there is no tool "{name}"; tools available: add'
    else:
        assert check_calls([{"tool": name}], catalog) == Calls((ToolCall("1", name),))


def test_an_agent_that_is_down_passes() -> None:
    task = {"agent": "lawyer", "task": "x"}
    assert check_calls([task], AGENT_DOWN) == Calls((Delegation("1", "lawyer", "x"),))
    assert error_of({"tool": "read"}, catalog=AGENT_DOWN).type == "unknown_tool"


def test_a_reference_implies_after() -> None:
    found = check_calls(
        [
            echo("a"),
            {**echo("b", x=["${c.y.0}", {"z": "and ${a} ${a}"}]), "after": ["a", "a"]},
            {"agent": "writer", "task": "Write ${b}.", "id": "c2"},
            echo("c"),
        ],
        OFFERS,
    )
    assert isinstance(found, Calls)
    assert [(call.label, call.after) for call in found.calls] == [
        ("a", ()),
        ("b", ("a", "c")),
        ("c2", ("b",)),
        ("c", ()),
    ]


def test_without_ids_a_reference_is_just_text() -> None:
    call: JSON = {"tool": "echo", "arguments": {"x": "${HOME} ${a.b}"}}
    found = check_calls([call], OFFERS)
    assert found == Calls((ToolCall("1", "echo", {"x": "${HOME} ${a.b}"}),))


def test_with_ids_a_literal_needs_two_dollars() -> None:
    assert isinstance(check_calls([echo("a", x="$${HOME} $5 ${ {a}")], OFFERS), Calls)
    refused = error_of(echo("a", x="${HOME}"))
    assert refused.type == "invalid_graph"
    assert "$${" in refused.detail


def test_numbers_are_ids_too() -> None:
    calls: list[JSON] = [{"tool": "echo", "id": 1}, {"tool": "echo", "id": 2, "after": [1]}]
    found = check_calls(calls, OFFERS)
    assert isinstance(found, Calls)
    assert [(call.label, call.after) for call in found.calls] == [("1", ()), ("2", ("1",))]


@pytest.mark.parametrize(
    ("calls", "named"),
    [
        pytest.param([echo("a"), echo("a")], '"a" is used twice', id="an id twice"),
        pytest.param([echo("a"), {"tool": "echo", "id": "b", "after": ["c"]}], '"c"', id="unknown"),
        pytest.param([echo("a", x="${a}")], "circle", id="itself"),
        pytest.param([echo("a", x="${b}"), echo("b", x="${a.x}")], '"a", "b"', id="each other"),
        pytest.param(
            [echo("a", x="${b}"), echo("b", x="${a}"), {"tool": "echo", "after": ["a"]}],
            '"a", "b", "(call 3)"',
            id="a call without an id behind a circle",
        ),
        pytest.param([echo("a"), echo("b", x="${}")], '""', id="an empty reference"),
        pytest.param([echo("a"), {"agent": "writer", "task": "${b}"}], '"b"', id="in a task"),
    ],
)
def test_a_graph_that_cannot_run_is_refused(calls: list[JSON], named: str) -> None:
    found = error_of(calls)
    assert found.type == "invalid_graph"
    assert named in found.detail


def test_a_reference_fits_any_schema_until_it_is_filled() -> None:
    call: JSON = {"tool": "add", "arguments": {"a": "${x}"}}
    assert isinstance(check_calls([echo("x"), call], OFFERS), Calls)
    assert error_of(call).type == "invalid_arguments"
    call = {"tool": "add", "arguments": {"b": "${x}"}}
    assert "'a' is a required property" in error_of(echo("x"), call).detail


def test_a_reply_asks_for_a_bounded_number_of_calls() -> None:
    calls = [{"tool": "echo", "arguments": {"n": n}} for n in range(17)]
    most = check_calls(calls[:16], OFFERS)
    assert isinstance(most, Calls)
    assert len(most.calls) == 16
    error = error_of(*calls)
    assert error.type == "too_many_calls"
    assert error.detail == "17 calls in one reply; ask for at most 16 at a time"
    assert isinstance(check_calls(calls, OFFERS, 17), Calls)


def test_the_same_call_twice_is_one_call() -> None:
    one: JSON = {"tool": "echo", "arguments": {"a": 1, "b": [2]}}
    again: JSON = {"tool": "words__echo", "arguments": {"b": [2], "a": 1}}
    other: JSON = {"tool": "echo", "arguments": {"a": 1.5, "b": [2]}}
    task: JSON = {"agent": "writer", "task": "x"}
    found = check_calls([[one, other, again, task, one, task]], OFFERS)
    assert isinstance(found, Calls)
    assert found.calls == (
        ToolCall("1", "echo", {"a": 1, "b": [2]}),
        ToolCall("2", "echo", {"a": 1.5, "b": [2]}),
        Delegation("3", "writer", "x"),
    )
    assert found.places == (0, 1, 0, 2, 0, 2)


def test_calls_with_ids_of_their_own_are_never_merged() -> None:
    found = check_calls([echo("a"), echo("b"), {"tool": "echo"}], OFFERS)
    assert isinstance(found, Calls)
    assert [call.label for call in found.calls] == ["a", "b", None]
    assert found.places == ()


def test_copies_of_one_call_are_within_any_bound() -> None:
    found = parse('{"tool": "echo", "arguments": {"a": 1}}\n' * 40, OFFERS)
    assert isinstance(found, Calls)
    assert found.calls == (ToolCall("1", "echo", {"a": 1}),)
    assert found.places == (0,) * 40


def test_a_null_that_is_not_required_is_dropped() -> None:
    call: JSON = {"tool": "add", "arguments": {"a": 1, "b": None, "c": None}}
    assert check_calls([call], OFFERS) == Calls((ToolCall("1", "add", {"a": 1}),))
    assert "None is not of type" in error_of({"tool": "add", "arguments": {"a": None}}).detail


def test_a_text_that_is_json_of_the_type_that_is_wanted_is_taken_as_that() -> None:
    call: JSON = {"tool": "add", "arguments": {"a": "1.5"}}
    assert check_calls([call], OFFERS) == Calls((ToolCall("1", "add", {"a": 1.5}),))
