"""The pending commands of a run: those without an event that answers them.

A new owner repeats some of them, and must not repeat others.
"""

from collections.abc import Sequence
from dataclasses import replace

from diptych.core import prompt
from diptych.core.call_graph import failure, is_repeatable
from diptych.core.commands import (
    AskModel,
    Command,
    Emit,
    JudgeAnswer,
    JudgeCall,
    JudgeStep,
    MakeCall,
)
from diptych.core.events import (
    AnswerJudged,
    ApprovalRequested,
    Called,
    CallJudged,
    Compacted,
    ContextRefused,
    Event,
    FormatChanged,
    InputReceived,
    InputRequested,
    OwnerChanged,
    Replied,
    Returned,
    StepJudged,
)
from diptych.core.state import (
    OpenWait,
    Run,
    calls_awaiting_decision,
    open_calls,
    updated,
)

TAKEN_OVER_ID = "taken over"
Next = tuple[Run, tuple[Command, ...]]
"""A run after an event, and the resulting commands."""


def issue(run: Run, *commands: Command) -> Next:
    """Return commands, and mark them as pending until an event answers them."""
    return updated(run, pending=run.pending + commands), commands


def is_asking(run: Run) -> bool:
    """Whether a model request is pending."""
    return any(isinstance(command, AskModel) for command in run.pending)


def unanswered(run: Run, event: Event) -> tuple[Command, ...]:
    """Return the pending commands that this event does not answer."""
    return tuple([command for command in run.pending if not _answers(event, command)])


def take_over(run: Run, event: OwnerChanged) -> Next:
    """Revise the pending commands for a new owner; it cannot know how far the old one came (§9)."""
    questions = _without_connection(run, event)
    revised = [_for_new_owner(run, c, event) for c in run.pending if not _cancels(c, questions)]
    revised += [_end_question(run, each) for each in questions]
    if event.lost_tail:
        # The lost records may contain starts of calls that seem not issued, and approvals.
        known = run.progress.issued - calls_awaiting_decision(run)
        due = [c for c in run.calls if c.id in open_calls(run) and c.id not in known]
        lost = [c for c in due if not is_repeatable(c, run.catalog)]
        revised += [Emit(failure(c, "unknown", prompt.OUTCOME_UNKNOWN)) for c in lost]
        issued = run.progress.issued | {c.id for c in lost}
        run = updated(run, progress=replace(run.progress, issued=issued))
    return issue(updated(run, pending=()), *revised)


def _without_connection(run: Run, event: OwnerChanged) -> Sequence[OpenWait]:
    """Return the questions that cannot be answered any more, as their connections are gone.

    With a `state`, a question stays open, unless the lost records may contain its answer.
    """
    return [
        wait
        for wait in run.waits
        if isinstance(wait.asked, InputRequested) and (wait.asked.state is None or event.lost_tail)
    ]


def _end_question(run: Run, lost: OpenWait) -> Command:
    """Return the cancellation, after which the call is made again; or its unknown outcome."""
    call = next(each for each in run.calls if each.id == lost.call_id)
    if is_repeatable(call, run.catalog):
        return Emit(InputReceived(call.id, "cancel", TAKEN_OVER_ID, lost.seq))
    return Emit(failure(call, "unknown", prompt.OUTCOME_UNKNOWN))


def _cancels(command: Command, lost: Sequence[OpenWait]) -> bool:
    event = command.event if isinstance(command, Emit) else None
    ids = {each.call_id for each in lost}
    return isinstance(event, InputReceived) and event.call_id in ids


def _for_new_owner(run: Run, given: Command, event: OwnerChanged) -> Command:
    match given:
        case AskModel(purpose="answer" | "either"):
            return replace(given, recorded=run.draft.text[run.draft.new_from :])
        case MakeCall(call) if call.id in run.context_ids:
            return replace(given, is_retry=True)  # its agent knows the state of the task
        case MakeCall(call) if call.id in run.started or event.lost_tail:
            if is_repeatable(call, run.catalog):
                return replace(given, is_retry=call.id in run.started)
            return Emit(failure(call, "unknown", prompt.OUTCOME_UNKNOWN))
        case MakeCall(call) if run.queues.steering:
            return Emit(failure(call, "skipped", prompt.SUPERSEDED))
        case _:
            return given


def _answers(event: Event, given: Command) -> bool:  # noqa: C901 - a table
    match given, event:
        case AskModel(), Replied() | FormatChanged() | ContextRefused() | Compacted():
            return True
        case JudgeCall(call), CallJudged(call_id):
            return call.id == call_id
        case JudgeCall(call), Returned(result):
            return call.id == result.call_id
        case (JudgeStep(), StepJudged()) | (JudgeAnswer(), AnswerJudged()):
            return True
        case MakeCall(call), ApprovalRequested() | InputRequested():
            return call.id == event.call_id
        case Emit(InputReceived(due)), InputReceived(call_id):
            return due == call_id
        case MakeCall(call), Returned(result):
            return call.id == result.call_id
        case Emit(Returned(due)), Returned(result):
            return due.call_id == result.call_id
        case Emit(Called(due)), Called(call):
            return due.id == call.id
        case Emit(due), _:  # compare types only: another owner may have worded it differently
            return type(due) is type(event)
        case _:
            return False
