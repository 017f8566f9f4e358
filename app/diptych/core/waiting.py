"""Handles questions of calls and their answers (loop.md §6).

A call that asks has started and goes on with the answer. Questions of child runs are only recorded
here: their agents enforce them, at every depth.
"""

from diptych.core.act import start_ready
from diptych.core.commands import InputAnswer, MakeCall, Resumed
from diptych.core.decisions import MAX_OPEN
from diptych.core.events import InputReceived, InputRequested
from diptych.core.pending import Next, issue
from diptych.core.state import OpenInput, Run, open_calls, updated


def may_ask(run: Run, event: InputRequested) -> bool:
    """Whether a question is valid and new.

    After a takeover, children repeat all their events; a call asks one question at a time.
    """
    call_id = event.call_id.partition(".")[0]
    is_in_flight = call_id in run.started and call_id in open_calls(run)
    if event.below:
        is_news = event.below.seq > run.asked_below.get(event.call_id, 0)
        return is_in_flight and is_news and len(run.open_inputs) < MAX_OPEN
    return is_in_flight and _opened(run, event.call_id) is None


def take_question(run: Run, event: InputRequested) -> Next:
    """Let a call wait for input; this frees its slot for another call."""
    others = tuple(each for each in run.open_inputs if each.requested.call_id != event.call_id)
    if event.below:
        opened = OpenInput(event, event.below.seq)
        run = updated(run, asked_below={**run.asked_below, event.call_id: opened.seq})
    else:
        opened = OpenInput(event, run.seq)
    return start_ready(updated(run, open_inputs=(*others, opened)))


def may_receive(run: Run, event: InputReceived) -> bool:
    """Whether an answer is to a question that is open."""
    opened = _opened(run, event.call_id)
    return opened is not None and opened.seq <= event.seq


def take_input(run: Run, event: InputReceived) -> Next:
    """Continue the call with its answer, whether or not there is a free slot."""
    opened = _opened(run, event.call_id)
    run = updated(run, open_inputs=tuple(each for each in run.open_inputs if each is not opened))
    if opened is None or opened.requested.below or event.action == "closed":
        return run, ()
    call = next(each for each in run.calls if each.id == event.call_id)
    resumed = Resumed(opened.requested.state, InputAnswer(event.action, event.content))
    is_approved = call.id in run.progress.approved
    make = MakeCall(call, run.step, is_retry=True, is_approved=is_approved, resumed=resumed)
    return issue(run, make)


def _opened(run: Run, call_id: str) -> OpenInput | None:
    return next((each for each in run.open_inputs if each.requested.call_id == call_id), None)
