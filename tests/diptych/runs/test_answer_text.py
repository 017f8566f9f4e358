"""The text of an answer: merged in time, and held against what was told before."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.virtual_time import run_virtually

from diptych.runs.answer_filter import AnswerReplay
from diptych.runs.inbox import TEXT_INTERVAL, TextBatcher, TextDue


def retold(told, *pieces):
    """Give what is told of an answer that comes again, and how often it was started over."""
    resets = []
    replay = AnswerReplay(told, lambda: resets.append(1))
    texts = [replay.new_text(piece) for piece in pieces]
    return "".join([*texts, replay.finish()]), len(resets)


@pytest.mark.parametrize(
    ("told", "pieces", "expected"),
    [
        pytest.param("", ["a", "b"], ("ab", 0), id="nothing was told"),
        pytest.param("", [], ("", 0), id="nothing was told and nothing comes"),
        pytest.param("abc", ["a", "bc"], ("", 0), id="the same"),
        pytest.param("abc", ["ab", "cd", "e"], ("de", 0), id="the same and more, in one piece"),
        pytest.param("abc", ["abc", "", "d"], ("d", 0), id="the same and more"),
        pytest.param("abc", ["x"], ("x", 1), id="other from the start"),
        pytest.param("abc", ["a", "bx", "yz"], ("abxyz", 1), id="other in the middle"),
        pytest.param("abc", ["abx", "c"], ("abxc", 1), id="other at the end"),
        pytest.param("abc", ["ab"], ("ab", 1), id="shorter"),
        pytest.param("abc", [], ("", 1), id="nothing comes"),
        pytest.param("abc", ["", ""], ("", 1), id="only blanks come"),
    ],
)
def test_of_an_answer_that_comes_again_only_what_is_new_is_told(told, pieces, expected):
    assert retold(told, *pieces) == expected


@given(st.text("ab", max_size=8), st.lists(st.text("ab", max_size=4), max_size=5))
def test_however_it_is_cut_readers_end_with_the_new_text(told, pieces):
    new = "".join(pieces)
    text, resets = retold(told, *pieces)
    if new.startswith(told):
        assert (told + text, resets) == (new, 0)
    else:
        assert (text, resets) == (new, 1)


async def _batches(*arrivals):
    """Add texts, each so many seconds after the one before; give each batch with its time."""
    batches = []
    loop, inbox = asyncio.get_running_loop(), asyncio.Queue()
    pieces = TextBatcher(inbox)
    begun = loop.time()

    async def take():
        while True:
            assert await inbox.get() == TextDue()
            batches.append((round(loop.time() - begun, 3), pieces.take()[1]))

    taking = asyncio.create_task(take())
    for seconds, text in arrivals:
        await asyncio.sleep(seconds)
        pieces.add(text)
    await asyncio.sleep(1)
    taking.cancel()
    assert not pieces.has_text
    return batches


@pytest.mark.parametrize(
    ("arrivals", "batches"),
    [
        pytest.param([(0, "a")], [(0, "a")], id="the first at once"),
        pytest.param(
            [(0, "a"), (0.01, "b"), (0.01, "c")],
            [(0, "a"), (TEXT_INTERVAL, "bc")],
            id="what comes within the interval together",
        ),
        pytest.param([(0, "a"), (0.1, "b")], [(0, "a"), (0.1, "b")], id="what comes later at once"),
        pytest.param([(0, ""), (0.1, "b")], [(0.1, "b")], id="nothing is no piece"),
    ],
)
def test_pieces_are_merged_in_time(arrivals, batches):
    assert run_virtually(_batches(*arrivals)) == batches


def test_what_is_taken_early_is_not_due_again():
    async def take():
        inbox = asyncio.Queue()
        pieces = TextBatcher(inbox)
        pieces.add("a")
        pieces.take()
        pieces.add("b")
        assert pieces.take() == (False, "b")
        await asyncio.sleep(1)
        assert pieces.take() == (False, "")
        return inbox.qsize()

    assert run_virtually(take()) == 2  # the second finds nothing
