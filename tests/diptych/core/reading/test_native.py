"""Native calls, read as those of a text are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.doubles import catalog

from diptych.core.catalog import Catalog, Unavailable
from diptych.core.messages import Delegation, NativeCall, ToolCall
from diptych.core.reading import ActionError, Calls, read_native

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


def test_a_function_named_for_an_agent_is_a_delegation():
    found = read(("delegate_to_writer", '{"task": "Write."}'))
    assert found == Calls((Delegation("1", "writer", "Write."),))


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
        ([("echo", '{"a": 1, "a": 2}')], "json_syntax", "appears twice"),
        ([("echo", "[1]")], "invalid_arguments", "must be a JSON object"),
        ([("nope", "{}")], "unknown_tool", 'no tool "nope"; tools available: echo, fs/read'),
        ([("", "{}")], "missing_field", "name"),
        ([("echo", "{}"), ("nope", "{}")], "unknown_tool", "nope"),
        ([("delegate_to_nobody", '{"task": "x"}')], "unknown_agent", "available: writer"),
        ([("delegate_to_writer", "{}")], "missing_field", 'needs a "task"'),
        ([("delegate_to_writer", '{"task": 1}')], "missing_field", 'needs a "task"'),
        ([("echo", f'{{"a": {n}}}') for n in range(17)], "too_many_calls", "17 calls"),
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


def test_a_tool_of_a_server_that_is_away_is_a_call():
    offered = Catalog(unavailable=(Unavailable("server", "gone", "refused"),))
    assert read(("gone__x", "{}"), offered=offered) == Calls((ToolCall("1", "gone__x", {}),))


@given(st.lists(st.tuples(st.text(), st.text()), min_size=1, max_size=20))
def test_whatever_is_called_it_can_be_read(calls):
    assert isinstance(read(*calls), Calls | ActionError)
