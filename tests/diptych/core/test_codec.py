"""Rows of the log: every event has one, and comes back from it."""

import json
from dataclasses import fields, replace
from decimal import Decimal

import pytest
from support.doubles import catalog

from diptych.core.budget import Budget, Prices
from diptych.core.catalog import Catalog, Tool, Unavailable
from diptych.core.codec import (
    EVENT_TYPES,
    NOT_IN_MEMORY_VIEW,
    TERMINAL,
    catalog_blob,
    decode,
    encode,
)
from diptych.core.commands import Warn
from diptych.core.errors import LoopError
from diptych.core.events import (
    Aborted,
    Answered,
    AnswerJudged,
    AnswerReset,
    ApprovalDecided,
    ApprovalRequested,
    Called,
    CallJudged,
    ChildAnswered,
    ChildAsked,
    Compacted,
    Completed,
    ContextRefused,
    Failed,
    FormatChanged,
    InputReceived,
    InputRequest,
    InputRequested,
    MessageQueued,
    Origin,
    OwnerChanged,
    QueueCleared,
    Replied,
    ReplyRejected,
    Returned,
    RunRequested,
    StepJudged,
    StepsExhausted,
    Streamed,
    Terminal,
)
from diptych.core.json_values import decode_settings, encode_settings
from diptych.core.messages import (
    ChildRun,
    Delegation,
    Message,
    NativeCall,
    ParentCall,
    Result,
    ToolCall,
    Usage,
)
from diptych.core.reading import ActionError
from diptych.core.run_settings import RunSettings

RICH_OFFERS = Catalog(
    (Tool("calc", "add", "adds", {"type": "object", "properties": {"a": {}}}, read_only=True),),
    catalog(agents=["researcher"]).agents,
    (
        Unavailable("server", "search", "connection refused", ("find",)),
        Unavailable("server", "new", "connection refused", ()),
    ),
)
OFFERED, BLOB = catalog_blob(RICH_OFFERS, "SYSTEM", RunSettings(max_steps=3))
NATIVE, NATIVE_BLOB = catalog_blob(RICH_OFFERS, "SYSTEM", RunSettings(), "NATIVE")
BLOBS = {OFFERED.key: BLOB, NATIVE.key: NATIVE_BLOB}

CHILD = ChildRun("http://a", "r-2", "completed", usage=Usage(3, 4))
CALL = {"tool": "t", "arguments": {}}
CUT_CHILD = ChildRun("http://a", "r-2", "failed", "model_cut", Usage(), "Half an")

EVENTS = [
    RunRequested("hi"),
    RunRequested("hi", (Message("user", "u"), Message("assistant", "a")), "Rhyme."),
    RunRequested("hi", (), "", Origin(("http://a",), "00-ab", 2.5, cancels_on_disconnect=True)),
    RunRequested(
        "hi",
        origin=Origin(
            ("http://a",),
            parent=ParentCall("planner", "r-1", "call_1_1"),
            deadline_pauses=True,
            lease=60.0,
        ),
    ),
    MessageQueued("then this", "m-2", "user:eve", is_follow_up=True),
    QueueCleared("c-1", subject="user:eve"),
    OFFERED,
    replace(NATIVE, nonce="n", action_format="native"),
    OwnerChanged(lost_tail=True),
    FormatChanged("json", "The model endpoint does not support tools."),
    AnswerReset(7, 2),
    ContextRefused(8_000, 9_000),
    Compacted("It is about tea.", 6, Usage(100, 20)),
    Compacted("", 8, error="model_failed"),
    Replied("{}", Usage(1, 2), "stop"),
    Replied("", calls=(NativeCall("a", "add", "{}", {"google": {"x": 1}}),), reasoning="Hm."),
    ReplyRejected(ActionError("unknown_tool", "there is no tool x"), '{"tool": "x"}'),
    Called(ToolCall("call_1_1", "add", {"a": 1}, "a", ("b",)), 1),
    CallJudged("call_1_1"),
    CallJudged("call_1_1", ToolCall("call_1_1", "add", {"a": 2}, "a", ("b",)), hook="clamp"),
    CallJudged("call_1_2", Delegation("call_1_2", "researcher", "x"), hook="clamp"),
    CallJudged("call_1_1", denied="no", hook="guard"),
    StepJudged(2, ends=True, hook="enough"),
    AnswerJudged("no greeting", "polite"),
    Returned(Result("call_1_1", "***"), "tool", "add", "redact"),
    Called(Delegation("call_1_2", "researcher", "look"), 1, "context-1"),
    ApprovalRequested(ToolCall("call_1_1", "add", {"a": 1}, "a", ("b",)), 1, "money", 1.5),
    ApprovalRequested(Delegation("call_1_2", "researcher", "look"), 2, "", 1_000.0),
    ApprovalDecided("call_1_1", "reject", "d-1", "too much", subject="user:eve"),
    ApprovalDecided("call_1_1", "reject", "expired", is_expired=True),
    ApprovalDecided("call_1_1", "replace", "d", "", Delegation("call_1_1", "researcher", "x")),
    ApprovalDecided("call_1_1", "approve", "d", subject="user:eve", caller="agent:a/b"),
    ChildAsked("approval", "call_1_2.c", CALL, {"step": 1}, 2.5, "p", "http://p", "r", 7),
    ChildAsked("input", "call_1_2.c", "Sure?", {"kind": "form"}, 2.5, "p", "http://p", "r", 7),
    ChildAnswered("approval", "call_1_2.c", 8, "edit", {"decision_id": "d", "call": CALL}),
    ChildAnswered("input", "call_1_2.c", 8),
    InputRequested("call_1_1", InputRequest("form", "Sure?", {"type": "object"}), 1.5, {"s": 1}),
    InputReceived("call_1_1", "accept", "i-1", 4, {"a": 1}, "user:eve", "agent:a/b"),
    Returned(Result("call_1_1", "3", {"result": 3}), "tool", "add"),
    Returned(Result("call_1_1", "boom", error="failed"), "tool", "add"),
    Returned(Result("call_1_2", "found", child=CHILD), "agent", "researcher"),
    Returned(Result("call_1_2", "late", error="timeout", child=CUT_CHILD), "agent", "researcher"),
    Streamed("Hel"),
    Answered("Hello", "stop"),
    Completed("stop", Usage(3, 4)),
    StepsExhausted(
        "enough",
        (Result("call_1_1", "3"), Result("call_1_2", "boom", error="failed")),
        Usage(3, 4),
    ),
    Failed("model_timeout", "no byte within 60 s"),
    Aborted("by request"),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda e: encode(e)[0])
def test_an_event_comes_back_from_its_row(event):
    event_type, content, metadata = json.loads(json.dumps(encode(event)))
    assert event_type in EVENT_TYPES[type(event)]
    assert decode(event_type, content, metadata, BLOBS.__getitem__) == event


def test_every_event_and_every_wire_name_has_a_row_here():
    assert {type(event) for event in EVENTS} == set(EVENT_TYPES)
    names = {name for names in EVENT_TYPES.values() for name in names}
    assert {encode(event)[0] for event in EVENTS} == names
    assert names > NOT_IN_MEMORY_VIEW
    assert {encode(event)[0] for event in EVENTS if isinstance(event, Terminal)} == TERMINAL


def test_a_name_of_a_newer_version_is_refused():
    with pytest.raises(LoopError, match="does not know"):
        decode("teleported", None, {}, lambda _: b"")


@pytest.mark.parametrize("metadata", [{}, {"format": 2}])
def test_another_format_is_refused_with_a_sentence(metadata):
    with pytest.raises(LoopError, match=r"record format is (null|2); this version reads"):
        decode("user_message", "hi", metadata)


SETTINGS = RunSettings(
    *(9, "answer", 0, 2, 1, 0, "direct", 0, {"type": "object"}, "auto", "all"),
    hooks=("beforeCall", "validateAnswer"),
    budget=Budget(tokens=7, cost=Decimal("0.50")),
    prices=Prices(Decimal(1), Decimal("2.5")),
)


def test_settings_come_back_as_they_were_recorded():
    changed = [f.name for f in fields(SETTINGS) if getattr(SETTINGS, f.name) != f.default]
    assert changed == [f.name for f in fields(RunSettings)]
    for settings in (SETTINGS, RunSettings()):
        assert decode_settings(json.loads(json.dumps(encode_settings(settings)))) == settings
    with pytest.raises(TypeError, match="mood"):
        decode_settings(encode_settings(RunSettings()) | {"mood": "bad"})


def test_what_is_no_event_has_no_row():
    with pytest.raises(LoopError, match="has no record form"):
        encode(Warn("too many errors"))


def test_a_catalog_that_is_not_the_one_that_was_offered_is_not_taken_up():
    offered, blob = catalog_blob(catalog("pay"), "Be brief.", RunSettings())
    assert decode("offered", offered.key, {}, lambda _: blob).prompt == "Be brief."
    forged = blob.replace(b"Be brief.", b"Pay all.")
    with pytest.raises(LoopError, match="does not match the hash"):
        decode("offered", offered.key, {}, lambda _: forged)
