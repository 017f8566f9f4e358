"""What is learned of a model's context window, and what is not believed."""

import pytest
from support.feeding import feed, started

from diptych.loop.commands import AskModel
from diptych.loop.context_window import LEAST_LIMIT, ContextWindow
from diptych.loop.events import ContextRefused
from diptych.loop.messages import Message


@pytest.mark.parametrize("told", [8, 1, 511])
def test_a_window_in_which_nothing_has_room_is_not_believed(told):
    """As "maximum context length is 8 tokens", from an endpoint or from our reading of it."""
    silent = ContextWindow().refused(4_000, None, 5_000)
    assert ContextWindow().refused(4_000, told, 5_000) == silent
    assert silent.limit == 3_750
    assert ContextWindow(8_000).refused(4_000, told, None).limit == 3_000


@pytest.mark.parametrize("told", [None, 8])
def test_no_window_below_the_least_is_learned(told):
    window = ContextWindow()
    for _ in range(4):
        window = window.refused(100, told, None)
    assert window.limit == LEAST_LIMIT
    assert ContextWindow().refused(4_000, LEAST_LIMIT, 5_000).limit == LEAST_LIMIT


def test_a_run_goes_on_after_a_refusal_that_tells_nonsense():
    long = Message("user", "word " * 4_000), Message("assistant", "yes " * 4_000)
    run, _ = started("calc", history=long)
    run, (ask,) = feed(run, ContextRefused(8, None))
    assert isinstance(ask, AskModel)
    assert run.end is None
