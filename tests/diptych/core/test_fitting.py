"""What of a conversation is sent, over conversations of any form (loop.md §11)."""

import json
from dataclasses import replace
from itertools import chain

from hypothesis import given, settings
from hypothesis import strategies as st
from support.feeding import feed, started

from diptych.core import prompt
from diptych.core.catalog import Catalog
from diptych.core.commands import AskModel
from diptych.core.context_window import ContextWindow
from diptych.core.events import ContextRefused, Offered, RunRequested
from diptych.core.fitting import FULL, LARGEST, fit, summarised
from diptych.core.messages import Message, NativeCall
from diptych.core.run_settings import RunSettings
from diptych.core.state import Phase, Question, Run
from diptych.core.tokens import message_weight

TEXTS = st.builds(
    lambda unit, times: unit * times,
    st.sampled_from(["a word or two ", "3141592653", "茶は左。", '{"k": [1, 2]}, ', "c2VjcmV0"]),
    st.integers(1, 300),
)


def json_step(texts):
    told = "".join(f"\n\n[Step 1/5] Result of tool f:\n{text}" for text in texts)
    places, end = [], 0
    for text in texts:
        start = told.index(text, end)
        end = start + len(text)
        places.append((start, end))
    call = json.dumps({"tool": "f", "arguments": {}})
    return [Message("assistant", call), Message("user", told, results=tuple(places))]


def native_step(texts):
    calls = tuple(NativeCall(f"c{n}", "f", json.dumps({"x": "y" * n})) for n in range(len(texts)))
    results = [Message("tool", text, call_id=f"c{n}") for n, text in enumerate(texts)]
    return [Message("assistant", "", calls), *results]


def turn(question, steps, answer):
    return [Message("user", question), *chain(*steps), Message("assistant", answer)]


STEPS = st.lists(TEXTS, min_size=1, max_size=4).flatmap(
    lambda texts: st.sampled_from([json_step(texts), native_step(texts)])
)
SUMMARIES = st.builds(
    lambda keeps, text: [Message("user", prompt.summary(text), keeps=keeps)],
    st.integers(0, 9),
    st.sampled_from(["It was about tea.", ""]),
)
PARTS = st.builds(turn, TEXTS, st.lists(STEPS, max_size=4), TEXTS) | SUMMARIES
WINDOWS = st.builds(
    lambda limit, factor, done: ContextWindow(limit, factor, True, has_compacted=done),
    st.integers(512, 30_000),
    st.floats(0.5, 8),
    st.booleans(),
)


@st.composite
def runs(draw):
    history = chain(*draw(st.lists(PARTS, max_size=8)))
    own = [Message("user", draw(TEXTS)), *chain(*draw(st.lists(STEPS, max_size=5)))]
    return Run(
        tuple(history), Phase.ACT, messages=tuple(own), asked=Question(at=0), window=draw(WINDOWS)
    )


def ties(messages):
    """The messages that may not be without the one before: all results of calls."""
    return [m.role == "tool" or "[Step " in m.content for m in messages]


@settings(max_examples=60, deadline=None)
@given(runs())
def test_what_is_sent_fits_and_parts_no_call_from_its_result(run):
    fitted = fit(run)
    sent, window = fitted.messages, run.window
    if fitted.cut is None:
        question = run.messages[0]
        fits = fitted.weight <= window.weight(FULL)
        assert fits or len(sent) <= 2 + sum(ties(sent))  # only the question and the last step
        assert question in sent
    for n, is_tied in enumerate(ties(sent)):
        if is_tied:
            assert n > 0
            assert sent[n - 1].role == "tool" or sent[n - 1].role == "assistant"
    calls = [call.id for m in sent for call in m.calls]
    assert calls == [m.call_id for m in sent if m.role == "tool"]
    for message in sent:
        if message != run.messages[0] and not message.results:
            assert message_weight(message) <= window.weight(LARGEST) * 1.2 + 450
        for call in message.calls:
            json.loads(call.arguments)


@settings(max_examples=40, deadline=None)
@given(runs())
def test_a_summary_makes_it_smaller_and_keeps_the_newest(run):
    cut = fit(run).cut
    if cut is None:
        return
    said = run.history + run.messages
    assert said[cut].role in {"user", "assistant"}
    assert len(said) - cut >= 6
    assert summarised(run, cut)
    summary = Message("user", prompt.summary("It was about tea."), keeps=len(said) - cut)
    window = replace(run.window, has_compacted=True)
    after = replace(run, messages=(*run.messages, summary), window=window)
    shown = fit(after)
    assert shown.cut is None
    texts = [m.content for m in shown.messages]
    assert sum(text == summary.content for text in texts) <= 1
    assert run.messages[0].content in texts


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
