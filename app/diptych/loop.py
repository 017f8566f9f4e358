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
from dataclasses import dataclass, field, replace
from enum import Enum

from diptych import prompt
from diptych.actions import ActionError, Actions, parse, strip_lead
from diptych.calls import Graph, failure, is_repeatable
from diptych.errors import CallErrorKind, LoopError
from diptych.events import (
    Aborted,
    Answered,
    AnswerReset,
    Asked,
    AskModel,
    Called,
    Command,
    Completed,
    Event,
    Exhausted,
    Failed,
    MakeCall,
    Misread,
    Offered,
    Origin,
    OwnerChanged,
    Replied,
    Returned,
    Stop,
    Streamed,
    Terminal,
    Terms,
    Warn,
    Write,
)
from diptych.messages import Call, Message, Result, ToolCall, Usage
from diptych.offers import Offers


class Phase(Enum):
    """Where a run is on its way."""

    NEW = "new"
    QUEUED = "queued"  # asked, and waiting for its session's turn
    ACT = "act"  # phase 1: waiting for the model
    CALL = "call"  # phase 1: waiting for calls
    ANSWER = "answer"  # phase 2
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Run:
    """One request on its way to its end. `history` is what its session said before it."""

    history: tuple[Message, ...] = ()
    phase: Phase = Phase.NEW
    terms: Terms = field(default_factory=Terms)
    offers: Offers = field(default_factory=Offers)
    system: str = ""  # the whole system prompt, the caller's part included
    origin: Origin = field(default_factory=Origin)
    messages: tuple[Message, ...] = ()  # what this run adds to the conversation
    step: int = 0
    errors: int = 0  # replies in a row that could not be read
    model_calls: int = 0
    usage: Usage = field(default_factory=Usage)
    calls: tuple[Call, ...] = ()  # of this step, in asked order
    issued: frozenset[str] = frozenset()  # ids of calls that a command was given for
    started: tuple[str, ...] = ()  # ids of all calls that were sent, in order
    results: tuple[Result, ...] = ()  # of the whole run, in the order in which they came
    seq: int = 0  # how many events there were
    answer: str = ""
    answer_from: int = 0  # where in `answer` the text of the newest model call begins
    answer_seq: int = 0  # of the first piece of the answer
    answer_attempts: int = 1
    was_blank: bool = False  # the answer was blank once and is asked for again
    outstanding: tuple[Command, ...] = ()  # what was commanded and has not happened yet
    end: Terminal | None = None


PARTIAL_LIMIT = 500  # characters of each result that the end at `max_steps` repeats
_PASSED_ON = frozenset({"length", "content_filter"})  # of what models say ended an answer (§2)

Next = tuple[Run, tuple[Command, ...]]


def advance(run: Run, event: Event) -> Next:  # noqa: C901, PLR0912 - the table of the loop
    """Say what becomes of a run by an event, and what is to be done.

    Raises `LoopError` if the event cannot happen to the run in its phase.
    """
    run = replace(_settle(run, event), seq=run.seq + 1)
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
        case Phase.ACT | Phase.CALL | Phase.ANSWER, OwnerChanged():
            return _hand_over(run, event)
        case Phase.ACT, Replied():
            return _read(_count(run, event), event)
        case Phase.ACT, Misread():
            return _take_error(run, event)
        case Phase.CALL, Called(call) if call.id in run.issued and call.id not in run.started:
            return replace(run, started=(*run.started, call.id)), ()
        case Phase.CALL, Returned(result) if result.call_id in _waited_for(run):
            return _take_result(run, event)
        case Phase.ACT | Phase.CALL, Exhausted(text):
            return _end(_say(run, Message("assistant", text)), event)
        case Phase.ANSWER, Streamed(text):
            begun = run.answer_seq or run.seq
            return replace(run, answer=run.answer + text, answer_seq=begun), ()
        case Phase.ANSWER, AnswerReset(_, attempt):
            return _forget_answer(run, attempt), ()
        case Phase.ANSWER, Replied():
            return _take_answer(_count(run, event), event)
        case Phase.ANSWER, Answered(text, finish_reason):
            said = _say(run, Message("assistant", text))
            return _command(said, Write(Completed(finish_reason, run.usage)))
        case Phase.ANSWER, Completed():
            return _end(run, event)
        case _:
            raise LoopError(f"a run in phase {run.phase.value} cannot take {type(event).__name__}")


def replay(events: Iterable[Event], history: tuple[Message, ...] = ()) -> Run:
    """Rebuild a run from its events; what it still wants done is in its `outstanding`."""
    return ended(Run(history=history), events)


def ended(run: Run, events: Iterable[Event]) -> Run:
    """Say what became of a run by events that are all that happens, whatever they demand."""
    for event in events:
        run, _ = advance(run, event)
    return run


def ending(run: Run, end: Stop) -> Iterator[Event]:
    """List the events that end a run now.

    Each call that is on its way is `interrupted` first, each that has not begun `skipped`: in
    the conversation a call and its result are never parted.
    """
    waited_for = _waited_for(run)
    for call in run.calls:
        if call.id in waited_for:
            kind: CallErrorKind = "interrupted" if call.id in run.started else "skipped"
            yield failure(call, kind, f"{kind}: {_reason(end)}")
    yield end


def conversation(run: Run) -> tuple[Message, ...]:
    """Give all that was said up to now, as the session's next run continues it."""
    return run.history + run.messages


# Phase 1


def _take_message(run: Run, event: Asked) -> Run:
    spoken = (*event.earlier, Message("user", event.message))
    return replace(
        run, phase=Phase.QUEUED, messages=spoken, system=event.system, origin=event.origin
    )


def _begin(run: Run, event: Offered) -> Next:
    system = prompt.with_caller(event.prompt, run.system)
    return _ask(replace(run, offers=event.offers, terms=event.terms, system=system))


def _read(run: Run, reply: Replied) -> Next:
    """Read a phase-1 reply: an action, an error, or neither, which starts phase 2."""
    said, _ = strip_lead(reply.text)
    actions = parse(said, run.offers)
    if reply.finish_reason == "length" and actions != Actions(()):
        actions = ActionError("truncated", "your reply was cut off by the length limit; be brief")
    match actions:
        case ActionError():
            return _command(run, Write(Misread(actions, said[: prompt.SAID_LIMIT])))
        case Actions(()):
            return _ask_answer(run)
        case Actions(calls):
            step = run.step + 1
            named = tuple(replace(c, id=f"call_{step}_{n}") for n, c in enumerate(calls, 1))
            run = _say(run, Message("assistant", said))
            return _start_ready(
                replace(run, phase=Phase.CALL, step=step, errors=0, calls=named, issued=frozenset())
            )


def _take_error(run: Run, event: Misread) -> Next:
    step = run.step + 1
    told = prompt.step_error(step, run.terms.max_steps, event.error, event.said)
    run = _say(run, Message("assistant", event.said), told)
    run = replace(run, step=step, errors=run.errors + 1)
    if run.errors > run.terms.max_retries:
        run, commands = _ask_answer(run)
        return run, (Warn(f"{event.error.type}: {event.error.detail}"), *commands)
    return _next_step(run)


def _take_result(run: Run, event: Returned) -> Next:
    run = replace(run, results=(*run.results, event.result))
    if _waited_for(run):
        return _start_ready(run)
    by_id = {result.call_id: result for result in run.results}
    told = prompt.step_results(run.step, run.terms.max_steps, run.calls, by_id)
    ends_phase = all(_is_terminal(run, call) and not by_id[call.id].error for call in run.calls)
    run = replace(_say(run, told), calls=(), issued=frozenset())
    return _ask_answer(run) if ends_phase else _next_step(run)


def _next_step(run: Run) -> Next:
    if run.step < run.terms.max_steps:
        return _ask(run)
    if run.terms.on_max_steps == "answer":
        return _ask_answer(run)
    text = prompt.max_steps_text(run.terms.max_steps)
    partial = tuple(replace(r, text=r.text[:PARTIAL_LIMIT], value=None) for r in run.results)
    return _command(run, Write(Exhausted(text, partial, run.usage)))


def _ask(run: Run) -> Next:
    messages = (*_lead(run), *run.messages)
    return _command(replace(run, phase=Phase.ACT), AskModel(messages, run.model_calls))


def _start_ready(run: Run) -> Next:
    """Command each call that can be made now, and record each that never will be."""
    done = {result.call_id: result for result in run.results}
    graph = Graph(run.calls, run.issued, done, run.offers)
    commands: list[Command] = []
    ids = set(run.issued)
    for decision in graph.startable(run.terms.max_parallel_calls):
        if isinstance(decision, Returned):
            ids.add(decision.result.call_id)
            commands.append(Write(decision))
        else:
            ids.add(decision.id)
            commands.append(MakeCall(decision, run.step))
    return _command(replace(run, issued=frozenset(ids)), *commands)


def _is_terminal(run: Run, call: Call) -> bool:
    tool = run.offers.tool(call.name) if isinstance(call, ToolCall) else None
    return tool is not None and tool.terminal


def _waited_for(run: Run) -> frozenset[str]:
    return frozenset(c.id for c in run.calls) - {result.call_id for result in run.results}


# Phase 2


def _ask_answer(run: Run) -> Next:
    final = Message("user", prompt.FINAL_PROMPT)
    messages = (*_lead(run), *run.messages, final)
    ask = AskModel(messages, run.model_calls, answer=True)
    return _command(replace(run, phase=Phase.ANSWER), ask)


def _take_answer(run: Run, reply: Replied) -> Next:
    """Take the end of the answer; a blank one is asked for once more (loop.md §7)."""
    finish_reason = reply.finish_reason if reply.finish_reason in _PASSED_ON else "stop"
    if run.answer.strip() or finish_reason != "stop":
        return _command(run, Write(Answered(run.answer, finish_reason)))
    if run.was_blank:
        return _command(run, Write(Failed("empty_answer", "the model gave no answer, twice")))
    return _ask_answer(replace(run, was_blank=True, answer_from=len(run.answer)))


def _forget_answer(run: Run, attempt: int) -> Run:
    return replace(run, answer="", answer_from=0, answer_seq=0, answer_attempts=attempt)


# A new owner


def _hand_over(run: Run, event: OwnerChanged) -> Next:
    """Say what is still to be done, by one who does not know how far the old owner came (§9)."""
    revised = tuple(_for_new_owner(run, command, event) for command in run.outstanding)
    return _command(replace(run, outstanding=()), *revised)


def _for_new_owner(run: Run, command: Command, event: OwnerChanged) -> Command:
    match command:
        case AskModel(answer=True):
            return replace(command, told=run.answer[run.answer_from :])
        case MakeCall(call) if call.id in run.started or event.lost_tail:
            if is_repeatable(call, run.offers):
                return replace(command, again=call.id in run.started)
            return Write(failure(call, "unknown", prompt.OUTCOME_UNKNOWN))
        case _:
            return command


# Both


def _lead(run: Run) -> tuple[Message, ...]:
    system = (Message("system", run.system),) if run.system else ()
    return system + run.history


def _say(run: Run, *messages: Message) -> Run:
    return replace(run, messages=run.messages + messages)


def _count(run: Run, reply: Replied) -> Run:
    return replace(run, model_calls=run.model_calls + 1, usage=run.usage + reply.usage)


def _command(run: Run, *commands: Command) -> Next:
    lasting = tuple(command for command in commands if not isinstance(command, Warn))
    return replace(run, outstanding=run.outstanding + lasting), commands


def _settle(run: Run, event: Event) -> Run:
    """Take off the outstanding commands that this event answers."""
    left = tuple(command for command in run.outstanding if not _answers(event, command))
    return run if len(left) == len(run.outstanding) else replace(run, outstanding=left)


def _answers(event: Event, command: Command) -> bool:
    match command, event:
        case AskModel(), Replied():
            return True
        case MakeCall(call), Returned(result):
            return call.id == result.call_id
        case Write(Returned(due)), Returned(result):
            return due.call_id == result.call_id
        case Write(due), _:  # whatever its words: another version may have chosen them
            return type(due) is type(event)
        case _:
            return False


def _end(run: Run, end: Terminal) -> Next:
    said = () if run.phase is Phase.QUEUED else run.messages  # a run that never began said nothing
    return replace(run, phase=Phase.DONE, messages=said, outstanding=(), end=end), ()


def _reason(end: Stop) -> str:
    return end.reason if isinstance(end, Aborted) else end.message
