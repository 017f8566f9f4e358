"""The two-phase loop as a pure reducer: decides how an event changes a run, and what to do next.

    advance(run, event) -> (run, commands)

Phase 1 asks the model for actions and makes the calls; phase 2 asks for the answer (loop.md §2, §3,
§5, §6, §12). The usual course of a run, where phase 1 asks even without tools:

    phase   event                     command                       decided in
    QUEUED  Offered                   AskModel, whole: "actions"    `asking.ask_for_actions`
    ACT     Replied, with calls       MakeCall of each              `act.take_reply`
    CALL    ApprovalRequested         (instead of the call: `runs.call_maker` asks for approval)
    CALL    ApprovalDecided           MakeCall again, is_approved   `waiting.end_wait`
    CALL    InputRequested            (the call goes on with the answer)
    CALL    InputReceived             MakeCall again, resumed       `waiting.end_wait`
    CALL    Returned, the last one    AskModel, whole: "actions"    `act.take_result`
    ACT     Replied, prose or `{}`    AskModel, streamed: "answer"  `act.take_reply`
    ANSWER  Streamed, each piece      (logged and sent)             `_take_text`
    ANSWER  Replied, the end          Emit Answered, then the end   `answer.take_answer`

With `answerMode: direct`, the first request is streamed too ("either"): prose is the answer.

The code never waits, reads a clock or draws a random number: replaying a run's events gives the
same run, so another process can continue it from its log.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from diptych.core import prompt
from diptych.core.act import (
    begin_call,
    is_late_reply,
    start_ready,
    take_late_reply,
    take_rejected_reply,
    take_reply,
    take_result,
)
from diptych.core.answer import end_turn, take_answer, take_reset
from diptych.core.asking import (
    ask_again,
    ask_for_actions,
    change_format,
    may_answer,
    next_step,
    take_summary,
)
from diptych.core.call_graph import failure
from diptych.core.decisions import take_judged_answer, take_judged_call, take_judged_step
from diptych.core.errors import CallErrorKind, LoopError
from diptych.core.events import (
    Aborted,
    Answered,
    AnswerJudged,
    AnswerReset,
    ApprovalDecided,
    ApprovalRequested,
    Called,
    CallJudged,
    ChildAnswered,
    ChildAsked,
    Compacted,
    Completed,
    ContextRefused,
    Event,
    Failed,
    FormatChanged,
    InputReceived,
    InputRequested,
    MessageQueued,
    Offered,
    OwnerChanged,
    QueueCleared,
    Replied,
    ReplyRejected,
    Returned,
    RunRequested,
    StepJudged,
    StepsExhausted,
    Stop,
    Streamed,
    Terminal,
)
from diptych.core.fitting import question_place
from diptych.core.messages import ChildRun, Message
from diptych.core.pending import Next, take_over, unanswered
from diptych.core.queues import clear_messages, deliver_all, deliver_steering, put_message
from diptych.core.state import (
    Phase,
    Question,
    Run,
    append_messages,
    append_question,
    open_calls,
    updated,
)
from diptych.core.stuck import forget_repeats
from diptych.core.waiting import begin_wait, end_wait, may_end_wait, may_wait


def advance(run: Run, event: Event) -> Next:  # noqa: C901, PLR0912 - the table of the loop
    """Apply an event to a run; return the new run and the commands that follow.

    Raises `LoopError` if the event is impossible in the run's phase.
    """
    run = updated(run, pending=unanswered(run, event), seq=run.seq + 1)
    match run.phase, event:
        case Phase.DONE, _:
            raise LoopError(f"the run has ended and cannot take {type(event).__name__}")
        case _, Failed() | Aborted():
            return _end(run, event)
        case Phase.NEW, RunRequested():
            return _take_request(run, event), ()
        case Phase.QUEUED, Offered():
            return _begin(run, event)
        case Phase.QUEUED, OwnerChanged():
            return run, ()
        case Phase.QUEUED | Phase.ACT | Phase.CALL | Phase.ANSWER, MessageQueued():
            return _take_message(run, event)
        case Phase.QUEUED | Phase.ACT | Phase.CALL | Phase.ANSWER, QueueCleared():
            return clear_messages(run, event), ()
        case Phase.ACT, OwnerChanged() if run.queues.steering:
            return next_step(updated(run, pending=()))
        case Phase.ACT | Phase.CALL | Phase.ANSWER, OwnerChanged():
            return take_over(run, event)
        case Phase.ACT | Phase.ANSWER, ContextRefused():
            return ask_again(run, event)
        case Phase.ACT | Phase.ANSWER, Compacted():
            return take_summary(run, event)
        case Phase.ACT | Phase.CALL | Phase.ANSWER, AnswerReset(_, attempt):
            return take_reset(run, attempt)
        case Phase.ACT | Phase.CALL, _:
            return _advance_phase_1(run, event)
        case Phase.ANSWER, _:
            return _advance_phase_2(run, event)
        case _:
            raise _impossible(run, event)


def _advance_phase_1(run: Run, event: Event) -> Next:  # noqa: C901 - part of the table
    match run.phase, event:
        case Phase.ACT, Replied():
            return take_reply(_count_usage(run, event), event)
        case Phase.ACT, ReplyRejected():
            return take_rejected_reply(run, event)
        case Phase.ACT, FormatChanged():
            return change_format(run, event)
        case Phase.ACT, Streamed(text) if may_answer(run):
            return _take_text(run, text), ()
        case Phase.CALL, CallJudged(call_id) if call_id in run.progress.awaiting_hooks:
            return take_judged_call(run, event)
        case Phase.CALL, StepJudged(step) if step == run.step and not run.calls:
            return take_judged_step(run, event)
        case Phase.CALL, ApprovalRequested() | InputRequested() | ChildAsked() if may_wait(
            run, event
        ):
            return begin_wait(run, event)
        case Phase.CALL, ApprovalDecided() | InputReceived() | ChildAnswered() if may_end_wait(
            run, event
        ):
            return end_wait(run, event)
        case Phase.CALL, Called(call) if (
            call.id in run.progress.issued and call.id not in run.started
        ):
            return begin_call(run, event)
        case Phase.CALL, Returned(result) if result.call_id in open_calls(run):
            return take_result(run, event)
        case _, StepsExhausted(text):
            return _end(append_messages(run, Message("assistant", text)), event)
        case _:
            raise _impossible(run, event)


def _advance_phase_2(run: Run, event: Event) -> Next:
    match event:
        case Streamed(text):
            return _take_text(run, text), ()
        case Replied():
            take = take_late_reply if is_late_reply(run, event) else take_answer
            return take(_count_usage(run, event), event)
        case AnswerJudged() if run.draft.candidate:
            return take_judged_answer(run, event)
        case Answered():
            return end_turn(run, event)
        case Completed():
            return _end(run, event)
        case _:
            raise _impossible(run, event)


def _impossible(run: Run, event: Event) -> LoopError:
    return LoopError(f"a run in phase {run.phase.value} cannot take {type(event).__name__}")


def replay(events: Iterable[Event], history: tuple[Message, ...] = ()) -> Run:
    """Rebuild a run from its events; its `pending` commands are still to be done."""
    return apply_all(Run(history=history), events)


def apply_all(run: Run, events: Iterable[Event]) -> Run:
    """Apply events, ignoring their commands."""
    for event in events:
        run, _ = advance(run, event)
    return run


def closing_events(
    run: Run, end: Stop, children: Mapping[str, ChildRun] | None = None
) -> Iterator[Event]:
    """Yield the events that end a run now.

    Calls in flight become `interrupted` and others `skipped`, so that every call in the
    conversation has a result. `children` maps delegations in flight to their known tasks.
    """
    unresolved = open_calls(run)
    for call in run.calls:
        if call.id in unresolved:
            kind: CallErrorKind = "interrupted" if call.id in run.started else "skipped"
            child = (children or {}).get(call.id)
            yield failure(call, kind, f"{kind}: {_reason(end)}", child)
    yield end


def _take_request(run: Run, event: RunRequested) -> Run:
    is_question = bool(event.message or event.parts) or event.resumes is None
    run = updated(run, messages=event.earlier)
    if not is_question and run.history and prompt.is_cut_answer(run.history[-1]):
        run = updated(run, history=run.history[:-1])  # it will be answered again
    if is_question:
        run = append_question(run, Message("user", event.message, parts=event.parts))
    elif (place := question_place(run)) is not None:  # the question of the resumed run
        run = updated(run, asked=Question(run.history[place].content, end=-1))
    return updated(
        run,
        phase=Phase.QUEUED,
        request=event,
        asked=replace(run.asked, at=len(event.earlier) if is_question else None),
    )


def _begin(run: Run, event: Offered) -> Next:
    settings = event.settings
    asked = run.request
    if asked.max_steps is not None:
        settings = replace(settings, max_steps=asked.max_steps)
    if asked.max_retries is not None:
        settings = replace(settings, max_retries=asked.max_retries)
    budget = settings.budget.tightened(asked.budget)
    if budget.cost is not None and settings.prices is None:
        budget = replace(budget, cost=None)
    schema = settings.output_schema if asked.output_schema is None else asked.output_schema
    system = event.native_prompt if event.action_format == "native" else event.prompt
    run = updated(
        run,
        catalog=event.catalog,
        settings=settings,
        system=prompt.with_caller(system, asked.system),
        json_system=prompt.with_caller(event.prompt, asked.system),
        action_format=event.action_format,
        nonce=event.nonce,
        window=event.window,
        step_limit=settings.max_steps,
        budget=budget,
        output_schema=schema,
    )
    return ask_for_actions(deliver_steering(run))


def _take_message(run: Run, event: MessageQueued) -> Next:
    """Queue a message. If it steers, skip calls that have not begun."""
    run = put_message(run, event)
    if not event.is_follow_up:
        run = forget_repeats(run)
    return start_ready(run) if run.phase is Phase.CALL and run.queues.steering else (run, ())


def _take_text(run: Run, text: str) -> Run:
    """Append to the answer; in direct mode, the first text makes a phase-1 reply the answer."""
    draft = replace(
        run.draft,
        is_direct=run.draft.is_direct or run.phase is Phase.ACT,
        text=run.draft.text + text,
        seq=run.draft.seq or run.seq,
    )
    return updated(run, phase=Phase.ANSWER, draft=draft)


def _count_usage(run: Run, reply: Replied) -> Run:
    return updated(
        run,
        model_calls=run.model_calls + 1,
        usage=run.usage + reply.usage,
        window=run.window.replied(reply.usage.prompt_tokens),
    )


def _end(run: Run, end: Terminal) -> Next:
    run = deliver_all(_with_cut_answer(run))
    messages = () if run.phase is Phase.QUEUED else run.messages  # none if the run never began
    return updated(run, phase=Phase.DONE, messages=messages, pending=(), end=end), ()


def _with_cut_answer(run: Run) -> Run:
    """Keep the part of an interrupted answer that was sent (§6)."""
    if not run.draft.text.strip() or run.messages[-1:] == (Message("assistant", run.draft.text),):
        return run
    return append_messages(run, Message("assistant", prompt.cut_answer(run.draft.text)))


def _reason(end: Stop) -> str:
    return end.reason if isinstance(end, Aborted) else end.message
