"""What is learned of a model's context window, and what is not believed."""

import pytest
from support.feeding import feed, started

from diptych.core.catalog import Catalog
from diptych.core.commands import AskModel
from diptych.core.context_window import LEAST_LIMIT, ContextWindow
from diptych.core.events import ContextRefused, Offered, RunRequested
from diptych.core.messages import Message
from diptych.core.run_settings import RunSettings
from diptych.core.state import Run


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


def test_a_window_that_is_told_again_is_not_smaller_for_that():
    first = ContextWindow().refused(4_000, 1_000, 3_162)
    again = first.refused(1_069, 1_000, 1_278)
    assert (first.limit, again.limit) == (1_000, 1_000)
    assert again.factor == 1_278 / 1_069
    silent = ContextWindow().refused(4_000, None, None)
    assert silent.refused(3_000, None, None).limit == 1_500


def test_a_request_that_may_just_fit_is_sent_and_one_that_cannot_is_not():
    window = ContextWindow(1_000, factor=1.0, is_measured=True)
    for words, is_sent in ((800, True), (6_000, False)):
        run, commands = begun_with("word " * words, window)
        assert any(isinstance(c, AskModel) for c in commands) == is_sent
        assert (run.end is None) == is_sent


def begun_with(question, window):
    offered = Offered(Catalog(), "SYSTEM", RunSettings(), window=window)
    return feed(Run(), RunRequested(question), offered)
