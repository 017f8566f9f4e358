"""Calls that wait, in the reducer: which go on, and what a new owner may do."""

from dataclasses import replace

import pytest
from support.doubles import catalog, tool
from support.feeding import feed, made, returned, started

from diptych.core.catalog import Catalog
from diptych.core.commands import Emit, InputAnswer, MakeCall, Resumed
from diptych.core.errors import LoopError
from diptych.core.events import (
    Called,
    CallJudged,
    ChildAnswered,
    ChildAsked,
    InputReceived,
    InputRequest,
    InputRequested,
    MessageQueued,
    OwnerChanged,
    Replied,
)
from diptych.core.prompt import OUTCOME_UNKNOWN
from diptych.core.reducer import advance
from diptych.core.run_settings import RunSettings
from diptych.core.waiting import MAX_OPEN, may_wait

CATALOG = Catalog((tool("charge"), tool("look", read_only=True)))
SURE = InputRequest("form", "Sure?", {"type": "object"})
ID = "call_1_1"


def sent(*names, most=8, sequential=False):
    """A run with calls that are on record as sent, as far as slots allow."""
    tools = Catalog(tuple(tool(n, sequential=sequential) for n in {*names} - {"charge", "look"}))
    offers = Catalog((*CATALOG.tools, *tools.tools))
    reply = ", ".join(f'{{"tool": "{name}"}}' for name in names)
    settings = RunSettings(max_parallel_calls=most)
    run, commands = feed(started(settings=settings, with_offers=offers)[0], Replied(f"[{reply}]"))
    return feed(run, *(Called(call, 1) for call in made(commands)))[0]


def asking(run, state=None, call_id=ID):
    return feed(run, InputRequested(call_id, SURE, 10.0, state))


def received(run, action="accept", content=None, call_id=ID):
    [wait] = [wait for wait in run.waits if wait.call_id == call_id]
    return InputReceived(call_id, action, "i", wait.seq, content)


def resumed(call, state, action="accept", content=None):
    return MakeCall(call, 1, is_retry=True, resumed=Resumed(state, InputAnswer(action, content)))


def test_a_call_that_asks_frees_its_slot_and_goes_on_with_the_answer():
    run, commands = asking(sent("charge", "look", most=1))
    assert [call.name for call in made(commands)] == ["look"]
    run, commands = feed(run, received(run, content={"a": 1}))
    assert commands == (resumed(run.calls[0], None, content={"a": 1}),)
    run, _ = feed(run, Called(run.calls[1], 1), returned(ID), returned("call_1_2"))
    assert run.waits == ()


def test_a_sequential_call_that_asks_still_keeps_others_off_its_server():
    _, commands = asking(sent("one", "one", most=8, sequential=True))
    assert commands == ()


def test_a_call_may_ask_again_and_an_answer_to_the_question_before_is_none():
    run, _ = asking(sent("charge"))
    first = received(run)
    run, _ = asking(feed(run, first)[0])
    with pytest.raises(LoopError):
        advance(run, first)
    with pytest.raises(LoopError):
        advance(run, InputRequested(ID, SURE, 10.0))  # one at a time
    assert feed(run, received(run, "decline"))[0].waits == ()


@pytest.mark.parametrize("name", ["charge", "look"])
def test_a_question_with_a_state_waits_for_the_next_owner(name):
    run, _ = asking(sent(name), {"round": 2})
    run, commands = feed(run, OwnerChanged())
    assert commands == ()
    run, commands = feed(run, received(run, content={"a": 1}))
    assert commands == (resumed(run.calls[0], {"round": 2}, content={"a": 1}),)


def test_a_call_that_may_have_got_its_answer_is_not_made_again_unless_it_is_repeatable():
    run, _ = asking(sent("charge", "look"), 1)
    run, _ = asking(run, 2, "call_1_2")
    run, _ = feed(run, received(run), received(run, call_id="call_1_2"))
    run, commands = feed(run, OwnerChanged())
    assert [r.text for r in run.results] == [OUTCOME_UNKNOWN]
    assert commands == (resumed(run.calls[1], 2),)


@pytest.mark.parametrize("steering", [False, True])
@pytest.mark.parametrize(("state", "lost_tail"), [(None, False), (None, True), (1, True)])
def test_a_question_whose_connection_is_gone_is_ended(state, lost_tail, steering):
    run, _ = asking(sent("charge", "look"), state)
    run, _ = asking(run, state, "call_1_2")
    if steering:  # and what cancels the questions was not logged any more
        run, commands = advance(run, MessageQueued("more", "m"))
        assert [type(command.event) for command in commands] == [InputReceived] * 2
    run, commands = feed(run, OwnerChanged(lost_tail))
    assert [(r.call_id, r.text) for r in run.results] == [(ID, OUTCOME_UNKNOWN)]
    assert commands == (resumed(run.calls[1], state, "cancel"),)
    assert run.waits == ()


def test_a_message_that_steers_cancels_questions_now_and_later():
    run, commands = advance(asking(sent("charge"), 1)[0], MessageQueued("more", "m"))
    assert commands == (Emit(InputReceived(ID, "cancel", "superseded", run.seq - 1)),)
    run, commands = advance(run, commands[0].event)
    assert commands == (resumed(run.calls[0], 1, "cancel"),)
    run, commands = asking(run)
    assert commands == (resumed(run.calls[0], None, "cancel"),)


@pytest.mark.parametrize("kind", ["approval", "input"])
def test_waits_below_are_known_once_and_end_with_their_delegation(kind):
    offers = catalog(agents=["a"])
    run, commands = feed(started(with_offers=offers)[0], Replied('{"agent": "a", "task": "t"}'))
    path = "call_1_1.call_2_1"
    asked = ChildAsked(kind, path, "?", {}, 10.0, "a", "http://a", "r", 4)
    with pytest.raises(LoopError):
        advance(run, asked)  # nothing is delegated yet
    run, _ = feed(run, Called(made(commands)[0], 1, "c"))
    run, _ = feed(run, asked)
    assert [wait.own_call for wait in run.waits] == [ID]
    other = "input" if kind == "approval" else "approval"
    for stale in (ChildAnswered(kind, path, 3), ChildAnswered(other, path, 5)):
        with pytest.raises(LoopError):
            advance(run, stale)
    answered, commands = advance(run, ChildAnswered(kind, path, 5, "accept"))
    assert (answered.waits, commands) == ((), ())
    with pytest.raises(LoopError):
        advance(answered, asked)  # told again after a takeover
    again = replace(asked, seq=7)
    assert [wait.seq for wait in advance(run, again)[0].waits] == [7]
    assert feed(run, returned(ID))[0].waits == ()


def test_a_run_keeps_a_bounded_number_of_waits_below_it():
    offers = catalog(agents=["a"])
    run, commands = feed(started(with_offers=offers)[0], Replied('{"agent": "a", "task": "t"}'))
    run, _ = feed(run, Called(made(commands)[0], 1, "c"))
    asked = ChildAsked("input", "", "?", {}, 10.0, "a", "http://a", "r", 4)
    each = [replace(asked, call_id=f"{ID}.call_{n}") for n in range(MAX_OPEN + 1)]
    assert not may_wait(feed(run, *each[:-1])[0], each[-1])


WITH_CALLERS = Catalog((*CATALOG.tools, tool("w", server="caller"), tool("v", server="caller")))
MIXED = """[{"tool": "w", "id": "w"}, {"tool": "look"}, {"tool": "v"},
    {"tool": "charge", "after": ["w"]}]"""


@pytest.mark.parametrize("hooks", [(), ("beforeCall",)])
def test_calls_of_the_callers_tools_begin_together_once_no_other_can_go_on(hooks):
    settings = RunSettings(max_parallel_calls=1, hooks=hooks)
    run, commands = feed(started(settings=settings, with_offers=WITH_CALLERS)[0], Replied(MIXED))
    if hooks:
        run, commands = feed(run, CallJudged(ID), CallJudged("call_1_3"))
        assert commands == ()
        run, commands = feed(run, CallJudged("call_1_2"))
    assert [call.name for call in made(commands)] == ["look"]
    run, commands = feed(run, Called(made(commands)[0], 1), returned("call_1_2"))
    assert [call.name for call in made(commands)] == ["w", "v"]
    run, _ = feed(run, *(Called(call, 1) for call in made(commands)))
    run, commands = asking(asking(run, {})[0], {}, "call_1_3")
    assert commands == ()
    run, commands = feed(run, received(run), OwnerChanged())
    assert commands == (resumed(run.calls[0], {}),)  # the next owner has the result
    _, commands = feed(run, returned(ID))
    due = [command.call for command in commands]
    assert [call.name for call in due] == ["charge"]
