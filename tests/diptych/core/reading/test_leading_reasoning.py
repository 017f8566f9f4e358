"""Reasoning in front of a reply: it is taken off, however the text is cut in pieces."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych.core.reading import strip_lead
from diptych.core.reading.leading_reasoning import ReasoningSplitter

PIECES = st.sampled_from(
    [
        *"<>/ \nab`",
        *("<think>", "</think>", "<thi", "nk>", "</th", "ink>", "\ufeff", "<thinking>", "[THINK]"),
        *("</thinking>", "[/THINK]", "<|channel|>", "analysis", "final", "<|message|>", "<|end|>"),
        *("<|start|>", "assistant", "commentary", " to=x", "<|return|>", "<|cha", "nnel|>"),
    ]
)
ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
START = "<|start|>assistant"


@pytest.mark.parametrize(
    ("reply", "text", "reasoning"),
    [
        pytest.param("\ufeff Hello", " Hello", "", id="a mark"),
        pytest.param("<|channel>thought\na<channel|>b", "b", "a", id="Gemma's"),
        pytest.param(
            "a\n[BEGIN FINAL RESPONSE]\nb\n[END FINAL RESPONSE]", "b\n", "a", id="Apriel's"
        ),
        pytest.param(" \ufeff<think>a</think>Hello", "Hello", "a", id="blanks, a mark, reasoning"),
        pytest.param("<think>a</think> <think>b</think> c", "c", "a\n\nb", id="reasoning twice"),
        pytest.param("<think>a", "", "a", id="reasoning without end"),
        pytest.param("Well <think>a</think>", "Well <think>a</think>", "", id="not at the front"),
        pytest.param("a\nb\n</think>\n\nHello", "Hello", "a\nb", id="an end alone"),
        pytest.param("It ends with `</think>`.", "It ends with `</think>`.", "", id="in code"),
        pytest.param(f"{ANALYSIS}a<|end|>{START}{FINAL}b<|return|>", "b", "a", id="gpt-oss"),
        pytest.param(
            f"{ANALYSIS}a<|end|>{START}<|channel|>commentary to=functions.x <|message|>{{}}",
            f"{START}<|channel|>commentary to=functions.x <|message|>{{}}",
            "a",
            id="gpt-oss with a call",
        ),
    ],
)
def test_the_lead_is_taken_off(reply: str, text: str, reasoning: str) -> None:
    assert strip_lead(reply) == (text, reasoning)
    assert joined(list(reply)) == (text.strip(), reasoning)


def joined(pieces):
    """Give the text and the reasoning that a stream in these pieces comes to."""
    splitter = ReasoningSplitter()
    text, reasoning = "", ""
    for split in [*map(splitter.feed, pieces), splitter.finish()]:
        if split.is_void:
            text, reasoning = "", text + reasoning
        text, reasoning = text + split.text, reasoning + split.reasoning
    return text.strip(), reasoning.strip()


@given(st.lists(PIECES, max_size=14))
def test_however_it_is_cut_the_same_comes_out_as_of_the_whole(pieces):
    text, reasoning = strip_lead("".join(pieces))
    streamed_text, thoughts = joined(pieces)
    assert streamed_text == text.strip()
    assert thoughts.split() == reasoning.split()


def test_reasoning_is_given_out_as_it_comes():
    splitter = ReasoningSplitter()
    pieces = ["<thi", "nk>Let me", " see", ".</th", "ink>", "\n\n", "Hi", " you"]
    assert [tuple(splitter.feed(piece)) for piece in pieces] == [
        ("", "", False),
        ("", "Let me", False),
        ("", " see", False),
        ("", ".", False),
        ("", "", False),
        ("", "", False),
        ("Hi", "", False),
        (" you", "", False),
    ]


def test_text_that_turns_out_to_be_reasoning_is_void():
    splitter = ReasoningSplitter()
    assert splitter.feed("Let me see") == ("Let me see", "", False)
    assert splitter.feed(".\n</thi") == (".\n", "", False)
    assert splitter.feed("nk>\n\nHi") == ("Hi", "", True)
    assert splitter.feed(" </think>") == (" </think>", "", False)


@pytest.mark.parametrize("end", ["</think>", "[/THINK]"])
def test_a_block_that_is_known_to_be_open_ends_in_any_form(end):
    for pieces in (f"a b{end}\n\nHi", [f"a b{end}\n\nHi"]):
        splitter = ReasoningSplitter(opened=True)
        splits = [*map(splitter.feed, pieces), splitter.finish()]
        assert "".join(split.text for split in splits) == "Hi"
        assert "".join(split.reasoning for split in splits) == "a b"
        assert splitter.closed_first


@pytest.mark.parametrize(
    "reply",
    [
        "<think>a</think>Hi",
        f"{ANALYSIS}a<|end|>{START}{FINAL}Hi<|return|>",
    ],
)
def test_a_reply_that_opens_its_reasoning_itself_is_read_so_whatever_is_known(reply):
    for pieces in (reply, [reply]):
        splitter = ReasoningSplitter(opened=True)
        splits = [*map(splitter.feed, pieces), splitter.finish()]
        assert "".join(split.text for split in splits) == "Hi"
        assert "".join(split.reasoning for split in splits) in ("a", "")
        assert not splitter.closed_first


def test_a_long_reply_is_split_in_no_time():
    for unit in ("<think></think>", "a <", "</think>", "<|channel|>", f"{ANALYSIS}a<|end|>"):
        reply = unit * (300_000 // len(unit))
        begin = time.process_time()
        strip_lead(reply)
        assert time.process_time() - begin < 1
