"""The gate of an answer: what may open an action is held, and prose flows."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.doubles import catalog

from diptych.core.answer_gate import AnswerGate, is_call

OFFERED = catalog("add", agents=["peer"])
ADD = '{"tool": "add", "arguments": {"a": 1}}'
LINES = "Sure:\n"
NAMES = OFFERED.names


def reads_as_call(text):
    return is_call(text, OFFERED)


def passed(*pieces, **options):
    """What was told before the end, and what was held to the end."""
    gate = AnswerGate(reads_as_call, names=NAMES, **options)
    told = "".join(map(gate.feed, pieces))
    return told, gate.finish()


def told_early(text):
    """How many characters must have come before the first is told; None if none ever is."""
    gate = AnswerGate(reads_as_call, names=NAMES)
    return next((n for n, char in enumerate(text, 1) if gate.feed(char)), None)


@pytest.mark.parametrize(
    ("text", "after"),
    [
        pytest.param("Hello", 1, id="prose"),
        pytest.param("{name} is it", 2, id="a template"),
        pytest.param("<p>Hi</p>", 3, id="markup"),
        pytest.param("```python\nadd(1)\n```", 11, id="code, as soon as it opens"),
        pytest.param('{"city": "Bonn"} is it', 16, id="data, when it closes"),
        pytest.param('{"a": "}\\"{"}', 13, id="data with brackets in texts"),
        pytest.param("{} is the empty object", 4, id="a no-op that words follow"),
        pytest.param("add it", 5, id="a name in prose"),
        pytest.param("[add](url)", 5, id="a link with a name"),
    ],
)
def test_what_cannot_open_an_action_flows_from_there_on(text, after):
    assert told_early(text) == after
    told, held = passed(text, " and more")
    assert told + held == f"{text} and more"
    assert told.startswith(text[:after])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "<>",
        '{"thought": "all is known", "tool": null}',
        ADD,
        ADD[:20],
        f"<tool_call>{ADD}</tool_call>",
        "<function=add>{}</function>",
        "<|python_tag|>add(a=1)",
        '"tool": "add"}',
        "[add(a=1)]",
        'functions.add:0 {"a": 1}',
        'add\n{"a": 1}',
    ],
)
def test_what_is_an_action_or_may_become_one_is_held_to_the_end(text):
    assert passed(text) == ("", text)
    assert passed(*text) == ("", text)


FRAGMENTS = (
    *(ADD, "{}", "<>", "\n", " ", "```", "```json\n", "\n```\n", "{", "}", '"', "[", "]", "word"),
    *("<p>", "<tool_call>", "</tool_call>", '{"a": "b"}', "~~~", "\\", "Action: add"),
    *("add", "[add(", "functions.", ":0"),
)
TEXTS = st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join)


@given(TEXTS, st.lists(st.integers(0, 80), max_size=8), st.booleans())
def test_however_a_text_is_cut_the_same_of_it_is_told_and_held(text, cuts, watches_lines):
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[a:b] for a, b in itertools.pairwise(places)]
    whole = passed(*text, watches_lines=watches_lines)
    assert passed(*pieces, watches_lines=watches_lines) == whole
    assert "".join(whole) == text


@given(TEXTS)
def test_nothing_of_a_text_that_opens_with_a_call_is_told(text):
    told, _ = passed(*f"{ADD}\n{text}")
    assert told == ""


def test_a_call_on_a_line_of_its_own_after_prose_is_held_where_lines_are_watched():
    assert passed(f"{LINES}{ADD}", watches_lines=True) == (LINES, ADD)
    assert passed(f"{LINES}{ADD}") == (LINES + ADD, "")


def test_nothing_is_told_of_a_short_preamble():
    assert passed("Let me ", "look.", min_chars=20) == ("", "Let me look.")
    assert passed("Let me ", "look it up now.", min_chars=20) == ("Let me look it up now.", "")
