"""The two-phase loop, as a pure reducer: what a run becomes, and what to do next.

    advance(run, event) -> (run, commands)

Phase 1 (ACT, CALL) asks the model for actions and makes the calls; phase 2 (ANSWER) asks for the
answer. The rules are loop.md §2, §3, §5, and of §12 terminal tools. Nothing waits, reads a clock
or draws a number, so `replay` of a run's events gives the same run again, and the event log is
where a run can be taken up.

Not here: reading a reply (`actions`), which calls can start (`calls`), wording (`prompt`), time
limits and cancelling (`runner`).
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from diptych.errors import CallErrorKind, LoopError
from diptych.loop import prompt
from diptych.loop.actions import ActionError, Actions, parse, strip_lead
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

PARTIAL_RESULT_CHARS = 500  # characters of each result that the end at `max_steps` repeats
_PASSED_ON = frozenset({"length", "content_filter"})  # of what models say ended an answer (§2)


def advance(run: Run, event: Event) -> Next:  # noqa: C901, PLR0912 - the table of the loop
    """Say what becomes of a run by an event, and what is to be done.

    Raises `LoopError` if the event cannot happen to the run in its phase.
    """
    run = replace(settle(run, event), seq=run.seq + 1)
    match run.phase, event:
        case Phase.DONE, _:
            raise LoopError(f"the run is over, and cannot take {type(event).__name__}")
        case _, Failed() | Aborted():
            return _end(run, event)
        case Phase.NEW, Asked():
            return _take_message(run, event), ()
        case Phase.QUEUED, Offered():
            return _begin(run, event)
        case Phase.QUEUED, OwnerChanged():
            return run, ()
        case Phase.QUEUED | Phase.ACT | Phase.CALL | Phase.ANSWER, Steered():
            return _steer(run, event)
        case Phase.ACT, OwnerChanged() if run.undelivered:
            return _next_step(replace(run, pending=()))
        case Phase.ACT | Phase.CALL | Phase.ANSWER, OwnerChanged():
            return take_over(run, event)
        case Phase.ACT, Replied():
            return _read(_count(run, event), event)
        case Phase.ACT, ReplyRejected():
            return _take_error(run, event)
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
            return _forget_answer(run, attempt), ()
        case Phase.ANSWER, Replied():
            return _take_answer(_count(run, event), event)
        case Phase.ANSWER, Answered():
            return _conclude(run, event)
        case Phase.ANSWER, Completed():
            return _end(run, event)
        case _:
            raise LoopError(f"a run in phase {run.phase.value} cannot take {type(event).__name__}")


def replay(events: Iterable[Event], history: tuple[Message, ...] = ()) -> Run:
    """Rebuild a run from its events; what it still wants done is in its `pending`."""
    return apply_all(Run(history=history), events)


def apply_all(run: Run, events: Iterable[Event]) -> Run:
    """Say what became of a run by events that are all that happens, whatever they demand."""
    for event in events:
        run, _ = advance(run, event)
    return run


def closing_events(run: Run, end: Stop) -> Iterator[Event]:
    """List the events that end a run now.

    Each call that is on its way is `interrupted` first, each that has not begun `skipped`: in
    the conversation a call and its result are never parted.
    """
    unresolved = open_calls(run)
    for call in run.calls:
        if call.id in unresolved:
            kind: CallErrorKind = "interrupted" if call.id in run.started else "skipped"
            yield failure(call, kind, f"{kind}: {_reason(end)}")
    yield end


# Phase 1


def _take_message(run: Run, event: Asked) -> Run:
    spoken = (*event.earlier, Message("user", event.message))
    return replace(
        run, phase=Phase.QUEUED, messages=spoken, system=event.system, origin=event.origin
    )


def _begin(run: Run, event: Offered) -> Next:
    system = prompt.with_caller(event.prompt, run.system)
    settings = event.settings
    return _ask(
        replace(
            run,
            catalog=event.catalog,
            settings=settings,
            system=system,
            last_step=settings.max_steps,
        )
    )


def _steer(run: Run, event: Steered) -> Next:
    """Take another message: it joins after the calls now running, before the next model call (§6).

    Calls that have not begun never will. One that comes while the answer is told waits for it.
    """
    message = Message("user", event.message)
    run = replace(run, message_ids=run.message_ids | {event.message_id})
    if run.phase is Phase.QUEUED:
        return append_messages(run, message), ()
    run = replace(run, undelivered=(*run.undelivered, message))
    return _start_ready(run) if run.phase is Phase.CALL else (run, ())


def _read(run: Run, reply: Replied) -> Next:
    """Read a phase-1 reply: an action, an error, or neither, which starts phase 2."""
    said, _ = strip_lead(reply.text)
    actions = parse(said, run.catalog)
    if reply.finish_reason == "length" and actions != Actions(()):
        actions = ActionError("truncated", "your reply was cut off by the length limit; be brief")
    match actions:
        case ActionError():
            return issue(run, Emit(ReplyRejected(actions, said[: prompt.SAID_LIMIT])))
        case Actions(()):
            return _next_step(run) if run.undelivered else _ask_answer(run)
        case Actions(calls):
            step = run.step + 1
            named = tuple(replace(c, id=f"call_{step}_{n}") for n, c in enumerate(calls, 1))
            run = append_messages(run, Message("assistant", said))
            return _start_ready(
                replace(run, phase=Phase.CALL, step=step, errors=0, calls=named, issued=frozenset())
            )


def _take_error(run: Run, event: ReplyRejected) -> Next:
    step = run.step + 1
    told = prompt.step_error(step, run.last_step, event.error, event.said)
    run = append_messages(run, Message("assistant", event.said), told)
    run = replace(run, step=step, errors=run.errors + 1)
    if run.errors > run.settings.max_retries and not run.undelivered:
        run, commands = _ask_answer(run)
        return run, (Warn(f"{event.error.type}: {event.error.detail}"), *commands)
    return _next_step(run)


def _take_result(run: Run, event: Returned) -> Next:
    run = replace(run, results=(*run.results, event.result))
    if open_calls(run):
        return _start_ready(run)
    by_id = {result.call_id: result for result in run.results}
    told = prompt.step_results(run.step, run.last_step, run.calls, by_id)
    ends_phase = all(_is_terminal(run, call) and not by_id[call.id].error for call in run.calls)
    run = replace(append_messages(run, told), calls=(), issued=frozenset())
    return _ask_answer(run) if ends_phase and not run.undelivered else _next_step(run)


def _next_step(run: Run) -> Next:
    """Ask the model for actions, of all that was said up to now; unless it has had its steps."""
    run = deliver_messages(run)
    if run.step < run.last_step:
        return _ask(run)
    if run.settings.on_max_steps == "answer":
        return _ask_answer(run)
    text = prompt.max_steps_text(run.settings.max_steps)
    partial = tuple(replace(r, text=r.text[:PARTIAL_RESULT_CHARS], value=None) for r in run.results)
    return issue(run, Emit(StepsExhausted(text, partial, run.usage)))


def _ask(run: Run) -> Next:
    messages = (*request_prefix(run), *run.messages)
    return issue(replace(run, phase=Phase.ACT), AskModel(messages, run.model_calls))


def _start_ready(run: Run) -> Next:
    """Command each call that can be made now, and record each that never will be."""
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


def _ask_answer(run: Run) -> Next:
    final = Message("user", prompt.FINAL_PROMPT)
    messages = (*request_prefix(run), *run.messages, final)
    ask = AskModel(messages, run.model_calls, answer=True)
    return issue(replace(run, phase=Phase.ANSWER), ask)


def _take_answer(run: Run, reply: Replied) -> Next:
    """Take the end of the answer; a blank one is asked for once more (loop.md §7)."""
    finish_reason = reply.finish_reason if reply.finish_reason in _PASSED_ON else "stop"
    if run.answer.strip() or finish_reason != "stop":
        return issue(run, Emit(Answered(run.answer, finish_reason)))
    told = replace(run, was_blank=True, answer_from=len(run.answer))
    if run.undelivered:
        return _next_step(told)
    if run.was_blank:
        return issue(run, Emit(Failed("empty_answer", "the model gave no answer, twice")))
    return _ask_answer(told)


def _conclude(run: Run, event: Answered) -> Next:
    """End with the answer, or begin the next turn with what was said while it was told (§6)."""
    run = append_messages(run, Message("assistant", event.text))
    if not run.undelivered:
        return issue(run, Emit(Completed(event.finish_reason, run.usage)))
    run = replace(_forget_answer(run, attempt=1), was_blank=False)
    return _next_step(replace(run, last_step=run.step + run.settings.max_steps))


def _forget_answer(run: Run, attempt: int) -> Run:
    return replace(run, answer="", answer_from=0, answer_seq=0, answer_attempts=attempt)


# Both


def _count(run: Run, reply: Replied) -> Run:
    return replace(run, model_calls=run.model_calls + 1, usage=run.usage + reply.usage)


def _end(run: Run, end: Terminal) -> Next:
    run = deliver_messages(run)
    said = () if run.phase is Phase.QUEUED else run.messages  # a run that never began said nothing
    return replace(run, phase=Phase.DONE, messages=said, pending=(), end=end), ()


def _reason(end: Stop) -> str:
    return end.reason if isinstance(end, Aborted) else end.message
