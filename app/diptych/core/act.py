"""Phase 1, ACT: handles replies, rejections and results (loop.md §2, §3, §5, §12)."""

from collections.abc import Mapping
from dataclasses import replace

from diptych.core import prompt
from diptych.core.answer import give_answer, reset_answer
from diptych.core.answer_gate import is_only_no_op
from diptych.core.asking import ask_for_answer, may_answer, next_step
from diptych.core.call_graph import Graph, failure
from diptych.core.catalog import function_name
from diptych.core.commands import Command, Emit, JudgeCall, JudgeStep, MakeCall, Warn
from diptych.core.events import (
    AnswerReset,
    Called,
    InputReceived,
    InputRequested,
    Replied,
    ReplyRejected,
    Returned,
)
from diptych.core.excerpts import is_reader, mark_results, read_text
from diptych.core.messages import Call, Message, NativeCall, Result, ToolCall
from diptych.core.pending import Next, issue
from diptych.core.reading import (
    MALFORMED_CALL,
    ActionError,
    Calls,
    NoOp,
    Prose,
    read_native,
    read_reply,
    strip_lead,
)
from diptych.core.reading.verdict import listed, quoted
from diptych.core.spending import is_counted, take_child_use
from diptych.core.state import (
    NativeReply,
    Phase,
    Run,
    StepProgress,
    append_messages,
    calls_awaiting_decision,
    calls_awaiting_input,
    conversation,
    current_waits,
    open_calls,
    updated,
)
from diptych.core.stuck import note_asked, note_sent, note_step

SUPERSEDED_ID = "superseded"
_READ_SHARE = 1 / 8  # of the context window, for one piece of a text that is read on


def take_reply(run: Run, reply: Replied) -> Next:
    """Act on a phase-1 reply: make its calls, reject it, or begin phase 2."""
    if reply.calls:
        return _take_native(run, reply)
    run = updated(run, native_reply=None)
    max_calls = run.settings.max_calls_per_step
    said, found = read_reply(reply.text, reply.finish_reason, run.catalog, max_calls)
    match found:
        case ActionError():
            return issue(run, Emit(ReplyRejected(found, said[: prompt.SAID_LIMIT])))
        case NoOp() | Prose():
            if run.queues.steering:
                return next_step(run)
            is_answer = isinstance(found, Prose) and said.strip() and not is_only_no_op(said)
            if is_answer and may_answer(run):
                return give_answer(updated(run, phase=Phase.ANSWER), said, reply.finish_reason)
            return ask_for_answer(run)
        case Calls():
            run, commands = _begin_step(run, _named(run, found), Message("assistant", said))
            if not found.ignored:
                return run, commands
            keys = listed(map(quoted, found.ignored))
            return run, (Warn(f"ignored unknown keys in the reply: {keys}"), *commands)


def is_late_reply(run: Run, reply: Replied) -> bool:
    """Whether a reply in phase 2 turns out to be a phase-1 reply with calls.

    In direct mode, the first text is taken for the answer. But native calls may follow the text,
    and a new owner that repeats the request may get calls instead.
    """
    is_call = bool(reply.calls) or reply.finish_reason == MALFORMED_CALL
    return run.draft.is_direct and (is_call or not run.draft.text)


def take_late_reply(run: Run, reply: Replied) -> Next:
    """Handle a phase-1 reply that arrived in phase 2: void the text already sent, then act on it.

    The voided text stays part of the reply.
    """
    void = AnswerReset(run.draft.seq, run.draft.attempts + 1)
    was_sent = bool(run.draft.text)
    reply = replace(reply, text=run.draft.text[run.draft.new_from :] + reply.text)
    run = reset_answer(run, run.draft.attempts)
    run = updated(run, phase=Phase.ACT, draft=replace(run.draft, is_direct=False))
    if not was_sent:
        return take_reply(run, reply)
    run, commands = take_reply(run, reply)
    emit = Emit(void)
    return updated(run, pending=(emit, *run.pending)), (emit, *commands)


def take_rejected_reply(run: Run, event: ReplyRejected) -> Next:
    """Tell the model what was wrong; after too many rejections in a row, ask for the answer."""
    step = run.step + 1
    rejection = prompt.step_error(step, run.step_limit, event.error)
    said = (Message("assistant", event.said),) if event.said.strip() else ()
    messages: tuple[Message, ...] = (*said, rejection)
    if run.native_reply:
        messages = rejection_messages(run.native_reply, event)
    run = append_messages(run, *messages)
    run = updated(run, step=step, errors=run.errors + 1, native_reply=None)
    if run.errors > run.settings.max_retries and not run.queues.steering:
        run, commands = ask_for_answer(run)
        return run, (Warn(f"{event.error.type}: {event.error.detail}"), *commands)
    return next_step(run)


def take_result(run: Run, event: Returned) -> Next:
    """Record a result; once every call of the step has one, continue."""
    result = _with_changes(run, event.result)
    child = result.child.usage if result.child else None
    children_usage = run.children_usage + child if child else run.children_usage
    run = updated(
        take_child_use(run, result),
        results=(*run.results, result),
        waits=tuple(wait for wait in run.waits if wait.own_call != result.call_id),
        progress=replace(
            run.progress, awaiting_hooks=run.progress.awaiting_hooks - {result.call_id}
        ),
        children_usage=children_usage,
    )
    if open_calls(run):
        return start_ready(run)
    by_id = {result.call_id: result for result in run.results}
    if run.native_reply:
        messages = result_messages(run.native_reply, by_id)
    else:
        step, calls = run.step, run.calls
        results = prompt.step_results(step, run.step_limit, calls, by_id, run.nonce)
        texts = (by_id[call.id].text for call in calls)
        sources = (prompt.source(call, by_id[call.id]) for call in calls)
        messages = (mark_results(results, texts, sources),)
    calls = run.calls
    run, stuck = note_step(run, by_id)
    ends_phase = all(_is_terminal(run, call) and not by_id[call.id].error for call in calls)
    run = updated(append_messages(run, *messages), calls=(), native_reply=None)
    if stuck:
        return issue(updated(run, phase=Phase.ACT), Emit(stuck))
    if ends_phase and not run.queues.steering:
        return ask_for_answer(run)
    if "afterStep" in run.settings.hooks:
        return issue(run, JudgeStep(run.step, calls))
    return next_step(run)


def start_ready(run: Run) -> Next:
    """Issue commands for the calls that can start now; skip those that never can."""
    done = {result.call_id: result for result in run.results}
    needs_hooks = _needing_hooks(run)
    graph = Graph(
        run.calls,
        run.progress.issued,
        done,
        run.catalog,
        calls_awaiting_decision(run),
        calls_awaiting_input(run),
        filled=run.progress.approved | run.progress.rewritten,
        needs_hooks=needs_hooks,
        awaiting_hooks=run.progress.awaiting_hooks,
    )
    commands: list[Command] = _cancelled_inputs(run) if run.queues.steering else []
    ids, awaiting_hooks = set(run.progress.issued), set(run.progress.awaiting_hooks)
    max_parallel = run.settings.max_parallel_calls
    for due in graph.superseded() if run.queues.steering else graph.startable(max_parallel):
        if isinstance(due, Returned):
            ids.add(due.result.call_id)
            commands.append(Emit(due))
        elif due.id in needs_hooks:
            awaiting_hooks.add(due.id)
            commands.append(JudgeCall(due, run.step))
        else:
            ids.add(due.id)
            is_approved = due.id in run.progress.approved
            run = note_asked(run, due)
            commands.append(
                Emit(Called(due, run.step))
                if is_reader(due)
                else MakeCall(due, run.step, is_approved=is_approved)
            )
    progress = replace(
        run.progress, issued=frozenset(ids), awaiting_hooks=frozenset(awaiting_hooks)
    )
    return issue(updated(run, progress=progress), *commands)


def _cancelled_inputs(run: Run) -> list[Command]:
    """Cancel the questions that a message superseded; their calls go on."""
    return [
        Emit(InputReceived(wait.call_id, "cancel", SUPERSEDED_ID, wait.seq))
        for wait in current_waits(run)
        if isinstance(wait.asked, InputRequested)
    ]


def _needing_hooks(run: Run) -> frozenset[str]:
    """Return the ids of calls that hooks must check first."""
    if "beforeCall" not in run.settings.hooks:
        return frozenset()
    return frozenset(c.id for c in run.calls if not is_reader(c)) - run.progress.passed_hooks


def begin_call(run: Run, event: Called) -> Next:
    """Mark a call as sent; calls of `result__read` are answered here, at once."""
    call, count = event.call, run.tool_calls + is_counted(event.call)
    if event.budget:
        run = updated(run, shares={**run.shares, call.id: event.budget})
    run = note_sent(updated(run, started=(*run.started, call.id), tool_calls=count), call)
    if event.context_id:
        run = updated(run, context_ids={**run.context_ids, call.id: event.context_id})
    if not (is_reader(call) and isinstance(call, ToolCall)):
        return run, ()
    max_weight = run.window.weight(_READ_SHARE)
    text = read_text(conversation(run), call.arguments, max_weight)
    if text is None:
        return issue(run, Emit(failure(call, "failed", "there is no text with this id")))
    return issue(run, Emit(Returned(Result(call.id, text), "tool", call.name)))


def _take_native(run: Run, reply: Replied) -> Next:
    """Act on a reply with native calls, even if the request offered none."""
    max_calls = run.settings.max_calls_per_step
    found = read_native(reply.calls, reply.finish_reason, run.catalog, max_calls)
    kept = native_reply(reply)
    if isinstance(found, ActionError):
        rejected = ReplyRejected(found, said_by(reply)[: prompt.SAID_LIMIT])
        return issue(updated(run, native_reply=kept), Emit(rejected))
    calls = _named(run, found)
    run = updated(run, native_reply=with_call_ids(kept, found, calls))
    return _begin_step(run, calls, asking_message(kept))


def _named(run: Run, found: Calls) -> tuple[Call, ...]:
    """Assign run-wide ids to the calls of a reply."""
    return tuple(replace(c, id=f"call_{run.step + 1}_{n}") for n, c in enumerate(found.calls, 1))


def _begin_step(run: Run, calls: tuple[Call, ...], reply: Message) -> Next:
    run = updated(append_messages(run, reply), phase=Phase.CALL, step=run.step + 1, errors=0)
    return start_ready(updated(run, calls=calls, progress=StepProgress()))


def _with_changes(run: Run, result: Result) -> Result:
    """Prefix a result with the call as made, if an approver edited the call."""
    if result.call_id not in run.progress.edited:
        return result
    call = next(call for call in run.calls if call.id == result.call_id)
    return replace(result, text=f"{prompt.changed_call(call)}\n{result.text}")


def _is_terminal(run: Run, call: Call) -> bool:
    tool = run.catalog.tool(call.name) if isinstance(call, ToolCall) else None
    return tool is not None and tool.terminal


def native_reply(reply: Replied) -> NativeReply:
    """Return a native reply to keep in the conversation, with names that every API accepts.

    An invalid name would make the provider reject all later requests of the session.
    """
    calls = tuple(replace(call, name=function_name(call.name)) for call in reply.calls)
    return NativeReply(strip_lead(reply.text)[0], calls, reasoning=reply.reasoning)


def with_call_ids(reply: NativeReply, found: Calls, named: tuple[Call, ...]) -> NativeReply:
    """Map each native call to the id of the run's call that it became."""
    places = found.places or range(len(named))
    return replace(reply, call_ids=tuple(named[place].id for place in places))


def said_by(reply: Replied) -> str:
    """Return a native reply as text, for people and for the log of a rejection."""
    calls = (f"{call.name}({call.arguments})" for call in reply.calls)
    return "\n".join(filter(None, (strip_lead(reply.text)[0], *calls)))


def asking_message(reply: NativeReply) -> Message:
    """Return the assistant message with a reply's native calls."""
    return Message("assistant", reply.text, reply.calls, reasoning=reply.reasoning)


def result_messages(reply: NativeReply, results: Mapping[str, Result]) -> tuple[Message, ...]:
    """Return a step's results as `tool` messages; `results` is keyed by call id."""
    texts = (prompt.native_result(results[call_id]) for call_id in reply.call_ids)
    return _answers(reply.calls, tuple(texts))


def rejection_messages(reply: NativeReply, event: ReplyRejected) -> tuple[Message, ...]:
    """Return the rejected reply, with its error as the result of each of its calls."""
    texts = (prompt.native_error(event.error, event.said, n) for n in range(len(reply.calls)))
    return asking_message(reply), *_answers(reply.calls, tuple(texts))


def _answers(calls: tuple[NativeCall, ...], texts: tuple[str, ...]) -> tuple[Message, ...]:
    answers = zip(calls, texts, strict=True)
    return tuple(Message("tool", text, call_id=call.id) for call, text in answers)
