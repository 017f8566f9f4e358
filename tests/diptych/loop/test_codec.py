"""Rows of the log: every event has one, and comes back from it."""

import json

import pytest
from support.doubles import offers

from diptych.errors import LoopError
from diptych.loop.actions import ActionError
from diptych.loop.catalog import Offers, Tool, Unavailable
from diptych.loop.codec import EVENT_TYPES, from_row, kept_form, to_row
from diptych.loop.events import (
    Aborted,
    Answered,
    AnswerReset,
    Asked,
    Called,
    Completed,
    Exhausted,
    Failed,
    Misread,
    Origin,
    OwnerChanged,
    Replied,
    Returned,
    Steered,
    Streamed,
    Terms,
)
from diptych.loop.messages import Delegation, Message, Result, ToolCall, Usage

RICH_OFFERS = Offers(
    (Tool("calc", "add", "adds", {"type": "object", "properties": {"a": {}}}, read_only=True),),
    offers(agents=["researcher"]).agents,
    (Unavailable("server", "search", "connection refused"),),
)
OFFERED, BLOB = kept_form(RICH_OFFERS, "SYSTEM", Terms(max_steps=3))

EVENTS = [
    Asked("hi"),
    Asked("hi", (Message("user", "u"), Message("assistant", "a")), "Rhyme."),
    Asked("hi", (), "", Origin(("http://a",), "00-ab", 2.5, cancels_on_disconnect=True)),
    Steered("hi again", "m-1"),
    OFFERED,
    OwnerChanged(lost_tail=True),
    AnswerReset(7, 2),
    Replied("{}", Usage(1, 2), "stop"),
    Misread(ActionError("unknown_tool", "there is no tool x"), '{"tool": "x"}'),
    Called(ToolCall("call_1_1", "add", {"a": 1}, "a", ("b",)), 1),
    Called(ToolCall("call_1_1", "add"), 1),
    Called(Delegation("call_1_2", "researcher", "look"), 1, "context-1"),
    Returned(Result("call_1_1", "3", {"result": 3}), "tool", "add"),
    Returned(Result("call_1_1", "boom", error="failed"), "tool", "add"),
    Returned(Result("call_1_2", "found"), "agent", "researcher"),
    Returned(Result("call_1_2", "late", error="timeout"), "agent", "researcher"),
    Streamed("Hel"),
    Answered("Hello", "stop"),
    Completed("stop", Usage(3, 4)),
    Exhausted("enough", (Result("call_1_1", "3"),), Usage(3, 4)),
    Failed("model_timeout", "no byte within 60 s"),
    Aborted("by request"),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: to_row(e)[0])
def test_an_event_comes_back_from_its_row(event):
    event_type, content, metadata = json.loads(json.dumps(to_row(event)))
    assert event_type in EVENT_TYPES[type(event)]
    assert from_row(event_type, content, metadata, {OFFERED.key: BLOB}.__getitem__) == event


def test_every_event_and_every_wire_name_has_a_row_here():
    assert {type(event) for event in EVENTS} == set(EVENT_TYPES)
    names = {name for names in EVENT_TYPES.values() for name in names}
    assert {to_row(event)[0] for event in EVENTS} == names


def test_what_is_offered_is_kept_under_the_hash_of_its_content():
    again, _ = kept_form(RICH_OFFERS, "SYSTEM", Terms(max_steps=3))
    other, _ = kept_form(RICH_OFFERS, "SYSTEM", Terms(max_steps=4))
    assert again.key == OFFERED.key != other.key


def test_a_name_of_a_newer_version_is_refused():
    with pytest.raises(LoopError, match="does not know"):
        from_row("teleported", None, {}, lambda _: b"")
