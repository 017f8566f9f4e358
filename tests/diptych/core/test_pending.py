"""What a new owner does again of what the last one was to do, and what it must not (loop.md §9)."""

import pytest
from support.doubles import catalog, tool
from support.feeding import feed, made, returned, started

from diptych.core.catalog import Catalog
from diptych.core.commands import Emit, MakeCall
from diptych.core.events import (
    ApprovalDecided,
    ApprovalRequested,
    Called,
    MessageQueued,
    Offered,
    OwnerChanged,
    Replied,
    Returned,
    RunRequested,
)
from diptych.core.prompt import OUTCOME_UNKNOWN
from diptych.core.reducer import advance, apply_all
from diptych.core.run_settings import RunSettings
from diptych.core.state import Run

CATALOG = Catalog((tool("charge"), tool("look", read_only=True), tool("put", idempotent=True)))
CHARGE, LOOK, PUT = ('{"tool": "' + name + '"}' for name in ("charge", "look", "put"))
MORE = MessageQueued("and in French", "m-1")
BAD = Replied('{"tool": "nope"}')


def calling(reply):
    """A run whose model asked for calls that are not on record as sent."""
    return feed(started(with_offers=CATALOG)[0], Replied(reply))


def sent(reply):
    """A run whose only call is on record as sent."""
    run, commands = calling(reply)
    return feed(run, Called(made(commands)[0], 1))[0]


def errors(run):
    return [(result.call_id, result.error) for result in run.results]


def test_a_call_whose_outcome_is_unknown_is_not_made_again():
    run, (ask,) = feed(sent(CHARGE), OwnerChanged())
    assert errors(run) == [("call_1_1", "unknown")]
    assert OUTCOME_UNKNOWN in ask.request.messages[-1].content


@pytest.mark.parametrize("lost_tail", [False, True])
def test_a_delegation_that_was_sent_is_taken_up_by_its_context(lost_tail):
    run, commands = feed(
        started(with_offers=catalog(agents=["writer"]))[0],
        Replied('{"agent": "writer", "task": "Write."}'),
    )
    call = made(commands)[0]
    run, again = feed(run, Called(call, 1, "context-1"), OwnerChanged(lost_tail))
    assert again == (MakeCall(call, 1, is_retry=True),)
    assert run.context_ids == {"call_1_1": "context-1"}


def test_a_delegation_that_may_have_been_sent_under_a_lost_context_is_unknown():
    run, _ = feed(
        started(with_offers=catalog(agents=["writer"]))[0],
        Replied('{"agent": "writer", "task": "Write."}'),
        OwnerChanged(lost_tail=True),
    )
    assert errors(run) == [("call_1_1", "unknown")]


@pytest.mark.parametrize("reply", [LOOK, PUT])
def test_a_call_that_does_no_harm_twice_is_made_again(reply):
    _, (again,) = feed(sent(reply), OwnerChanged())
    assert isinstance(again, MakeCall)
    assert again.is_retry


def test_where_records_were_lost_any_call_may_have_been_sent():
    run, _ = feed(calling(CHARGE)[0], OwnerChanged(lost_tail=True))
    assert errors(run) == [("call_1_1", "unknown")]
    _, (again,) = feed(calling(LOOK)[0], OwnerChanged(lost_tail=True))
    assert again == MakeCall(again.call, 1, is_retry=False)


def test_where_records_were_lost_calls_that_wait_for_others_may_have_been_sent_too():
    run, _ = calling(
        '[{"id": "a", "tool": "look"}, {"tool": "charge", "after": ["a"]},'
        ' {"tool": "look", "after": ["a"]}]'
    )
    run, (again,) = feed(run, OwnerChanged(lost_tail=True))
    assert again.call.label == "a"
    assert errors(run) == [("call_1_2", "unknown")]
    _, commands = feed(run, returned("call_1_1"))
    assert [call.id for call in made(commands)] == ["call_1_3"]


def test_a_call_that_was_not_sent_before_a_message_came_is_not_made():
    run, _ = feed(calling(CHARGE)[0], MORE)
    run, (ask,) = feed(run, OwnerChanged())
    assert errors(run) == [("call_1_1", "skipped")]
    assert MORE.message in ask.request.messages[-1].content


def test_a_rejection_that_is_not_on_record_is_recorded():
    run, commands = advance(started()[0], BAD)
    assert advance(run, OwnerChanged())[1] == commands


def test_of_two_results_that_are_to_be_written_each_is_pending_until_it_is_written():
    run, commands = calling(
        '[{"id": "a", "tool": "look"}, {"tool": "charge", "after": ["a"]},'
        ' {"tool": "put", "after": ["a"]}]'
    )
    run, _ = feed(run, Called(made(commands)[0], 1))
    run, commands = advance(run, returned("call_1_1", error="failed"))
    first, second = commands
    assert isinstance(first, Emit)
    assert run.pending == (first, second)
    run, _ = advance(run, first.event)
    assert run.pending == (second,)


# Calls that wait for a decision


def waiting(reply):
    """A run whose only call waits for a decision."""
    run, commands = calling(reply)
    return feed(run, ApprovalRequested(made(commands)[0], 1, "", 10.0))[0]


def test_what_waits_waits_with_a_new_owner():
    run, commands = feed(waiting(CHARGE), OwnerChanged())
    assert commands == ()
    assert [wait.asked.call.name for wait in run.waits] == ["charge"]
    _, (make,) = feed(run, ApprovalDecided("call_1_1", "approve", "d"))
    assert isinstance(make, MakeCall)
    assert make.is_approved


def test_an_approved_call_that_was_not_sent_is_made_without_asking_again():
    run, commands = feed(waiting(CHARGE), ApprovalDecided("call_1_1", "approve", "d"))
    assert feed(run, OwnerChanged())[1] == commands
    assert commands[0].is_approved


def test_what_waits_is_unknown_if_the_store_may_have_lost_its_approval():
    run, _ = feed(waiting(CHARGE), OwnerChanged(lost_tail=True))
    assert run.results[0].text == OUTCOME_UNKNOWN
    assert run.waits == ()


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
