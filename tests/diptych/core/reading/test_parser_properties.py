"""What holds for every reply, however odd: no exception, no lost call, no more work than text."""

import json
import re
import time
from collections.abc import Callable

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from diptych.core.catalog import Catalog, Peer, Tool
from diptych.core.messages import JSON, ToolCall
from diptych.core.reading import (
    ActionError,
    Calls,
    parse,
    parser,
    read_reply,
    strip_lead,
)

OFFERS = Catalog((Tool("s", "echo", "", {"type": "object"}),), (Peer("writer", ""),))
CALL = '{"tool": "echo", "arguments": {"a": "}{ \\"[ ```"}}'

TAGGED = [
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "<function=echo>"),
    *("</function>", "<parameter=a>", "</parameter>", "<|tool_call>call:echo{", "<tool_call|>"),
    *('<|"|>', "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
    *("echo", "[ARGS]", "to=functions.echo", "<|message|>", "<|call|>", "<arg_key>", "</arg_key>"),
    *("<arg_value>", "</arg_value>", '<invoke name="echo">', '<parameter name="a">', "</invoke>"),
    *("Action: echo\n", "Action Input:", "Observation:", '{"a": 1}', '{"name": "echo", ', ">>>"),
    *('"arguments": {}}', '"parameters": "{}"', "[echo(a=1)]", "echo(", ")", "functools[{"),
    *(
        "<\uff5ctool▁call▁begin\uff5c>",
        "<\uff5ctool▁sep\uff5c>",
        "<|channel|>",
        "]<]minimax[>[",
        "<![CDATA[",
    ),
    *('<|open|>call tool="echo"<|sep|>', "<|tool_call_start|>", "<|tool_call_end|>", ";"),
]
anything = st.text() | st.text(st.characters(codec=None))  # half surrogate pairs included
pieces = st.sampled_from(
    [
        *"{}[]\"':,\\\n\t -1a",
        *(CALL, '{"tool": "', '"agent"', '{"calls": [', "{}", "<>", "null", "${", "NaN"),
        *("```", "```json\n", "~~~", "```py\n", "<think>", "</think>"),
        *("\ufeff", "\r\n", "\u2028"),
    ]
)
awkward = st.lists(pieces | anything, max_size=40).map("".join)
# Text in which a line of its own cannot be part of code or of JSON around it:
prose = st.lists(
    st.sampled_from([*"[](){\"'`,;.!?*#|\\ \tabc", '5" disk', "“x”", "don't", "[x]", "{}", "\n"])
).map("".join)
numbers = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
words = st.text(st.characters(codec="utf-8"))
values = st.recursive(
    st.none() | st.booleans() | numbers | words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
    max_leaves=20,
)


@given(awkward)
def test_any_reply_can_be_read(reply: str) -> None:
    found = parse(reply, OFFERS)
    if isinstance(found, Calls):
        for call in found.calls:
            orjson.dumps(call)  # it can be recorded
    elif isinstance(found, ActionError):
        assert found.detail.encode()
        assert len(found.detail) < 2000
    said, read = read_reply(reply, "stop", OFFERS)
    assert said == strip_lead(reply)[0]
    assert read == parse(said, OFFERS)


@example(['~~~\n"tool": "echo"\n~~~'], "~")
@given(st.lists(st.sampled_from(TAGGED) | pieces | anything, max_size=12), st.sampled_from("{[<`~"))
def test_a_text_that_no_form_can_be_in_is_prose(parts: list[str], kept: str) -> None:
    """The whole reading gives what the first look gives, which most answers end at."""
    stripped = re.sub(rf"[^\S\n]*[{re.escape('{[<`~'.replace(kept, ''))}]", "", "".join(parts))
    for text in (stripped, re.sub(re.escape(kept), "", stripped)):
        found = parse(text, OFFERS)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(parser, "_MAY_ACT", re.compile(""))
            assert parse(text, OFFERS) == found


@given(st.dictionaries(words, values, max_size=4), st.sampled_from([None, 2]), st.booleans())
def test_any_call_comes_back_as_it_was_written(
    arguments: dict[str, JSON], indent: int | None, ascii_only: bool
) -> None:
    value = {"tool": "echo", "arguments": arguments}
    reply = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    expected = Calls((ToolCall("1", "echo", without_nulls(arguments)),))
    for dressed in (reply, f"\ufeff{reply}\n", f"```json\n{reply}\n```", f"So:\n{reply}\nThen."):
        assert parse(dressed, OFFERS) == expected


FORMS: list[Callable[[str, str], str]] = [
    lambda name, values: f'{{"name": "{name}", "arguments": {values}}}',
    lambda name, values: f'So:\n{{"name": "{name}", "parameters": {values}}}',
    lambda name, values: f'{{"function": {{"name": "{name}", "arguments": {json.dumps(values)}}}}}',
    lambda name, values: f'<tool_call>\n{{"name": "{name}", "arguments": {values}}}\n</tool_call>',
    lambda name, values: f'[TOOL_CALLS][{{"name": "{name}", "arguments": {values}}}]',
    lambda name, values: f'<|python_tag|>{{"name": "{name}", "parameters": {values}}}<|eom_id|>',
    lambda name, values: f"[TOOL_CALLS]{name}[CALL_ID]x[ARGS]{values}</s>",
    lambda name, values: f"<function={name}>{values}</function>",
    lambda name, values: (
        f"<\uff5ctool▁call▁begin\uff5c>{name}<\uff5ctool▁sep\uff5c>{values}<\uff5ctool▁call▁end\uff5c>"
    ),
    lambda name, values: (
        f"<\uff5ctool▁call▁begin\uff5c>function<\uff5ctool▁sep\uff5c>{name}\n```json\n{values}\n```<\uff5ctool▁call▁end\uff5c>"
    ),
    lambda name, values: (
        f"<|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>{values}<|tool_call_end|>"
    ),
    lambda name, values: (
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{values}<|call|>"
    ),
    lambda name, values: f"Action: {name}\nAction Input: {values}\n",
    lambda name, values: f"{name}\n{values}",
]


@given(
    st.sampled_from(FORMS),
    st.dictionaries(words, values, max_size=4),
    st.sampled_from([None, 2]),
)
def test_any_call_in_another_form_comes_back_as_it_was_written(
    form: Callable[[str, str], str], arguments: dict[str, JSON], indent: int | None
) -> None:
    reply = form("echo", json.dumps(arguments, indent=indent))
    found = parse(reply, OFFERS)
    if "properties" in arguments and isinstance(arguments["properties"], dict):
        return  # it may be taken for a schema
    assert found == Calls((ToolCall("1", "echo", without_nulls(arguments)),))


@given(st.dictionaries(st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True), words, max_size=4))
def test_texts_between_tags_come_back_as_they_were_written(arguments: dict[str, str]) -> None:
    if any(re.search(r"</parameter>|\]\]>|\r", text) for text in arguments.values()):
        return
    lines = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in arguments.items())
    reply = f"<tool_call>\n<function=echo>\n{lines}</function>\n</tool_call>"
    assert parse(reply, OFFERS) == Calls((ToolCall("1", "echo", arguments),))


@given(st.dictionaries(words, values) | st.lists(values), st.booleans(), prose)
def test_data_is_never_a_call(data: JSON, fenced: bool, around: str) -> None:
    """Whatever the data, if its names are not offered and it has no key of our own form."""
    text = json.dumps({"data": data}, indent=1)
    reply = f"```json\n{text}\n```" if fenced else text
    assert not isinstance(parse(reply, OFFERS), Calls)
    assert not isinstance(parse(f"{around}\n{reply}\n{around}", OFFERS), Calls)


@given(st.lists(st.sampled_from(TAGGED) | pieces | prose, max_size=30).map("".join))
def test_any_soup_of_tags_can_be_read(reply: str) -> None:
    found = parse(reply, OFFERS)
    if isinstance(found, Calls):
        assert all(getattr(call, "name", "echo") == "echo" for call in found.calls)
        for call in found.calls:
            orjson.dumps(call)


@given(st.lists(st.lists(st.integers(0, 6), max_size=3), max_size=7))
def test_an_accepted_graph_can_always_run_to_its_end(edges: list[list[int]]) -> None:
    calls = [
        {"tool": "echo", "id": f"c{n}", "after": [f"c{m}" for m in after]}
        for n, after in enumerate(edges)
    ]
    found = parse(json.dumps(calls), OFFERS)
    if not isinstance(found, Calls):
        assert not edges or getattr(found, "type", "") == "invalid_graph"
        return
    done: set[str | None] = set()
    for _ in found.calls:
        done |= {call.label for call in found.calls if done.issuperset(call.after)}
    assert len(done) == len(edges)


def without_nulls(arguments: dict[str, JSON]) -> dict[str, JSON]:
    return {key: value for key, value in arguments.items() if value is not None}


def nested(size: int) -> str:
    return "[" * size + "]" * size


@pytest.mark.parametrize(
    "grown",
    [
        pytest.param(lambda n: "[" * n, id="open brackets"),
        pytest.param(nested, id="nested brackets"),
        pytest.param(lambda n: "{\n" * n + '"tool"' + "}\n" * n, id="nested lines"),
        pytest.param(lambda n: "[a\n" * n + '"tool"' + "]\n" * n, id="nested lines of prose"),
        pytest.param(lambda n: "<think></think>" * n, id="reasoning"),
        pytest.param(lambda n: f"{CALL}\n" * (n // 8), id="calls"),
        *(pytest.param(lambda n, t=t: t * (n // 4), id=t.strip()) for t in TAGGED),
        pytest.param(lambda n: '<tool_call>{"a" ' * n, id="broken tagged calls"),
        pytest.param(lambda n: "[echo(a=" + "[" * n + ")]", id="deep code"),
        pytest.param(lambda n: "[" + "echo(a=1), " * n + "echo(a=2)]", id="much code"),
        pytest.param(lambda n: '{"name": "echo", "parameters": {}};' * n, id="semicolons"),
        pytest.param(lambda n: "<|tool_call>call:echo{" * n, id="open Gemma"),
        pytest.param(lambda n: "<tool_call>" * n + " " * n, id="tags and blanks"),
        pytest.param(lambda n: ">>>echo\n{" * n, id="open channels"),
    ],
)
def test_work_grows_with_the_length_alone(grown: Callable[[int], str]) -> None:
    small, large = seconds(grown(1_000)), seconds(grown(8_000))
    assert large < max(30 * small, 0.05)  # 8 times the text; a rescan would cost 64 times


@pytest.mark.parametrize("unit", ['{"a": 1}\n', "<tool_call>", "<|x|>"])
def test_a_long_reply_is_read_in_well_under_a_second(unit: str) -> None:
    assert seconds(unit * (200_000 // len(unit))) < 1  # about 0.1 s; machines differ


def seconds(reply: str) -> float:
    def once() -> float:
        start = time.process_time()
        parse(reply, OFFERS)
        return time.process_time() - start

    return min(once() for _ in range(3))
