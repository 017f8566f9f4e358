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
        pytest.param('{\n  "tool":\n    "a"\n}', id="several lines"),
        pytest.param('{\r\n  "tool": "a"\r\n}\r\n', id="lines that end with CRLF"),
        pytest.param(f"I will look.\n\n{A}\n\nThen I answer.", id="prose before and after"),
        pytest.param(f"```json\n{A}\n```", id="a json fence"),
        pytest.param(f"```\n{A}\n```", id="an untagged fence"),
        pytest.param(f"````\n```json\n{A}\n```\n````", id="fences in fences"),
        pytest.param(f"- ```json\n  {A}\n  ```", id="a fence in a list item"),
        pytest.param(f"I do:\n```tool_call\n{A}\n```\nNow.", id="a fence of another tag"),
        pytest.param(f"I do:\n```text\n\n  {A}\n\n```", id="a fence of text"),
        pytest.param(f"{PY}{A}\n```", id="a fence of code"),
        pytest.param(f"~~~yaml title\n{A}\n~~~", id="a tilde fence of YAML"),
        pytest.param(f"- ```js\n  {A}\n  ```", id="a fence of JavaScript in a list"),
        pytest.param(f"~~~py `x`\n{A}\n~~~", id="a tilde fence with ticks in its tag"),
        pytest.param(f'{A}\n{{"tool": null, "arguments": {{}}}}', id="a null after it"),
        pytest.param(f"```json\n{A}", id="a fence that never closes"),
        pytest.param(f"```json\n{A}```", id="a fence that closes on the call's line"),
        pytest.param(f"{PY}x = [\n\n{A}", id="code that never closes"),
        pytest.param(A + "}", id="a brace too many"),
        pytest.param(f"{{}}\n{A}", id="a no-op before it"),
        pytest.param(f"{A}\n[]", id="an empty list after it"),
        pytest.param(f"Use {{}} or:\n{A}", id="a no-op in prose before it"),
        pytest.param(f"[x] done\n[ ] not\n{A}", id="a checklist before it"),
        pytest.param(f"see [a](b) {{c\n{A}\nand }}", id="brackets in prose around it"),
        pytest.param(f"a smile :-}} and ]\n{A}", id="closing brackets before it"),
        pytest.param(f'5" disks, "a {{ quote\n{A}', id="stray quotation marks before it"),
        pytest.param(f"{PY}print({B})\n```\n{A}", id="code with a call before it"),
        pytest.param(f"the list [of\n{A}\nthings] is", id="brackets of prose enclose its line"),
        pytest.param(f"[{{x}}}}] a template\n{A}", id="a brace too many in brackets before it"),
        pytest.param(f"[of\n{A}\nthings] is", id="brackets of prose that begin their line"),
        pytest.param(f"{A}\nand no more:\n{{}}", id="prose and a no-op after it"),
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
        pytest.param(f"```text\n{A}\n```\n```tool_call\n{B}\n```", id="a fence of a tag each"),
        pytest.param(f"{A}\n{{}}\n{B}", id="a no-op between them"),
        pytest.param(f"First both:\n{A}\n{B}\nThen I answer.", id="prose around both"),
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
        pytest.param("[]", id="an empty list"),
        pytest.param("<>", id="the other no-op"),
        pytest.param("<think>{}</think>\n<>", id="a no-op after reasoning"),
        pytest.param("[{}, []]", id="a list of nothing"),
        pytest.param("```json\n{}\n```", id="a no-op in a fence"),
        pytest.param("I need no tool.\n{}", id="a no-op after prose"),
        pytest.param("So:\n```text\n{}\n```", id="a no-op in a fence of text"),
        pytest.param('{"tool": null}', id="no tool"),
        pytest.param('{"tool": null, "arguments": {}}', id="no tool, no arguments"),
        pytest.param('{"tool": null, "agent": null, "answer": "4"}', id="no tool, no agent"),
        pytest.param('{"calls": null}', id="no calls"),
        pytest.param('So:\n```json\n{"tool": null}\n```', id="no tool in a fence"),
    ],
)
def test_a_reply_may_say_that_no_action_is_needed(reply: str) -> None:
    assert find_values(reply) == NoOp()


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param("", id="nothing"),
        pytest.param(" \n\t", id="blanks"),
        pytest.param(f"<think>hm {A}", id="reasoning that never ends"),
        pytest.param("The answer is 4.", id="prose"),
        pytest.param("Generics are written <> in Java.", id="<> in prose"),
        pytest.param('{"temperature": 21, "unit": "C"}', id="JSON data"),
        pytest.param('{"a": NaN}', id="data that is not JSON"),
        pytest.param('{"type": "object", "properties": {"tool": {"type": "string"}}}', id="schema"),
        pytest.param('[the "tool" docs](https://example.com/{id})', id="a link"),
        pytest.param("{tool} is a placeholder", id="a placeholder called tool"),
        pytest.param('Use the "tool" key and the "calls" key.', id="quoted words"),
        pytest.param(f"{PY}call({A})\n{A}\n```", id="a call in Python"),
        pytest.param(f"```markdown\n```json\n{A}\n```\n", id="a json fence in a markdown fence"),
        pytest.param("｛＂tool＂: ＂x＂｝", id="fullwidth braces and quotes"),  # noqa: RUF001
        pytest.param("{“tool”: “x”}", id="typographic quotes"),
        pytest.param('"{}"', id="a JSON string"),
        pytest.param("[1, 2", id="a list of numbers that never closes"),
        pytest.param('{"a": {"tool": "x"}}', id="data with a call's key deeper inside"),
        pytest.param('So:\n{"a": 1', id="data that never closes, after prose"),
        pytest.param('{x}"tool" is a key', id="a quoted key after a placeholder"),
        pytest.param(f"{PY}- ```\n{A}\n```", id="a list item with a fence in code"),
        pytest.param(f"````python\n```\n{A}\n````", id="a shorter fence in code"),
        pytest.param(f"{PY}x = [\n{A},\n]\n```", id="a call in a list of Python"),
        pytest.param(f'I may {{"tool": null}} or\n```text\nSay:\n{A}\n```', id="a fenced text"),
        pytest.param("[" * 100_000, id="a hundred thousand brackets"),
        pytest.param("[" * 100_000 + "]" * 100_000, id="a hundred thousand pairs"),
        pytest.param('{"a":' * 100_000 + "1" + "}" * 100_000, id="deep objects"),
        pytest.param("word { [ \x00 \ud800 " * 60_000, id="a megabyte of rubbish"),
    ],
)
def test_the_rest_is_prose(reply: str) -> None:
    assert find_values(reply) == Prose()


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(f"I will call {A} now.", id="in a line of prose"),
        pytest.param(f"Action: {A}\n{B}", id="after a word, with another call"),
        pytest.param(f"`{A}`", id="as inline code"),
        pytest.param(f"```json {A} ```", id="in a fence of one line"),
        pytest.param(f"```json {A}\n```", id="on the line of the fence"),
        pytest.param(f"<tool_call>{A}</tool_call>", id="in tags"),
        pytest.param(f"{A}, {B}", id="after another call and a comma"),
        pytest.param(f"see [this, {A}", id="after a comma in brackets"),
        pytest.param(f"Use {{}} {A}", id="after a no-op in a line of prose"),
        pytest.param("Call {\n" + A[1:], id="over several lines"),
        pytest.param(f'Say: "{A}"', id="in quotation marks"),
        pytest.param("{nested [" * 30_000 + A, id="behind many open brackets"),
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
        pytest.param(f'{A}\n{{"a": 1}}\n{B}', id="other JSON"),
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
        pytest.param('{"tool": "x" "arguments": {}}', "delimiter", id="a comma too few"),
        pytest.param('{{"tool": "x"}}', "double quotes", id="double braces"),
        pytest.param("{'tool': 'x'}", "double quotes", id="Python's quotes"),
        pytest.param('{tool: "x"}', "double quotes", id="JavaScript's keys"),
        pytest.param('"tool": "x"', "opens with {", id="no braces"),
        pytest.param('{"tool": "x", "arguments": {"a": NaN}}', "NaN", id="NaN"),
        pytest.param('{"tool": "x", "arguments": {"a": -Infinity}}', "Infinity", id="Infinity"),
        pytest.param(
            '{"tool": "x", "arguments": {"a": 18446744073709551616}}', "64 bits", id="65 bits"
        ),
        pytest.param('{"tool": "x", "a": ' + "9" * 9000 + "}", "64 bits", id="9000 digits"),
        pytest.param('{"tool": "x", "tool": "y"}', '"tool" appears twice', id="a key twice"),
        pytest.param('{"tool": "x", "a": "\\ud800"}', "surrogate", id="an escaped surrogate"),
        pytest.param('{"tool": "x", "a": "b\nc"}', "\\n", id="a line break in a string"),
        pytest.param('{"tool": ' + "[" * 99 + "]" * 99 + "}", "deeper than 64", id="too deep"),
        pytest.param(f'Now:\n{{"tool": "x",}}\n{A}', "line 1 column", id="beside a good call"),
        pytest.param('Now:\n```json\n{"tool": }\n```', "Expecting value", id="in a fence in prose"),
        pytest.param('Now:\n```text\n{"tool": }\n```', "Expecting value", id="in a fence of text"),
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
        pytest.param("{", id="one brace"),
        pytest.param('{"to', id="in a key"),
        pytest.param('{"a": 1', id="whatever it was to be"),
        pytest.param('[{"a": 1}, ', id="a list of whatever it was to be"),
        pytest.param('{"tool": "x", "arguments": {"a": "}', id="in a string with a brace"),
        pytest.param('{"tool": "x", "arguments": {"a": "\\', id="in an escape"),
        pytest.param('{"tool": "x"]', id="with the wrong bracket"),
        pytest.param('[{"tool": "x"}, {"tool": "y', id="in the second of a list"),
        pytest.param(f'{A}\n{{"tool": "y", ', id="in the second line"),
        pytest.param(f'{A} {{"tool": "y", ', id="in the second of a line"),
        pytest.param('```json\n{"tool": "x", ', id="in a fence"),
        pytest.param('Sure:\n{"arguments":\n {"a": 1},\n "tool": "x', id="after prose"),
        pytest.param(f"Sure:\n[\n {A},\n", id="in a list after prose"),
        pytest.param("{'tool': 'x", id="with Python's quotes"),
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
        pytest.param('{"x": [1, {"agent": "x", "task": "y"}]}', id="a delegation beside a number"),
        pytest.param('{"why": "", "call": {"tool": "x", "arguments": {}}}', id="beside a reason"),
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
        pytest.param(-(2**63), True, id="the smallest"),
        pytest.param(-(2**63) - 1, False, id="one less than the smallest"),
    ],
)
def test_a_number_has_64_bits(number: int, *, is_read: bool) -> None:
    assert (decode_json(str(number)) == number) == is_read


def test_json_without_end_is_refused_not_raised() -> None:
    assert isinstance(decode_json("[" * 200_000 + "]" * 200_000), ValueError)
