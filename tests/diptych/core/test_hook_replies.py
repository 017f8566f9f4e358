"""What follows from the replies of hooks, as pure values; asking them is in `test_hooks`."""

import pytest
from support.doubles import catalog
from support.feeding import feed, made, returned, started

from diptych.core.commands import JudgeAnswer, JudgeCall, JudgeStep
from diptych.core.events import AnswerJudged, Called, CallJudged, MessageQueued, Replied, StepJudged
from diptych.core.messages import Message, ToolCall
from diptych.core.run_settings import RunSettings

ECHO = '{"tool": "echo", "arguments": {"text": "hi"}}'


def hooked(*points, **settings):
    return started(with_offers=catalog("echo"), settings=RunSettings(9, hooks=points, **settings))


def after_a_step():
    """A run whose first step has its result, and which asks the hooks about it."""
    run, _ = hooked("afterStep")
    run, commands = feed(run, Replied(ECHO))
    [call] = made(commands)
    run, [judge] = feed(run, Called(call, 1), returned(call.id))
    assert isinstance(judge, JudgeStep)
    return run


@pytest.mark.parametrize("ends", [False, True])
def test_a_message_that_waits_is_heard_before_hooks_end_phase_1(ends):
    run, _ = feed(after_a_step(), MessageQueued("wait", "m-1"))
    run, [ask] = feed(run, StepJudged(1, ends))
    assert ask.purpose == "actions"
    assert run.messages[-1] == Message("user", "wait")


def test_an_answer_that_hooks_refuse_to_the_end_is_told_to_be_refused():
    run, _ = hooked("validateAnswer", answer_repairs=1)
    run, [judge] = feed(run, Replied("{}"), Replied("Hello."))
    assert isinstance(judge, JudgeAnswer)
    run, [judge] = feed(run, AnswerJudged("too short", "polite"), Replied("Hello you."))
    run, commands = feed(run, AnswerJudged("still too short", "polite"))
    assert commands == ()
    assert (run.end.code, run.end.text) == ("invalid_output", "Hello you.")
    assert run.end.message == "the answer was refused: still too short"


def test_a_call_is_made_denied_or_rewritten():
    run, _ = hooked("beforeCall")
    run, [judge] = feed(run, Replied(ECHO))
    assert isinstance(judge, JudgeCall)
    call_id = judge.call.id
    assert made(feed(run, CallJudged(call_id))[1]) == [judge.call]
    other = ToolCall(call_id, "echo", {"text": "ho"})
    changed, commands = feed(run, CallJudged(call_id, other, hook="polite"))
    assert made(commands) == [other]
    assert changed.progress.rewritten == {call_id}
    denied, _ = feed(run, CallJudged(call_id, denied="not now", hook="polite"))
    assert "denied: not now" in denied.messages[-1].content
