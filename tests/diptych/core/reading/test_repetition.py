"""Text that repeats itself without end is found, and nothing else is."""

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych.core.reading import RepetitionFilter, repetition_end

CHANCE = random.Random(7)
WORDS = ("the", "a", "of", "one", "two", "to", "in", "it", "is", "that", "was", "for", "on", "are")


def prose(length):
    return " ".join(CHANCE.choice(WORDS) for _ in range(length))[:length]


def unit(length):
    return "".join(CHANCE.choice("abcdefghij \n") for _ in range(length))


@pytest.mark.parametrize("length", [1, 2, 7, 50, 199, 200, 201, 300, 777, 1000, 3999, 4000])
@pytest.mark.parametrize("lead", [0, 1, 1234])
def test_a_loop_is_found_soon_after_its_fifth_time(length, lead):
    one = unit(length)
    most = -(-200 // length) * length
    text = prose(lead) + one * (6 * most // length + 400 // length + 1)
    end = repetition_end(text)
    assert end is not None
    assert end <= lead + 5 * most + 200
    assert repetition_end(prose(lead) + one * (4 * most // length)) is None


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(prose(100_000), id="words"),
        pytest.param("".join(f"{n}. Buy some milk and bread.\n" for n in range(5000)), id="a list"),
        pytest.param((unit(4500)) * 9, id="a loop that is longer than it may be"),
    ],
)
def test_other_text_is_left_alone(text):
    assert repetition_end(text) is None


@given(
    st.integers(0, 3000), st.integers(1, 600), st.lists(st.integers(1, 900), min_size=1), st.data()
)
def test_a_stream_is_cut_where_the_whole_is(lead, length, sizes, data):
    text = prose(lead) + unit(length) * data.draw(st.integers(1, 1 + 4000 // length)) + prose(500)
    stream, given_out, at, n = RepetitionFilter(), "", 0, 0
    while at < len(text):
        piece = text[at : at + sizes[n % len(sizes)]]
        given_out += stream.feed(piece)
        at, n = at + len(piece), n + 1
    end = repetition_end(text)
    assert given_out == text[:end]
    assert stream.is_cut == (end is not None)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(unit(4000) * 4 + unit(4000), id="four times, then no more"),
        pytest.param(prose(5000), id="words"),
    ],
)
def test_a_megabyte_takes_no_time(text):
    text *= 1 + 1_000_000 // len(text)
    changing = "".join(f"{text[n : n + 997]}{n}" for n in range(0, len(text), 997))
    begin = time.process_time()
    repetition_end(changing)
    assert time.process_time() - begin < 1.5
    stream = RepetitionFilter()
    begin = time.process_time()
    for n in range(0, len(changing), 4):
        stream.feed(changing[n : n + 4])
    assert time.process_time() - begin < 3
