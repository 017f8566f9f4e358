"""Calls in the forms of other models: which are read, which are told what is wrong, which are data.

What the published templates write stands in `test_published_forms`; here is what else is known.
"""

import json

import pytest

from diptych.core.catalog import Catalog, Peer, Tool
from diptych.core.messages import Delegation, ToolCall
from diptych.core.reading import ActionError, Calls, Prose, parse

ADD = Tool(
    "calc",
    "add",
    "",
    {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "array"}}},
)
SEARCH = Tool("web", "search-web", "", {"properties": {"query": {"type": "string"}}})
OFFERS = Catalog((ADD, SEARCH), (Peer("writer", ""), Peer("law-expert", "")))
ADDED = ToolCall("1", "add", {"a": 1})
A = '{"name": "add", "arguments": {"a": 1}}'
P = '{"name": "add", "parameters": {"a": 1}}'
NOPE = '{"name": "nope", "arguments": {}}'
NOPE_P = '{"name": "nope", "parameters": {}}'


def quoted(value):
    return json.dumps(json.dumps(value))


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(A, id="arguments"),
        pytest.param(P, id="parameters"),
        pytest.param(f"```json\n{A}\n```", id="in a fence"),
        pytest.param(f'{{"name": "add", "arguments": {quoted({"a": 1})}}}', id="JSON in a text"),
        pytest.param(f'{{"type": "function", "function": {A}}}', id="a function"),
        pytest.param('{"type": "function", "name": "add", "parameters": {"a": "1"}}', id="Llama 3"),
        pytest.param(
            f'{{"tool_calls": [{{"id": "call_9", "type": "function", "function": {A}}}]}}',
            id="an API's calls",
        ),
        pytest.param(
            '{"type": "tool_use", "id": "t", "name": "add", "input": {"a": 1}}', id="Anthropic's"
        ),
        pytest.param(f"<tool_call>\n{A}\n", id="tags that never close"),
        pytest.param(f"```xml\n<tool_call>{A}</tool_call>\n```", id="tags in a fence of XML"),
        pytest.param(f"I add. <tool_call>{A}</tool_call>", id="tags after prose in a line"),
        pytest.param('<tool_call>{"tool": "add", "arguments": {"a": 1}}</tool_call>', id="own"),
        pytest.param('{"tool": "add", "parameters": {"a": 1}}', id="our own name for it"),
        pytest.param('[TOOL_CALLS]add{"a": 1}', id="Mistral, another one"),
        pytest.param("[add(a=1)]", id="Llama 4 as code"),
        pytest.param('I look.\n<function=add>{"a": 1}', id="Llama 3 with half its tags"),
        pytest.param(f"functools[{A}]", id="Phi-4 mini's older form"),
        pytest.param('add{"a": 1}', id="a server dropped Mistral's tokens"),
        pytest.param('functions.add:0{"a": 1}', id="a server dropped Kimi's tokens"),
        pytest.param('Thought: I add.\nAction: add\nAction Input: {"a": 1}', id="ReAct"),
        pytest.param('Action: `add`\nAction Input: {"a": 1}\nObservation:', id="ReAct, and more"),
    ],
)
def test_one_call_is_read(reply):
    found = parse(reply, OFFERS)
    assert found == Calls((ADDED,)), found


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(
            f"Both:\n<tool_call>\n{A}\n</tool_call>\n<tool_call>\n{A.replace('1', '2')}\n"
            "</tool_call><|im_end|>",
            id="tags",
        ),
        pytest.param(f'{A}\n{{"tool": "add", "arguments": {{"a": 2}}}}', id="two forms"),
    ],
)
def test_several_calls_are_read(reply):
    calls = (ADDED, ToolCall("2", "add", {"a": 2}))
    assert parse(reply, OFFERS) == Calls(calls)


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param('{"name": "writer", "arguments": {"task": "Do."}}', id="the agent's name"),
        pytest.param('{"name": "delegate_to_writer", "arguments": {"task": "Do."}}', id="prefixed"),
        pytest.param(
            "<tool_call><function=writer><parameter=task>Do.</parameter></function></tool_call>",
            id="Qwen3-coder",
        ),
    ],
)
def test_an_agent_s_name_makes_a_delegation(reply):
    assert parse(reply, OFFERS) == Calls((Delegation("1", "writer", "Do."),))


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(f"<tool_call>\n{NOPE}\n</tool_call>", id="tags"),
        pytest.param("<tool_call>nope\n</tool_call>", id="GLM"),
        pytest.param("<|channel|>commentary to=functions.nope<|message|>{}", id="gpt-oss"),
    ],
)
def test_a_tagged_call_of_what_is_not_offered_is_unknown(reply):
    found = parse(reply, OFFERS)
    assert isinstance(found, ActionError)
    assert found.type == "unknown_tool"
    assert "add, search-web" in found.detail


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        pytest.param('<tool_call>\n{"name": "add", }\n</tool_call>', "json_syntax", id="bad JSON"),
        pytest.param('<tool_call>\n{"name": "add", "argu', "truncated", id="cut off"),
        pytest.param("<function=add>\n<parameter=a>\n1", "truncated", id="a cut off argument"),
        pytest.param('Action: add\nAction Input: {"a": 1', "truncated", id="a cut off ReAct"),
        pytest.param('<tool_call>{"foo": 1}</tool_call>', "missing_field", id="no name"),
        pytest.param(
            "<function=add><parameter=a>1</parameter><parameter=a>2</parameter></function>",
            "json_syntax",
            id="an argument twice",
        ),
        pytest.param('<tool_call>{"name": "add", "arguments": {"a": "x"}}</tool_call>',
                     "invalid_arguments", id="a bad argument"),
        pytest.param(f"Qwen says <tool_call>{A}</tool_call> for it.", "ambiguous", id="an example"),
        pytest.param(f"It writes:\n> <tool_call>{A}</tool_call>", "ambiguous", id="quoted lines"),
        pytest.param(f"<tool_call>{A}</tool_call>\nor\n<tool_call>{A}</tool_call>", "ambiguous",
                     id="prose between"),
        pytest.param("```python\nadd(a=1)\n```", "json_syntax", id="code"),
        pytest.param("```tool_code\nprint(add(a=1))\n```", "json_syntax", id="Gemma's code"),
        pytest.param("<tool_call>" + '{"a":' * 99 + "1" + "}" * 99, "json_syntax", id="too deep"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_it_is_told(reply, error):
    found = parse(reply, OFFERS)
    assert isinstance(found, ActionError), found
    assert found.type == error
    assert len(found.detail) < 2000


def test_code_is_told_the_right_form():
    found = parse("```python\nadd(a=1, b=[True, None, 'x'])\n```", OFFERS)
    assert isinstance(found, ActionError)
    form = '{"tool": "add", "arguments": {"a": 1, "b": [true, null, "x"]}}'
    assert found.detail == f"a call is written as JSON, not as code: {form}"


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(NOPE_P, id="a name that is not offered"),
        pytest.param(f"[{P}, {NOPE_P}]", id="a call among data"),
        pytest.param('{"name": "add"}', id="a name alone"),
        pytest.param(
            '[{"name": "add", "description": "Adds.", "parameters": {"a": 1}}]', id="a description"
        ),
        pytest.param(
            '{"name": "add", "parameters": {"type": "object", "properties": {"a": {}}}}',
            id="a schema",
        ),
        pytest.param('{"name": "add", "parameters": ["a", "b"]}', id="a list of parameters"),
        pytest.param('Action: add\nAction Input: {"a": 1}\nObservation: 2\nIt is 2.', id="a story"),
        pytest.param(f"```xml\n<x>{A}</x>\n```", id="a call in a fence of XML"),
        pytest.param(f"```python\nx = [\n<tool_call>\n{A}\n</tool_call>\n```\nSo.", id="code"),
        pytest.param("```python\nadd(a=1)\n```\nThis adds.", id="a fence that is not alone"),
        pytest.param("```python\nsub(a=1)\n```", id="code of something else"),
        pytest.param("[add(a=b)]", id="no literal"),
        pytest.param('add {"a": 1} is the call', id="a name and JSON and prose"),
    ],
)
def test_data_code_and_prose_are_no_calls(reply):
    assert parse(reply, OFFERS) == Prose()


def test_the_ids_of_an_api_are_no_labels():
    one = '{"id": "call_1", "name": "add", "arguments": {"a": 1}}'
    two = one.replace("call_1", "call_2")
    for reply in (f"[{one}, {two}]", f"[TOOL_CALLS][{one}, {two}]"):
        found = parse(reply, OFFERS)
        assert found == Calls((ADDED,), (0, 0))


def test_ids_that_something_refers_to_are_labels():
    one = '{"id": "x", "name": "add", "arguments": {"a": 1}}'
    two = '{"id": "y", "name": "search-web", "arguments": {"query": "${x}"}}'
    for reply in (f"[{one}, {two}]", f"<tool_call>\n{one}\n</tool_call>\n<tool_call>\n{two}"):
        found = parse(reply, OFFERS)
        assert isinstance(found, Calls), found
        assert [(call.label, call.after) for call in found.calls] == [("x", ()), ("y", ("x",))]


@pytest.mark.parametrize(
    "text",
    [f"<tool_call>{A}</tool_call>", "[TOOL_CALLS]add{}", "<function=add>{}</function>"],
)
def test_tags_in_an_argument_are_its_text(text):
    call = {"tool": "search-web", "arguments": {"query": text}}
    for reply in (json.dumps(call), f"So:\n{json.dumps(call, indent=1)}"):
        assert parse(reply, OFFERS) == Calls((ToolCall("1", "search-web", {"query": text}),))
    other = json.dumps({"name": "search-web", "arguments": {"query": text}})
    for reply in (other, f"<tool_call>{other}</tool_call>"):
        assert parse(reply, OFFERS) == Calls((ToolCall("1", "search-web", {"query": text}),))
