"""What follows from the replies of hooks: about a call, a step or an answer (loop.md §5, §7)."""

from diptych.core.act import start_ready
from diptych.core.answer import give_answer, repair_answer
from diptych.core.asking import ask_for_answer, next_step
from diptych.core.call_graph import failure
from diptych.core.commands import Emit
from diptych.core.errors import LoopError
from diptych.core.hook_events import AnswerJudged, CallJudged, StepJudged
from diptych.core.pending import Next, issue
from diptych.core.state import Run, updated
from diptych.core.stuck import note_asked

_APPROVED = "would change what was approved"


def take_judged_call(run: Run, event: CallJudged) -> Next:
    """Make a call as the hooks leave it, as soon as there is a place; or deny it."""
    run = updated(run, awaiting_hooks=run.awaiting_hooks - {event.call_id})
    call = next(each for each in run.calls if each.id == event.call_id)
    reason = event.denied
    if reason is None and event.call and event.call_id in run.approved:
        reason = f"the hook {event.hook} {_APPROVED}"
    if reason is not None:
        run = note_asked(updated(run, issued=run.issued | {call.id}), call)
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
