"""Handles calls that wait for approval or input, and the answers (loop.md §6).

An approval is requested before the call is sent; a call that asks for input has started, and goes
on with the answer. Waits of child runs are only recorded here: their agents enforce them, at every
depth.
"""

from dataclasses import replace

from diptych.core import prompt
from diptych.core.act import start_ready
from diptych.core.call_graph import failure
from diptych.core.commands import Emit, InputAnswer, MakeCall, Resumed
from diptych.core.events import (
    Answer,
    ApprovalDecided,
    ApprovalRequested,
    Asked,
    ChildAnswered,
    ChildAsked,
    InputReceived,
    InputRequested,
)
from diptych.core.messages import Call
from diptych.core.pending import Next, issue
from diptych.core.state import OpenWait, Run, current_waits, open_calls, updated, with_call

MAX_OPEN = 1_000  # waits of a run and below it


def may_wait(run: Run, event: Asked) -> bool:
    """Whether a call may wait: it is in its stage for that, and asks one thing at a time.

    After a takeover, children repeat all their events.
    """
    own_call = event.call_id.partition(".")[0]
    if own_call not in open_calls(run):
        return False
    is_sent, is_waiting = own_call in run.started, _open_wait(run, event.call_id) is not None
    match event:
        case ApprovalRequested():
            return own_call in run.progress.issued and not is_sent and not is_waiting
        case InputRequested():
            return is_sent and not is_waiting
        case ChildAsked(seq=seq):
            is_news = seq > run.asked_below.get(event.call_id, 0)
            return is_sent and is_news and len(run.waits) < MAX_OPEN


def begin_wait(run: Run, event: Asked) -> Next:
    """Let a call wait; one of this run frees its slot for another call."""
    if not isinstance(event, ChildAsked):
        return start_ready(updated(run, waits=(*run.waits, OpenWait(event, run.seq))))
    others = (wait for wait in run.waits if wait.call_id != event.call_id)
    asked_below = {**run.asked_below, event.call_id: event.seq}
    waits = (*others, OpenWait(event, event.seq))
    return updated(run, waits=waits, asked_below=asked_below), ()


def may_end_wait(run: Run, event: Answer) -> bool:
    """Whether an answer is to what a call waits for."""
    wait = _open_wait(run, event.call_id)
    match wait and wait.asked, event:
        case ApprovalRequested(), ApprovalDecided():
            return True
        case InputRequested(), InputReceived(seq=seq):
            return wait is not None and wait.seq <= seq
        case ChildAsked(kind=kind, seq=asked_at), ChildAnswered(seq=seq):
            return kind == event.kind and asked_at <= seq
        case _:
            return False


def end_wait(run: Run, event: Answer) -> Next:
    """Go on with the answer to a call of this run."""
    wait = next(wait for wait in run.waits if wait.call_id == event.call_id)
    run = updated(run, waits=tuple(each for each in run.waits if each is not wait))
    match wait.asked, event:
        case ApprovalRequested(call), ApprovalDecided():
            return _take_decision(run, call, event)
        case InputRequested(state=state), InputReceived(action=action, content=content):
            return _continue(run, event.call_id, Resumed(state, InputAnswer(action, content)))
        case _:
            return run, ()


def _take_decision(run: Run, asked: Call, event: ApprovalDecided) -> Next:
    """Make the call as decided once there is a free slot, or reject it."""
    if event.decision == "reject":
        default = prompt.EXPIRED if event.is_expired else prompt.REJECTED
        text = f"denied: {event.reason or default}"
        return issue(run, Emit(failure(asked, "denied", text)))
    call = event.call or asked
    changed = {call.id} if event.call else set[str]()
    progress = replace(
        run.progress,
        issued=run.progress.issued - {call.id},
        passed_hooks=run.progress.passed_hooks - changed,
        approved=run.progress.approved | {call.id},
        edited=run.progress.edited | changed,
    )
    return start_ready(updated(with_call(run, call), progress=progress))


def _continue(run: Run, call_id: str, resumed: Resumed) -> Next:
    """Continue a call with its answer, whether or not there is a free slot."""
    call = next(each for each in run.calls if each.id == call_id)
    is_approved = call_id in run.progress.approved
    make = MakeCall(call, run.step, is_retry=True, is_approved=is_approved, resumed=resumed)
    return issue(run, make)


def _open_wait(run: Run, call_id: str) -> OpenWait | None:
    return next((wait for wait in current_waits(run) if wait.call_id == call_id), None)
