"""Reasoning in front of a streamed answer: it is taken off, however the text is cut in pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych.loop.actions import strip_lead
from diptych.loop.actions.leading_reasoning import ReasoningFilter

PIECES = st.sampled_from(
    [*"<>/ \nab", "<think>", "</think>", "<thi", "nk>", "</th", "ink>", "\ufeff"]
)


def streamed(*pieces):
    """Give the text that each piece lets through, what the end brings, and the reasoning."""
    lead = ReasoningFilter()
    texts = [lead.feed(piece) if lead.is_open else piece for piece in pieces]
    return [*texts, *([lead.finish()] if lead.is_open else [])], lead.reasoning


@pytest.mark.parametrize(
    ("pieces", "texts", "reasoning"),
    [
        pytest.param(["Hel", "lo"], ["Hel", "lo"], "", id="text at once"),
        pytest.param([" ", "\n", " Hi"], ["", "", " \n Hi"], "", id="blanks with the text"),
        pytest.param([" ", "\n"], ["", "", ""], "", id="blanks alone are nothing"),
        pytest.param([], [""], "", id="nothing"),
        pytest.param(["<", "b>"], ["", "<b>"], "", id="another tag, when it shows"),
        pytest.param(["<thi"], ["", "<thi"], "", id="half a tag, at the end"),
        pytest.param(
            ["<think>hm", "hm", "</think>", "\n\nHi", " you"],
            ["", "", "", "Hi", " you"],
            "hmhm",
            id="reasoning in pieces",
        ),
        pytest.param(["<th", "ink>hm</th", "ink>Hi"], ["", "", "Hi"], "hm", id="tags that are cut"),
        pytest.param(
            ["<think>a", "</think>", "<think>b", "</think>c"],
            ["", "", "", "c"],
            "a\n\nb",
            id="reasoning twice",
        ),
        pytest.param(["\ufeff", "<think>a</think>", "b"], ["", "", "b"], "a", id="a mark"),
        pytest.param(["<think>hm", "hm"], ["", "", ""], "hmhm", id="reasoning without end"),
        pytest.param(["<think></think>", " ", "Hi"], ["", "", "Hi"], "", id="empty reasoning"),
        pytest.param(["a<think>b</think>"], ["a<think>b</think>"], "", id="not at the front"),
    ],
)
def test_an_answer_begins_after_its_reasoning(pieces, texts, reasoning):
    assert streamed(*pieces) == (texts, reasoning)


@given(st.lists(PIECES, max_size=12))
def test_however_it_is_cut_the_same_comes_out_as_of_the_whole(pieces):
    texts, reasoning = streamed(*pieces)
    text, thoughts = strip_lead("".join(pieces))
    assert "".join(texts).strip() == text.strip()
    assert reasoning == thoughts
