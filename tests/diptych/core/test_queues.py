"""The queues of a run: what joins when, one message at a time or all, and what is cleared (§6)."""

from support.feeding import feed, made, returned, started

from diptych.core.catalog import Catalog
from diptych.core.events import (
    MessageQueued,
    Offered,
    QueueCleared,
    Replied,
    RunRequested,
    StepsExhausted,
    Streamed,
)
from diptych.core.run_settings import RunSettings
from diptych.core.state import Phase, Run, conversation

ONE, TWO = (MessageQueued(text, text) for text in ("one", "two"))
LATER, LAST = (MessageQueued(text, text, is_follow_up=True) for text in ("later", "last"))
ECHO = '{"tool": "echo", "arguments": {"text": "a"}}'
ANSWER = (Replied("{}"), Streamed("Done."), Replied(""))
ALL = RunSettings(queue_mode="all")


def said(run):
    return [message.content for message in conversation(run)]


def heard(run):
    return [text for text in said(run) if text in {"one", "two", "later", "last"}]


def test_a_follow_up_begins_the_turn_after_the_answer_and_not_before():
    run, commands = feed(started("echo")[0], LATER, Replied(ECHO))
    assert len(made(commands)) == 1, "no call is skipped for it"
    run, (ask,) = feed(run, returned("call_1_1"))
    assert "later" not in ask.request.messages[-1].content
    run, (ask,) = feed(run, *ANSWER)
    assert said(run)[-2:] == ["Done.", "later"]
    assert (run.phase, ask.purpose) == (Phase.ACT, "actions")
    run, _ = feed(run, *ANSWER)
    assert run.phase is Phase.DONE


def test_follow_ups_begin_a_turn_each_or_all_of_them_one():
    run, _ = feed(started()[0], LATER, LAST, *ANSWER)
    assert heard(run) == ["later"]
    run, _ = feed(run, *ANSWER)
    assert heard(run) == ["later", "last"]
    run, _ = feed(started(settings=ALL)[0], LATER, LAST, *ANSWER)
    assert heard(run) == ["later", "last"]
    run, _ = feed(run, *ANSWER)
    assert run.phase is Phase.DONE


def test_what_steers_joins_one_at_a_time_before_each_request_or_all_at_once():
    run, _ = feed(started()[0], ONE, TWO, Replied("{}"))
    assert heard(run) == ["one"]
    run, _ = feed(run, Replied("{}"))
    assert (heard(run), run.phase) == (["one", "two"], Phase.ACT)
    run, _ = feed(started(settings=ALL)[0], ONE, TWO, Replied("{}"))
    assert heard(run) == ["one", "two"]


def test_during_the_answer_what_steers_begins_a_turn_of_its_own_before_follow_ups():
    run, _ = feed(started()[0], LATER, Replied("{}"), Streamed("Do"), ONE, TWO, Replied(""))
    assert heard(run) == ["one"]
    run, _ = feed(run, *ANSWER)
    assert heard(run) == ["one", "two"]
    run, _ = feed(run, *ANSWER)
    assert heard(run) == ["one", "two", "later"]


def test_before_the_run_begins_all_that_steers_belongs_to_the_question():
    run, (ask,) = feed(Run(), RunRequested("hi"), ONE, LATER, TWO, Offered(Catalog(), "SYSTEM"))
    assert [m.content for m in ask.request.messages][1:] == ["hi\n\none\n\ntwo"]
    assert run.queues.follow_ups == (LATER,)


def test_what_is_cleared_never_joins():
    run, _ = feed(started()[0], ONE, LATER, QueueCleared("c", ("one", "later")))
    assert (run.queues.steering, run.queues.follow_ups) == ((), ())
    run, _ = feed(run, *ANSWER)
    assert (run.phase, heard(run)) == (Phase.DONE, [])
    run, _ = feed(started()[0], ONE, QueueCleared("c", ("one",)), TWO, Replied("{}"))
    assert heard(run) == ["two"]


def test_at_max_steps_what_steers_stands_before_the_text_and_follow_ups_after_it():
    settings = RunSettings(max_steps=1)
    run, _ = feed(started("echo", settings=settings)[0], Replied(ECHO), ONE, TWO, LATER)
    run, _ = feed(run, returned("call_1_1"))
    assert isinstance(run.end, StepsExhausted)
    assert said(run)[-4:] == ["one", "two", "Reached maximum reasoning steps (1)", "later"]
