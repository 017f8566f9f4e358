"""Approvals: calls of a step that wait for somebody to decide on them (loop.md §6)."""

from diptych.core import prompt
from diptych.core.act import start_ready
from diptych.core.answer import give_answer, repair_answer
from diptych.core.asking import ask_for_answer, next_step
from diptych.core.call_graph import failure
from diptych.core.commands import Emit
from diptych.core.errors import LoopError
from diptych.core.events import (
    AnswerJudged,
    ApprovalDecided,
    ApprovalRequested,
    CallJudged,
    ChildApproval,
    ChildApprovalRequested,
    StepJudged,
)
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


MAX_OPEN = 1_000  # calls below one run


def may_take(run: Run, event: ChildApproval) -> bool:
    """Whether an event is news: of a delegation in flight, and of a call that waits, or not yet.

    Who takes a delegation up is told all of it again, and a call waits only once.
    """
    delegation = event.path[0]
    is_in_flight = delegation in run.started and delegation in open_calls(run)
    is_known = any(each.path == event.path for each in run.child_approvals)
    if isinstance(event, ChildApprovalRequested):
        is_news = not is_known and event.path not in run.children_decided
        return is_in_flight and is_news and len(run.child_approvals) < MAX_OPEN
    return is_known


def take(run: Run, event: ChildApproval) -> Run:
    """Keep a call that waits, or let go of one that waits no more."""
    others = tuple(each for each in run.child_approvals if each.path != event.path)
    if isinstance(event, ChildApprovalRequested):
        return updated(run, child_approvals=(*others, event))
    decided = run.children_decided | {event.path}
    return updated(run, child_approvals=others, children_decided=decided)


_APPROVED = "would change what was approved"


def take_judged_call(run: Run, event: CallJudged) -> Next:
    """Make a call as the hooks leave it, as soon as there is a place; or deny it."""
    run = updated(run, awaiting_hooks=run.awaiting_hooks - {event.call_id})
    call = next(each for each in run.calls if each.id == event.call_id)
    reason = event.denied
    if reason is None and event.call and event.call_id in run.approved:
        reason = f"the hook {event.hook} {_APPROVED}"
    if reason is not None:
        run = updated(run, issued=run.issued | {call.id})
        return issue(run, Emit(failure(call, "denied", f"denied: {reason}")))
    if event.call:
        changed = event.call
        run = updated(
            run,
            calls=tuple(changed if each.id == call.id else each for each in run.calls),
            rewritten=run.rewritten | {call.id},
        )
    return start_ready(updated(run, passed_hooks=run.passed_hooks | {call.id}))


def take_judged_step(run: Run, event: StepJudged) -> Next:
    """Go on with the next step, or with the answer; a message that waits is heard first."""
    return ask_for_answer(run) if event.ends and not run.steering else next_step(run)


def take_judged_answer(run: Run, event: AnswerJudged) -> Next:
    """Tell the answer, or ask for it again with what is wrong with it."""
    answer = run.candidate
    if answer is None:
        raise LoopError("an answer was judged, and none was given")
    run = updated(run, candidate=None)
    if event.problem:
        return repair_answer(run, answer.text, event.problem, is_refused=True)
    return give_answer(run, answer.text, answer.finish_reason, is_json=answer.is_json)
