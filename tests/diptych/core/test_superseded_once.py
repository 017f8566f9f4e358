"""A message supersedes a call that waits once, however many results come at the same time."""

from support.doubles import catalog

from diptych.core.commands import Emit
from diptych.core.events import (
    ApprovalRequested,
    Called,
    MessageQueued,
    Offered,
    OwnerChanged,
    Replied,
    Returned,
    RunRequested,
)
from diptych.core.reducer import advance, apply_all
from diptych.core.run_settings import RunSettings
from diptych.core.state import Run

CALLS = '[{"tool": "a"}, {"tool": "b"}, {"tool": "c"}]'


def test_a_call_that_waits_is_skipped_once_when_two_others_are_unknown():
    offered = Offered(catalog("a", "b", "c"), "SYSTEM", RunSettings())
    run = apply_all(Run(), [RunRequested("hi"), offered, Replied(CALLS)])
    a, b, c = run.calls
    events = [ApprovalRequested(c, 1, "", 9.0), Called(a, 1), Called(b, 1)]
    run = apply_all(run, [*events, OwnerChanged()])
    run = apply_all(run, [MessageQueued("stop", "m-1")])
    emitted, todo = [], [c for c in run.pending if isinstance(c, Emit)]
    while todo:
        emit = todo.pop(0)
        assert isinstance(emit.event, Returned)
        emitted.append(emit.event.result.call_id)
        run, more = advance(run, emit.event)
        todo += [c for c in more if isinstance(c, Emit)]
    assert sorted(emitted) == ["call_1_1", "call_1_2", "call_1_3"]


def test_calls_that_a_message_superseded_are_not_unknown_too_when_records_were_lost():
    offered = Offered(catalog("a", "b"), "SYSTEM", RunSettings())
    run = apply_all(Run(), [RunRequested("hi"), offered, Replied(CALLS.replace("c", "b"))])
    waiting = [ApprovalRequested(call, 1, "", 9.0) for call in run.calls]
    run = apply_all(run, [*waiting, MessageQueued("stop", "m-1"), OwnerChanged(lost_tail=True)])
    results = [c.event.result for c in run.pending if isinstance(c, Emit)]
    assert [result.call_id for result in results] == [call.id for call in run.calls]
    assert {result.error for result in results} == {"skipped"}
