"""What calls a reply asks for, and what is wrong with those it cannot have (loop.md §3)."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.doubles import catalog

from diptych.core.catalog import Catalog, Peer, Tool, Unavailable
from diptych.core.messages import JSON, Delegation, NativeCall, ToolCall
from diptych.core.reading import (
    ActionError,
    Calls,
    check_calls,
    parse,
    read_native,
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


def echo(label: str, **arguments: JSON) -> dict[str, JSON]:
    return {"tool": "echo", "id": label, "arguments": arguments}


def error_of(*values: JSON, catalog: Catalog = OFFERS) -> ActionError:
    found = check_calls(values, catalog)
    assert isinstance(found, ActionError)
    return found


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param('{"calls": [{"tool": "echo"}, {"agent": "writer", "task": "x"}]}', id="calls"),
        pytest.param('{"tool": "echo"}\n{"agent": "writer", "task": "x"}', id="one after another"),
        pytest.param(
            '[{"tool": "echo"}, {}, {"agent": "writer", "task": "x"}]', id="a no-op in it"
        ),
    ],
)
def test_several_calls_keep_their_order(reply: str) -> None:
    calls = (ToolCall("1", "echo"), Delegation("2", "writer", "x"))
    assert parse(reply, OFFERS) == Calls(calls)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param({"tool": "echo", "arguments": None}, id="null arguments"),
        pytest.param({"thought": None, "tool": "echo", "type": "function"}, id="keys of others"),
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
        pytest.param({"name": "nope", "arguments": {}}, "missing_field", id="another API's form"),
        pytest.param({"agent": "writer"}, "missing_field", id="no task"),
        pytest.param({"tool": "echo", "agent": "writer", "task": "x"}, "ambiguous", id="both"),
        pytest.param({"calls": [], "tool": "echo"}, "ambiguous", id="calls and a tool"),
        pytest.param({"tool": "echo", "arguments": []}, "invalid_arguments", id="a list"),
        pytest.param({"tool": "list"}, "unknown_tool", id="a name of two servers"),
        pytest.param({"agent": "poet", "task": "x"}, "unknown_agent", id="an unknown agent"),
        pytest.param({"tool": "echo", "id": "a b"}, "invalid_graph", id="an id with a space"),
        pytest.param({"tool": "echo", "after": "a"}, "invalid_graph", id="after that is a text"),
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


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        pytest.param("files__new", "files", id="its prefix, and a name that it did not offer"),
        pytest.param("read", "files, disk", id="a name that two of them offered"),
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


def test_with_ids_a_literal_needs_two_dollars() -> None:
    assert isinstance(check_calls([echo("a", x="$${HOME} $5 ${ {a}")], OFFERS), Calls)
    refused = error_of(echo("a", x="${HOME}"))
    assert refused.type == "invalid_graph"
    assert "$${" in refused.detail


@pytest.mark.parametrize(
    ("calls", "named"),
    [
        pytest.param([echo("a"), echo("a")], '"a" is used twice', id="an id twice"),
        pytest.param([echo("a", x="${b}"), echo("b", x="${a.x}")], '"a", "b"', id="each other"),
        pytest.param(
            [echo("a", x="${b}"), echo("b", x="${a}"), {"tool": "echo", "after": ["a"]}],
            '"a", "b", "(call 3)"',
            id="a call without an id behind a circle",
        ),
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


def test_a_null_that_is_not_required_is_dropped() -> None:
    call: JSON = {"tool": "add", "arguments": {"a": 1, "b": None, "c": None}}
    assert check_calls([call], OFFERS) == Calls((ToolCall("1", "add", {"a": 1}),))
    assert "None is not of type" in error_of({"tool": "add", "arguments": {"a": None}}).detail


OFFERED = catalog("echo", "fs/read", agents=["writer"])


def read(*calls, offered=OFFERED, finish_reason="tool_calls"):
    asked = [NativeCall(f"id{n}", name, arguments) for n, (name, arguments) in enumerate(calls)]
    return read_native(asked, finish_reason, offered)


@pytest.mark.parametrize("arguments", ["", " ", "{}", "null", '""', '"{}"'])
def test_a_call_without_arguments_is_written_in_many_ways(arguments):
    assert read(("echo", arguments)) == Calls((ToolCall("1", "echo", {}),))


def test_arguments_are_read_also_if_they_are_json_twice():
    expected = Calls((ToolCall("1", "echo", {"text": "a"}),))
    assert read(("echo", '{"text": "a"}')) == expected
    assert read(("echo", '"{\\"text\\": \\"a\\"}"')) == expected


def test_a_name_that_was_written_for_the_api_leads_back():
    name = OFFERED.functions.tools[1].name
    assert name != "fs/read"
    assert read((name, "{}")) == Calls((ToolCall("1", "fs/read", {}),))


def test_the_ids_of_the_api_are_none_of_the_graph_and_a_dollar_is_text():
    (call,) = read(("echo", '{"text": "${id0}"}')).calls
    assert (call.label, call.after, call.arguments) == (None, (), {"text": "${id0}"})


@pytest.mark.parametrize(
    ("calls", "error_type", "detail"),
    [
        ([("echo", '{"a": ')], "json_syntax", 'the arguments of "echo" are not JSON'),
        ([("echo", "[1]")], "invalid_arguments", "must be a JSON object"),
        ([("nope", "{}")], "unknown_tool", 'no tool "nope"; tools available: echo, fs/read'),
        ([("", "{}")], "missing_field", "name"),
        ([("delegate_to_nobody", '{"task": "x"}')], "unknown_agent", "available: writer"),
        ([("delegate_to_writer", "{}")], "missing_field", 'needs a "task"'),
    ],
)
def test_what_is_wrong_is_a_typed_error(calls, error_type, detail):
    found = read(*calls)
    assert isinstance(found, ActionError)
    assert found.type == error_type
    assert detail in found.detail


@pytest.mark.parametrize("reason", ["length", "content_filter"])
@pytest.mark.parametrize("calls", [[("echo", "{}")], [("echo", '{"a')], [("nope", "{}")]])
def test_a_reply_that_was_cut_off_never_runs_its_calls(calls, reason):
    assert read(*calls, finish_reason=reason).type == "truncated"


@given(st.lists(st.tuples(st.text(), st.text()), min_size=1, max_size=20))
def test_whatever_is_called_it_can_be_read(calls):
    assert isinstance(read(*calls), Calls | ActionError)
