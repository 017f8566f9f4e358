"""What holds for every reply, however odd: no exception, no lost call, no more work than text."""

import json
import time
from collections.abc import Callable

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych.loop.actions import ActionError, Calls, parse, strip_lead
from diptych.loop.actions.references import fill_references, referenced_labels
from diptych.loop.catalog import Catalog, Peer, Tool
from diptych.loop.messages import JSON, Delegation, ToolCall

OFFERS = Catalog((Tool("s", "echo", "", {"type": "object"}),), (Peer("writer", ""),))
CALL = '{"tool": "echo", "arguments": {"a": "}{ \\"[ ```"}}'
CALLED = ToolCall("1", "echo", {"a": '}{ "[ ```'})

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
    text, _ = strip_lead(reply)
    assert strip_lead(text) == (text, "")
    assert parse(text, OFFERS) == found


@given(prose, prose)
def test_a_call_on_its_own_line_is_never_lost(before: str, after: str) -> None:
    found = parse(f"{before}\n{CALL}\n{after}", OFFERS)
    assert isinstance(found, Calls | ActionError)
    if isinstance(found, Calls):
        assert CALLED in found.calls


@given(st.dictionaries(words, values, max_size=4), st.sampled_from([None, 2]), st.booleans())
def test_any_call_comes_back_as_it_was_written(
    arguments: dict[str, JSON], indent: int | None, ascii_only: bool
) -> None:
    value = {"tool": "echo", "arguments": arguments}
    reply = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    expected = Calls((ToolCall("1", "echo", arguments),))
    for dressed in (reply, f"\ufeff{reply}\n", f"```json\n{reply}\n```", f"So:\n{reply}\nThen."):
        assert parse(dressed, OFFERS) == expected


@given(words.filter(str.strip))
def test_any_task_comes_back_as_it_was_written(task: str) -> None:
    reply = json.dumps({"agent": "writer", "task": task})
    assert parse(reply, OFFERS) == Calls((Delegation("1", "writer", task),))


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


@given(values)
def test_filling_never_raises_and_leaves_no_reference(value: JSON) -> None:
    text = json.dumps(value) + "${a} ${a.b} $${a}"
    found = fill_references(ToolCall("1", "echo", {"v": value, "w": "${a}"}), {"a": value})
    assert isinstance(found, str) or found.arguments["w"] == value  # type: ignore[union-attr]
    assert "a" in referenced_labels(text)


def nested(size: int) -> str:
    return "[" * size + "]" * size


@pytest.mark.parametrize(
    "grown",
    [
        pytest.param(lambda n: "[" * n, id="open brackets"),
        pytest.param(nested, id="nested brackets"),
        pytest.param(lambda n: "x " + '{"a":' * n, id="open objects"),
        pytest.param(lambda n: "{\n" * n + '"tool"' + "}\n" * n, id="nested lines"),
        pytest.param(lambda n: "[a\n" * n + '"tool"' + "]\n" * n, id="nested lines of prose"),
        pytest.param(lambda n: "{[" * n + "}" * n, id="mixed brackets"),
        pytest.param(lambda n: "x" + "[a " * n + "]" * n, id="nested in one line"),
        pytest.param(lambda n: 'x {"tool": ' * n, id="keys in prose"),
        pytest.param(lambda n: "```python\n" * n, id="fences"),
        pytest.param(lambda n: "<think></think>" * n, id="reasoning"),
        pytest.param(lambda n: ',"\\' * n, id="escapes"),
        pytest.param(lambda n: f"{CALL}\n" * (n // 8), id="calls"),
    ],
)
def test_work_grows_with_the_length_alone(grown: Callable[[int], str]) -> None:
    small, large = seconds(grown(2_000)), seconds(grown(16_000))
    assert large < max(30 * small, 0.02)  # 8 times the text; a rescan would cost 64 times


def seconds(reply: str) -> float:
    def idempotency_key() -> float:
        start = time.process_time()
        parse(reply, OFFERS)
        return time.process_time() - start

    return min(idempotency_key() for _ in range(3))
