"""Where in a reply an action is looked for (loop.md §3, "Reading a reply")."""

import pytest

from diptych.core.reading import ActionError, NoOp, Prose
from diptych.core.reading.extraction import find_values as find_in_text
from diptych.core.reading.leading_reasoning import strip_lead
from diptych.core.reading.strict_json import decode_json

A, B = '{"tool": "a"}', '{"tool": "b"}'
VALUE_A, VALUE_B = {"tool": "a"}, {"tool": "b"}
PY = "```python\n"


def find_values(reply: str):
    return find_in_text(strip_lead(reply)[0])


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(A, id="the call alone"),
        pytest.param("\ufeff" + A, id="a byte order mark"),
        pytest.param(f"\ufeff<think>{B}</think>\n{A}", id="reasoning with a call in it"),
        pytest.param('{\r\n  "tool": "a"\r\n}\r\n', id="lines that end with CRLF"),
        pytest.param(f"I will look.\n\n{A}\n\nThen I answer.", id="prose before and after"),
        pytest.param(f"- ```json\n  {A}\n  ```", id="a fence in a list item"),
        pytest.param(f"I do:\n```tool_call\n{A}\n```\nNow.", id="a fence of another tag"),
        pytest.param(f"~~~yaml title\n{A}\n~~~", id="a tilde fence of YAML"),
        pytest.param(f"{PY}x = [\n\n{A}", id="code that never closes"),
        pytest.param(A + "}", id="a brace too many"),
        pytest.param(f'5" disks, "a {{ quote\n{A}', id="stray quotation marks before it"),
        pytest.param(f"[of\n{A}\nthings] is", id="brackets of prose that begin their line"),
        pytest.param(f"```x``` is code:\n{A}\n```", id="inline code of three ticks before it"),
    ],
)
def test_one_call_is_found(reply: str) -> None:
    assert find_values(reply) == (VALUE_A,)


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(A + B, id="nothing between them"),
        pytest.param(f"```json\n{A}\n```\n\n```json\n{B}\n```", id="a fence each"),
        pytest.param(f"{A}\n{{}}\n{B}", id="a no-op between them"),
    ],
)
def test_several_calls_with_only_blanks_or_fences_between_are_several_calls(reply: str) -> None:
    assert find_values(reply) == (VALUE_A, VALUE_B)


def test_a_list_is_one_value() -> None:
    assert find_values(f"[\n{A},\n{B}\n]") == ([VALUE_A, VALUE_B],)
    assert find_values(f'{{"calls": [{A}, {B}]}}') == ({"calls": [VALUE_A, VALUE_B]},)


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param("{}", id="the no-op"),
        pytest.param("<>", id="the other no-op"),
        pytest.param("[{}, []]", id="a list of nothing"),
        pytest.param("I need no tool.\n{}", id="a no-op after prose"),
        pytest.param('{"tool": null}', id="no tool"),
        pytest.param('{"tool": null, "agent": null, "answer": "4"}', id="no tool, no agent"),
        pytest.param('So:\n```json\n{"tool": null}\n```', id="no tool in a fence"),
    ],
)
def test_a_reply_may_say_that_no_action_is_needed(reply: str) -> None:
    assert find_values(reply) == NoOp()


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param("", id="nothing"),
        pytest.param("The answer is 4.", id="prose"),
        pytest.param("{tool} is a placeholder", id="a placeholder called tool"),
        pytest.param(f"{PY}call({A})\n{A}\n```", id="a call in Python"),
        pytest.param(f"```markdown\n```json\n{A}\n```\n", id="a json fence in a markdown fence"),
        pytest.param('{"a": {"tool": "x"}}', id="data with a call's key deeper inside"),
        pytest.param('So:\n{"a": 1', id="data that never closes, after prose"),
        pytest.param(f"{PY}- ```\n{A}\n```", id="a list item with a fence in code"),
        pytest.param(f"{PY}x = [\n{A},\n]\n```", id="a call in a list of Python"),
        pytest.param("[" * 100_000 + "]" * 100_000, id="a hundred thousand pairs"),
    ],
)
def test_the_rest_is_prose(reply: str) -> None:
    assert find_values(reply) == Prose()


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(f"I will call {A} now.", id="in a line of prose"),
        pytest.param(f"`{A}`", id="as inline code"),
        pytest.param(f"<tool_call>{A}</tool_call>", id="in tags"),
        pytest.param(f"{A}, {B}", id="after another call and a comma"),
        pytest.param("Call {\n" + A[1:], id="over several lines"),
    ],
)
def test_a_call_in_the_middle_of_a_line_is_ambiguous(reply: str) -> None:
    found = find_values(reply)
    assert isinstance(found, ActionError)
    assert found.type in {"ambiguous", "truncated"}
    assert found.type == "ambiguous" or reply.startswith("{")


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(f"For example:\n{A}\nbut I do:\n{B}", id="prose"),
        pytest.param(f"{A}\n{PY}x\n```\n{B}", id="code in another language"),
        pytest.param(f"```json\n{A}\n```\nor\n```json\n{A}\n```", id="a word between fences"),
    ],
)
def test_several_calls_with_prose_between_are_ambiguous(reply: str) -> None:
    found = find_values(reply)
    assert isinstance(found, ActionError)
    assert found.type == "ambiguous"


@pytest.mark.parametrize(
    ("reply", "named"),
    [
        pytest.param('{"tool": "x",}', "line 1 column", id="a comma too many"),
        pytest.param("{'tool': 'x'}", "double quotes", id="Python's quotes"),
        pytest.param('{tool: "x"}', "double quotes", id="JavaScript's keys"),
        pytest.param('"tool": "x"', "opens with {", id="no braces"),
        pytest.param('{"tool": "x", "arguments": {"a": NaN}}', "NaN", id="NaN"),
        pytest.param(
            '{"tool": "x", "arguments": {"a": 18446744073709551616}}', "64 bits", id="65 bits"
        ),
        pytest.param('{"tool": "x", "tool": "y"}', '"tool" appears twice', id="a key twice"),
        pytest.param('{"tool": "x", "a": "\\ud800"}', "surrogate", id="an escaped surrogate"),
        pytest.param('{"tool": "x", "a": "b\nc"}', "\\n", id="a line break in a string"),
        pytest.param('{"tool": ' + "[" * 99 + "]" * 99 + "}", "deeper than 64", id="too deep"),
        pytest.param('Now:\n```json\n{"tool": }\n```', "Expecting value", id="in a fence in prose"),
    ],
)
def test_what_looks_like_an_action_and_is_no_json_is_an_error(reply: str, named: str) -> None:
    found = find_values(reply)
    assert isinstance(found, ActionError)
    assert found.type == "json_syntax"
    assert named in found.detail


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param('{"a": 1', id="whatever it was to be"),
        pytest.param('{"tool": "x", "arguments": {"a": "}', id="in a string with a brace"),
        pytest.param('{"tool": "x"]', id="with the wrong bracket"),
        pytest.param(f'{A}\n{{"tool": "y", ', id="in the second line"),
        pytest.param('Sure:\n{"arguments":\n {"a": 1},\n "tool": "x', id="after prose"),
        pytest.param('{"tool": "x", "a": ' + '{"b": ' * 100_000, id="very deep"),
    ],
)
def test_what_opens_and_never_closes_is_truncated(reply: str) -> None:
    found = find_values(reply)
    assert isinstance(found, ActionError)
    assert found.type == "truncated"


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param('{"action": {"tool": "x", "arguments": {}}}', id="a tool call"),
        pytest.param('{"x": [{"agent": "x", "task": "y"}]}', id="a delegation in a list"),
        pytest.param('```\n{"x": {"agent": "x", "task": "y"}}\n```', id="in a fence"),
    ],
)
def test_a_reply_that_is_a_call_wrapped_in_other_json_is_an_error(reply: str) -> None:
    found = find_values(reply)
    assert isinstance(found, ActionError)
    assert found.type == "missing_field"
    assert find_values(f"This is what I did:\n{reply}") == Prose()
    assert find_values(f"{reply}\nThis is what I did.") == Prose()


@pytest.mark.parametrize(
    ("depth", "is_read"), [pytest.param(64, True, id="64"), pytest.param(65, False, id="65")]
)
def test_a_call_may_be_nested_so_deep(depth: int, *, is_read: bool) -> None:
    lists = depth - 1
    found = find_values('{"tool": "x", "arguments": ' + "[" * lists + "]" * lists + "}")
    assert isinstance(found, tuple) == is_read


@pytest.mark.parametrize(
    ("number", "is_read"),
    [
        pytest.param(2**64 - 1, True, id="the largest"),
        pytest.param(2**64, False, id="one more than the largest"),
    ],
)
def test_a_number_has_64_bits(number: int, *, is_read: bool) -> None:
    assert (decode_json(str(number)) == number) == is_read
