"""Handles decisions of people and hooks on calls, steps and answers (loop.md §5, §6, §7).

Pending approvals of child runs are only recorded here: the agent that makes the call enforces them,
at every depth.
"""

from dataclasses import replace

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
from diptych.core.messages import Call
from diptych.core.pending import Next, issue
from diptych.core.state import Run, calls_awaiting_decision, open_calls, updated
from diptych.core.stuck import note_asked

MAX_OPEN = 1_000  # pending approvals below one run


def may_wait(run: Run, event: ApprovalRequested) -> bool:
    """Whether an approval can be requested: the call is issued, but neither started nor waiting."""
    call_id = event.call.id
    is_due = call_id in open_calls(run) and call_id in run.progress.issued
    return is_due and call_id not in run.started and call_id not in calls_awaiting_decision(run)


def take_approval_request(run: Run, event: ApprovalRequested) -> Next:
    """Let a call wait for approval; this frees its slot for another call."""
    return start_ready(updated(run, open_approvals=(*run.open_approvals, event)))


def take_decision(run: Run, event: ApprovalDecided) -> Next:
    """Make the call as decided once there is a free slot, or reject it."""
    requested = next(each for each in run.open_approvals if each.call.id == event.call_id)
    others = tuple(each for each in run.open_approvals if each is not requested)
    run = updated(run, open_approvals=others)
    if event.decision == "reject":
        default = prompt.EXPIRED if event.is_expired else prompt.REJECTED
        text = f"denied: {event.reason or default}"
        return issue(run, Emit(failure(requested.call, "denied", text)))
    call = event.call or requested.call
    changed = {call.id} if event.call else set[str]()
    progress = replace(
        run.progress,
        issued=run.progress.issued - {call.id},
        passed_hooks=run.progress.passed_hooks - changed,
        approved=run.progress.approved | {call.id},
        edited=run.progress.edited | changed,
    )
    return start_ready(updated(_with_call(run, call), progress=progress))


def may_take(run: Run, event: ChildApproval) -> bool:
    """Whether an event about a child's approval is valid and new.

    After a takeover, children repeat all their events, and a call waits only once.
    """
    delegation = event.path[0]
    is_in_flight = delegation in run.started and delegation in open_calls(run)
    is_known = any(each.path == event.path for each in run.child_approvals)
    if isinstance(event, ChildApprovalRequested):
        is_news = not is_known and event.path not in run.children_decided
        return is_in_flight and is_news and len(run.child_approvals) < MAX_OPEN
    return is_known


def take(run: Run, event: ChildApproval) -> Run:
    """Record a child's pending approval, or remove it."""
    others = tuple(each for each in run.child_approvals if each.path != event.path)
    if isinstance(event, ChildApprovalRequested):
        return updated(run, child_approvals=(*others, event))
    decided = run.children_decided | {event.path}
    return updated(run, child_approvals=others, children_decided=decided)


def take_judged_call(run: Run, event: CallJudged) -> Next:
    """Make the call as the hooks left it once there is a free slot, or deny it."""
    awaiting_hooks = run.progress.awaiting_hooks - {event.call_id}
    progress = replace(run.progress, awaiting_hooks=awaiting_hooks)
    call = next(each for each in run.calls if each.id == event.call_id)
    reason = event.denied
    if reason is None and event.call and event.call_id in run.progress.approved:
        reason = f"the hook {event.hook} tried to change an approved call"
    if reason is not None:
        run = updated(run, progress=replace(progress, issued=progress.issued | {call.id}))
        run = note_asked(run, call)
        return issue(run, Emit(failure(call, "denied", f"denied: {reason}")))
    if event.call:
        run = _with_call(run, event.call)
        progress = replace(progress, rewritten=progress.rewritten | {call.id})
    progress = replace(progress, passed_hooks=progress.passed_hooks | {call.id})
    return start_ready(updated(run, progress=progress))


def _with_call(run: Run, changed: Call) -> Run:
    """Replace the call that has the same id."""
    return updated(run, calls=tuple(changed if c.id == changed.id else c for c in run.calls))


def take_judged_step(run: Run, event: StepJudged) -> Next:
    """Continue with the next step, or with the answer; queued messages come first."""
    return ask_for_answer(run) if event.ends and not run.queues.steering else next_step(run)


def take_judged_answer(run: Run, event: AnswerJudged) -> Next:
    """Send the answer, or ask the model to repair it."""
    answer = run.draft.candidate
    if answer is None:
        raise LoopError("hooks judged an answer, but there is none")
    run = updated(run, draft=replace(run.draft, candidate=None))
    if event.problem:
        return repair_answer(run, answer.text, event.problem, is_refused=True)
    return give_answer(run, answer.text, answer.finish_reason, is_json=answer.is_json)
