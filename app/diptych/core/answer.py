"""Phase 2, ANSWER: asks for the answer, checks it, and ends the run or its turn (loop.md §2, §7).

A reply that is blank or an action is not sent to the user; the model is asked once more. An answer
that does not fit the run's schema is repaired up to `answer_repairs` times.
"""

from dataclasses import replace
from typing import Literal

from diptych.core.answer_gate import is_call, is_only_no_op
from diptych.core.asking import ask_for_answer, next_step
from diptych.core.commands import Emit, JudgeAnswer, Warn
from diptych.core.events import Answered, AnswerReset, Completed, Failed, Replied, Streamed
from diptych.core.messages import JSONObject, Message
from diptych.core.output_schema import Fit, read_output
from diptych.core.pending import Next, is_asking, issue
from diptych.core.prompt import Repair
from diptych.core.queues import begin_turn, queued_messages
from diptych.core.state import Candidate, Draft, Phase, Run, append_messages, updated

_KEPT_FINISH_REASONS = frozenset({"length", "content_filter"})  # others become "stop" (§2)
_LAST_TEXT_CHARS = 100_000  # of an invalid answer, in the `Failed` event


def take_answer(run: Run, reply: Replied) -> Next:
    """Handle a reply in phase 2: send it, ask again, or fail the run.

    The answer consists of the text streamed so far and the rest in the reply.
    """
    text = run.draft.text[run.draft.new_from :] + reply.text
    # `{}` may fit a schema; if any object would do, treat it as a no-op.
    is_no_op = not run.output_schema and is_only_no_op(text)
    if is_no_op or reply.calls or is_call(text, run.catalog):
        return _take_action(run, reply)
    if not text.strip() and _kept_reason(reply.finish_reason) == "stop":
        again = updated(run, draft=replace(run.draft, new_from=len(run.draft.text)))
        return _ask_again(
            again,
            "blank",
            Failed(
                "empty_answer",
                "the model's answer was empty twice",
            ),
        )
    if run.output_schema is not None:
        return _take_output(run, reply, run.output_schema)
    return offer_answer(run, reply.text, reply.finish_reason)


def offer_answer(run: Run, rest: str, finish_reason: str, *, is_json: bool = False) -> Next:
    """Send an answer, after hooks have validated it, if there are any."""
    if "validateAnswer" not in run.settings.hooks:
        return give_answer(run, rest, finish_reason, is_json=is_json)
    draft = replace(run.draft, candidate=Candidate(rest, finish_reason, is_json))
    return issue(updated(run, draft=draft), JudgeAnswer(rest))


def repair_answer(run: Run, text: str, problem: str, *, is_refused: bool = False) -> Next:
    """Ask the model to fix its answer, or fail the run once the repairs are used up.

    `is_refused`: a hook refused the answer; otherwise it does not fit its schema.
    """
    if run.draft.repairs >= run.settings.answer_repairs:
        why = "the answer was refused" if is_refused else "the answer does not fit its schema"
        failed = Failed("invalid_output", f"{why}: {problem}", text[:_LAST_TEXT_CHARS])
        return issue(run, Emit(failed))
    is_text = run.output_schema is None
    repair = Repair(text, problem, is_text=is_text)
    draft = replace(run.draft, repairs=run.draft.repairs + 1, repair=repair)
    return _ask(updated(run, draft=draft))


def give_answer(run: Run, rest: str, finish_reason: str, *, is_json: bool = False) -> Next:
    """Send the rest of an answer, and record the whole."""
    reason = _kept_reason(finish_reason)
    answered = Emit(Answered(run.draft.text + rest, reason, is_json))
    return issue(run, Emit(Streamed(rest)), answered) if rest else issue(run, answered)


def end_turn(run: Run, event: Answered) -> Next:
    """End the run, or begin the next turn with a queued message (§6)."""
    run = append_messages(run, Message("assistant", event.text))
    if not queued_messages(run):
        return issue(run, Emit(Completed(event.finish_reason, run.usage)))
    return next_step(begin_turn(updated(run, draft=Draft())))


def take_reset(run: Run, attempt: int) -> Next:
    """Void the answer's text, and ask again unless a request is already pending."""
    run = reset_answer(run, attempt)
    return (run, ()) if run.phase is not Phase.ANSWER or is_asking(run) else _ask(run)


def reset_answer(run: Run, attempt: int) -> Run:
    """Void the answer's text; `attempt` counts from 1."""
    return updated(run, draft=replace(run.draft, text="", new_from=0, seq=0, attempts=attempt))


def _take_action(run: Run, reply: Replied) -> Next:
    """Ask once more, because the answer is an action.

    In `answerMode: direct`, a written call after streamed text is not made: the text is the answer
    (§2). Native calls after text are made; see `act.is_late_reply`. Leftovers of a no-op or a list,
    such as `}`, are not an answer.
    """
    if (
        run.draft.is_direct
        and not is_only_no_op(run.draft.text)
        and not is_call(run.draft.text, run.catalog)
    ):
        run, commands = give_answer(run, "", reply.finish_reason)
        return run, (
            Warn("the model wrote a call after its answer; the call was not made"),
            *commands,
        )
    failed = Failed(
        "answer_not_given",
        "the model replied with a call or {} twice when asked for its answer",
    )
    return _ask_again(run, "action", failed)


def _take_output(run: Run, reply: Replied, schema: JSONObject) -> Next:
    """Send an answer that fits its schema; ask the model to repair any other."""
    found = read_output(schema, reply.text)
    if isinstance(found, Fit):
        return offer_answer(run, found.text, reply.finish_reason, is_json=True)
    problem = found.problem
    if reply.finish_reason == "length":
        problem = f"it was cut off by the length limit, be briefer; {problem}"
    return repair_answer(run, reply.text, problem)


def _ask_again(run: Run, why: Literal["blank", "action"], failed: Failed) -> Next:
    if run.draft.asked_again and not run.queues.steering:
        return issue(run, Emit(failed))
    run = updated(run, draft=replace(run.draft, asked_again=why))
    if why == "action" and run.draft.text:
        return issue(run, Emit(AnswerReset(run.draft.seq, run.draft.attempts + 1)))
    return _ask(run)


def _ask(run: Run) -> Next:
    """Ask for the answer again, or begin the turn of a message that came meanwhile (§6)."""
    if not run.queues.steering:
        return ask_for_answer(run)
    return next_step(updated(run, step_limit=run.step + run.settings.max_steps))


def _kept_reason(finish_reason: str) -> str:
    return finish_reason if finish_reason in _KEPT_FINISH_REASONS else "stop"
