"""The two-phase loop as a pure reducer: what a run becomes by an event, and what to do next.

    advance(run, event) -> (run, commands)

Phase 1 (ACT, CALL) asks the model for actions and makes the calls; phase 2 (ANSWER) asks for the
answer (loop.md §2, §3, §5, §6, §12). Nothing here waits, reads a clock or draws a number: `replay`
of a run's events gives the same run, so another process can continue a run from its log.

Not here: reading a reply (`actions`), which calls can start (`call_graph`), what a new owner does
again (`pending`), wording (`prompt`), time limits and cancelling (`runtime.runner`).
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from diptych.errors import CallErrorKind, LoopError
from diptych.loop import prompt
from diptych.loop.actions import ActionError, Calls, NoOp, Prose, parse, strip_lead
from diptych.loop.call_graph import Graph, failure
from diptych.loop.events import (
    Aborted,
    Answered,
    AnswerReset,
    Asked,
    AskModel,
    Called,
    Command,
    Completed,
    Emit,
    Event,
    Failed,
    MakeCall,
    Offered,
    OwnerChanged,
    Replied,
    ReplyRejected,
    Returned,
    Steered,
    StepsExhausted,
    Stop,
    Streamed,
    Terminal,
    Warn,
)
from diptych.loop.messages import Call, Message, ToolCall
from diptych.loop.pending import Next, issue, settle, take_over
from diptych.loop.state import (
    Phase,
    Run,
    append_messages,
    deliver_messages,
    open_calls,
    request_prefix,
)

PARTIAL_RESULT_CHARS = 500  # of each result, in the terminal event at `max_steps`
_KEPT_FINISH_REASONS = frozenset({"length", "content_filter"})  # of a model's answer (§2)


def advance(run: Run, event: Event) -> Next:  # noqa: C901, PLR0912 - the table of the loop
    """Apply an event to a run. Gives the new run, and the commands that follow.

    Raises `LoopError` if the event cannot happen to the run in its phase.
    """
    run = replace(settle(run, event), seq=run.seq + 1)
    match run.phase, event:
        case Phase.DONE, _:
            raise LoopError(f"the run is over, and cannot take {type(event).__name__}")
        case _, Failed() | Aborted():
            return _end(run, event)
        case Phase.NEW, Asked():
            return _take_request(run, event), ()
        case Phase.QUEUED, Offered():
            return _begin(run, event)
        case Phase.QUEUED, OwnerChanged():
            return run, ()
        case Phase.QUEUED | Phase.ACT | Phase.CALL | Phase.ANSWER, Steered():
            return _take_message(run, event)
        case Phase.ACT, OwnerChanged() if run.undelivered:
            return _next_step(replace(run, pending=()))
        case Phase.ACT | Phase.CALL | Phase.ANSWER, OwnerChanged():
            return take_over(run, event)
        case Phase.ACT, Replied():
            return _take_reply(_count_usage(run, event), event)
        case Phase.ACT, ReplyRejected():
            return _take_rejection(run, event)
        case Phase.CALL, Called(call) if call.id in run.issued and call.id not in run.started:
            return replace(run, started=(*run.started, call.id)), ()
        case Phase.CALL, Returned(result) if result.call_id in open_calls(run):
            return _take_result(run, event)
        case Phase.ACT | Phase.CALL, StepsExhausted(text):
            return _end(append_messages(run, Message("assistant", text)), event)
        case Phase.ANSWER, Streamed(text):
            begun = run.answer_seq or run.seq
            return replace(run, answer=run.answer + text, answer_seq=begun), ()
        case Phase.ANSWER, AnswerReset(_, attempt):
            return _reset_answer(run, attempt), ()
        case Phase.ANSWER, Replied():
            return _take_answer(_count_usage(run, event), event)
        case Phase.ANSWER, Answered():
            return _end_turn(run, event)
        case Phase.ANSWER, Completed():
            return _end(run, event)
        case _:
            raise LoopError(f"a run in phase {run.phase.value} cannot take {type(event).__name__}")


def replay(events: Iterable[Event], history: tuple[Message, ...] = ()) -> Run:
    """Rebuild a run from its events; its `pending` commands are those still to be done."""
    return apply_all(Run(history=history), events)


def apply_all(run: Run, events: Iterable[Event]) -> Run:
    """Apply events whose commands are not to be carried out."""
    for event in events:
        run, _ = advance(run, event)
    return run


def closing_events(run: Run, end: Stop) -> Iterator[Event]:
    """List the events that end a run now.

    Calls in flight are `interrupted` first and calls that have not begun `skipped`, so that each
    call in the conversation has a result.
    """
    unresolved = open_calls(run)
    for call in run.calls:
        if call.id in unresolved:
            kind: CallErrorKind = "interrupted" if call.id in run.started else "skipped"
            yield failure(call, kind, f"{kind}: {_reason(end)}")
    yield end


# Phase 1


def _take_request(run: Run, event: Asked) -> Run:
    spoken = (*event.earlier, Message("user", event.message))
    return replace(
        run, phase=Phase.QUEUED, messages=spoken, system=event.system, origin=event.origin
    )


def _begin(run: Run, event: Offered) -> Next:
    system = prompt.with_caller(event.prompt, run.system)
    run = replace(run, catalog=event.catalog, settings=event.settings, system=system)
    return _ask_for_actions(replace(run, step_limit=event.settings.max_steps))


def _take_message(run: Run, event: Steered) -> Next:
    """Take another message: it is delivered after the calls in flight, before the next model call.

    Calls that have not begun are skipped. During the answer the message waits for the next turn.
    """
    message = Message("user", event.message)
    run = replace(run, message_ids=run.message_ids | {event.message_id})
    if run.phase is Phase.QUEUED:
        return append_messages(run, message), ()
    run = replace(run, undelivered=(*run.undelivered, message))
    return _start_ready(run) if run.phase is Phase.CALL else (run, ())


def _take_reply(run: Run, reply: Replied) -> Next:
    """Act on a phase-1 reply: make its calls, reject it, or begin phase 2."""
    said, _ = strip_lead(reply.text)
    found = parse(said, run.catalog)
    if reply.finish_reason == "length" and isinstance(found, Calls | ActionError):
        found = ActionError("truncated", "your reply was cut off by the length limit; be brief")
    match found:
        case ActionError():
            return issue(run, Emit(ReplyRejected(found, said[: prompt.SAID_LIMIT])))
        case NoOp() | Prose():
            return _next_step(run) if run.undelivered else _ask_for_answer(run)
        case Calls(calls):
            step = run.step + 1
            named = tuple(replace(c, id=f"call_{step}_{n}") for n, c in enumerate(calls, 1))
            run = append_messages(run, Message("assistant", said))
            return _start_ready(
                replace(run, phase=Phase.CALL, step=step, errors=0, calls=named, issued=frozenset())
            )


def _take_rejection(run: Run, event: ReplyRejected) -> Next:
    step = run.step + 1
    told = prompt.step_error(step, run.step_limit, event.error, event.said)
    run = append_messages(run, Message("assistant", event.said), told)
    run = replace(run, step=step, errors=run.errors + 1)
    if run.errors > run.settings.max_retries and not run.undelivered:
        run, commands = _ask_for_answer(run)
        return run, (Warn(f"{event.error.type}: {event.error.detail}"), *commands)
    return _next_step(run)


def _take_result(run: Run, event: Returned) -> Next:
    run = replace(run, results=(*run.results, event.result))
    if open_calls(run):
        return _start_ready(run)
    by_id = {result.call_id: result for result in run.results}
    told = prompt.step_results(run.step, run.step_limit, run.calls, by_id)
    ends_phase = all(_is_terminal(run, call) and not by_id[call.id].error for call in run.calls)
    run = replace(append_messages(run, told), calls=())
    return _ask_for_answer(run) if ends_phase and not run.undelivered else _next_step(run)


def _next_step(run: Run) -> Next:
    """Ask the model for the next actions, unless all steps are used."""
    run = deliver_messages(run)
    if run.step < run.step_limit:
        return _ask_for_actions(run)
    if run.settings.on_max_steps == "answer":
        return _ask_for_answer(run)
    text = prompt.max_steps_text(run.settings.max_steps)
    partial = tuple(replace(r, text=r.text[:PARTIAL_RESULT_CHARS], value=None) for r in run.results)
    return issue(run, Emit(StepsExhausted(text, partial, run.usage)))


def _ask_for_actions(run: Run) -> Next:
    messages = (*request_prefix(run), *run.messages)
    return issue(replace(run, phase=Phase.ACT), AskModel(messages, run.model_calls))


def _start_ready(run: Run) -> Next:
    """Command each call that can be made now; record each that never will be as skipped."""
    done = {result.call_id: result for result in run.results}
    graph = Graph(run.calls, run.issued, done, run.catalog)
    commands: list[Command] = []
    ids = set(run.issued)
    most = run.settings.max_parallel_calls
    for decision in graph.superseded() if run.undelivered else graph.startable(most):
        if isinstance(decision, Returned):
            ids.add(decision.result.call_id)
            commands.append(Emit(decision))
        else:
            ids.add(decision.id)
            commands.append(MakeCall(decision, run.step))
    return issue(replace(run, issued=frozenset(ids)), *commands)


def _is_terminal(run: Run, call: Call) -> bool:
    tool = run.catalog.tool(call.name) if isinstance(call, ToolCall) else None
    return tool is not None and tool.terminal


# Phase 2


def _ask_for_answer(run: Run) -> Next:
    final = Message("user", prompt.FINAL_PROMPT)
    messages = (*request_prefix(run), *run.messages, final)
    ask = AskModel(messages, run.model_calls, answer=True)
    return issue(replace(run, phase=Phase.ANSWER), ask)


def _take_answer(run: Run, reply: Replied) -> Next:
    """Record the whole answer; a blank one is asked for once more (loop.md §7)."""
    finish_reason = reply.finish_reason if reply.finish_reason in _KEPT_FINISH_REASONS else "stop"
    if run.answer.strip() or finish_reason != "stop":
        return issue(run, Emit(Answered(run.answer, finish_reason)))
    told = replace(run, was_blank=True, answer_from=len(run.answer))
    if run.undelivered:
        return _next_step(told)
    if run.was_blank:
        return issue(run, Emit(Failed("empty_answer", "the model gave no answer, twice")))
    return _ask_for_answer(told)


def _end_turn(run: Run, event: Answered) -> Next:
    """End the run, or begin the next turn with the messages that came during the answer (§6)."""
    run = append_messages(run, Message("assistant", event.text))
    if not run.undelivered:
        return issue(run, Emit(Completed(event.finish_reason, run.usage)))
    run = replace(_reset_answer(run, attempt=1), was_blank=False)
    return _next_step(replace(run, step_limit=run.step + run.settings.max_steps))


def _reset_answer(run: Run, attempt: int) -> Run:
    return replace(run, answer="", answer_from=0, answer_seq=0, answer_attempts=attempt)


# Both


def _count_usage(run: Run, reply: Replied) -> Run:
    return replace(run, model_calls=run.model_calls + 1, usage=run.usage + reply.usage)


def _end(run: Run, end: Terminal) -> Next:
    run = deliver_messages(run)
    said = () if run.phase is Phase.QUEUED else run.messages  # a run that never began said nothing
    return replace(run, phase=Phase.DONE, messages=said, pending=(), end=end), ()


def _reason(end: Stop) -> str:
    return end.reason if isinstance(end, Aborted) else end.message
