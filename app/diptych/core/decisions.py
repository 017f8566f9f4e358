"""Handles decisions of hooks on calls, steps and answers (loop.md §5, §7)."""

from dataclasses import replace

from diptych.core.act import start_ready
from diptych.core.answer import give_answer, repair_answer
from diptych.core.asking import ask_for_answer, next_step
from diptych.core.call_graph import failure
from diptych.core.commands import Emit
from diptych.core.errors import LoopError
from diptych.core.events import AnswerJudged, CallJudged, StepJudged
from diptych.core.pending import Next, issue
from diptych.core.state import Run, updated, with_call
from diptych.core.stuck import note_asked


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
        run = with_call(run, event.call)
        progress = replace(progress, rewritten=progress.rewritten | {call.id})
    progress = replace(progress, passed_hooks=progress.passed_hooks | {call.id})
    return start_ready(updated(run, progress=progress))


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
