"""Approvals: calls of a step that wait for somebody to decide on them (loop.md §6)."""

from diptych.core import prompt
from diptych.core.act import start_ready
from diptych.core.approval_events import ApprovalDecided, ApprovalRequested
from diptych.core.call_graph import failure
from diptych.core.commands import Emit
from diptych.core.pending import Next, issue
from diptych.core.state import Run, calls_awaiting_decision, open_calls, updated


def may_wait(run: Run, event: ApprovalRequested) -> bool:
    """Whether a call can be asked about: it is due, and neither made nor asked about."""
    call_id = event.call.id
    is_due = call_id in open_calls(run) and call_id in run.issued
    return is_due and call_id not in run.started and call_id not in calls_awaiting_decision(run)


def take_approval_request(run: Run, event: ApprovalRequested) -> Next:
    """Let a call wait; it takes no place, so another one may start."""
    return start_ready(updated(run, open_approvals=(*run.open_approvals, event)))


def take_decision(run: Run, event: ApprovalDecided) -> Next:
    """Make a call that waits as it was decided, as soon as there is a place; or reject it."""
    requested = next(each for each in run.open_approvals if each.call.id == event.call_id)
    others = tuple(each for each in run.open_approvals if each is not requested)
    run = updated(run, open_approvals=others)
    if event.decision == "reject":
        default = prompt.EXPIRED if event.is_expired else prompt.REJECTED
        text = f"denied: {event.reason or default}"
        return issue(run, Emit(failure(requested.call, "denied", text)))
    call = event.call or requested.call
    return start_ready(
        updated(
            run,
            calls=tuple(call if each.id == call.id else each for each in run.calls),
            issued=run.issued - {call.id},
            passed_hooks=run.passed_hooks - {call.id} if event.call else run.passed_hooks,
            approved=run.approved | {call.id},
            edited=run.edited | {call.id} if event.call else run.edited,
        )
    )
