"""Decides on the next model request: for actions, for the answer, for a summary, or none.

A conversation that has become too long is summarized first (loop.md §11).
"""

from dataclasses import dataclass, replace

from diptych.core import prompt
from diptych.core.commands import AskModel, Emit, Purpose
from diptych.core.context_window import MAX_REFUSALS
from diptych.core.errors import ModelError
from diptych.core.events import (
    Compacted,
    ContextRefused,
    Failed,
    FormatChanged,
    Replied,
    StepsExhausted,
)
from diptych.core.excerpts import excerpt, with_reader
from diptych.core.fitting import fit, summarised
from diptych.core.messages import Message
from diptych.core.model_request import request_weight
from diptych.core.pending import Next, issue
from diptych.core.queues import deliver_next, deliver_steering
from diptych.core.reading import MALFORMED_CALL, strip_lead
from diptych.core.rendering import (
    ANSWER_PARAMETERS,
    action_request,
    answer_request,
    summary_request,
)
from diptych.core.spending import ends_phase_1, exhausted, used_by, used_up
from diptych.core.state import Phase, Run, append_messages, conversation, updated
from diptych.core.tokens import prompt_weight

_MAX_SHARE = 0.9  # of the window that a request should take
_MAX_ESTIMATE = 2.0  # times the window; requests estimated to be longer are not sent
PARTIAL_RESULT_CHARS = 500  # of each result, in the terminal event at `max_steps`


def next_step(run: Run) -> Next:
    """Ask for the next actions, unless the steps or the budget are used up."""
    limit = ends_phase_1(run)
    if run.step < run.step_limit and not limit:
        return ask_for_actions(deliver_next(run))
    if run.settings.on_max_steps == "answer":
        return ask_for_answer(deliver_next(run))
    run = deliver_steering(run)
    if limit and run.step < run.step_limit:
        end = used_up(limit, used_by(run), run.budget)
        return issue(updated(run, phase=Phase.ACT), Emit(end))
    text = prompt.max_steps_text(run.settings.max_steps)
    partial = tuple(replace(r, text=r.text[:PARTIAL_RESULT_CHARS], value=None) for r in run.results)
    return issue(run, Emit(StepsExhausted(text, partial, run.usage)))


def ask_for_actions(run: Run) -> Next:
    """Ask for a phase-1 reply."""
    return _ask(_in_phase(run, Phase.ACT))


def may_answer(run: Run) -> bool:
    """Whether a phase-1 reply without calls is the answer (`answerMode: direct`).

    Never with an output schema, a `validateAnswer` hook, or parameters that apply to answers only:
    these need phase 2.
    """
    is_bound = run.output_schema is not None or not ANSWER_PARAMETERS.isdisjoint(
        run.request.parameters
    )
    is_bound = is_bound or "validateAnswer" in run.settings.hooks
    return run.settings.answer_mode == "direct" and not is_bound


def change_format(run: Run, event: FormatChanged) -> Next:
    """Ask again in the format that the endpoint accepts; the refusal counts as no step.

    Earlier context refusals are forgotten: they say nothing about the new format.
    """
    window = replace(run.window, sent=0, others=0, refusals=0)
    system = run.json_system
    return next_step(updated(run, action_format=event.action_format, system=system, window=window))


def ask_for_answer(run: Run) -> Next:
    """Begin phase 2, or ask for its answer again."""
    return _ask(_in_phase(run, Phase.ANSWER))


def too_long(run: Run, sent: int) -> Failed:
    """Return the failure of a run whose request cannot be made to fit; `sent` is its weight."""
    window = run.window
    others = window.tokens(prompt_weight(run.system))
    return Failed(
        "context_too_long",
        f"the request has about {window.tokens(sent)} tokens after shortening, and the model's "
        f"context window has {window.limit}. The instructions and tools take about {others}; "
        "most of the rest is the last message. Send a shorter message, offer fewer tools, or use "
        "a model with a larger context window.",
    )


def _in_phase(run: Run, phase: Phase) -> Run:
    return updated(run, phase=phase, draft=replace(run.draft, is_direct=False))


def _ask(run: Run) -> Next:
    if end := exhausted(run):
        return issue(run, Emit(end))
    asked = _fitting(run)
    if asked.is_crowded and asked.others > run.window.others:
        # Native calls written as text, a schema or an answer to repair took more room than
        # estimated: fit again with the true overhead.
        asked = _fitting(updated(run, window=replace(run.window, others=asked.others)))
    return issue(asked.run, asked.command) if asked.weight is None else _send(asked)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request ready to send; `others` is the weight of everything but the conversation.

    `weight` is that of the whole request; None if the window is unknown, and for summaries.
    """

    run: Run
    command: AskModel
    weight: int | None = None
    others: int = 0

    @property
    def is_crowded(self) -> bool:
        """Whether the request leaves too little room for the reply."""
        window = self.run.window
        if self.weight is None or window.limit is None:
            return False
        return window.tokens(self.weight) > window.limit * _MAX_SHARE


def _fitting(run: Run) -> _Asked:
    """Return a request that fits, or a request for a summary."""
    fitted = fit(run)
    if fitted.cut is not None:
        keeps = len(conversation(run)) - fitted.cut
        request = summary_request(run, summarised(run, fitted.cut))
        return _Asked(run, AskModel(request, "summary", keeps=keeps))
    run = updated(run, catalog=with_reader(run.catalog, is_offered=fitted.has_excerpts))
    command = _command(updated(run, sent=fitted.messages))
    if run.window.limit is None:
        return _Asked(run, command)
    known = {id(m): each for m, each in zip(fitted.messages, fitted.weights, strict=True)}
    sent = request_weight(command.request, known)
    return _Asked(run, replace(command, weight=sent), sent, sent - sum(fitted.weights))


def _command(run: Run) -> AskModel:
    if run.phase is not Phase.ACT:
        return AskModel(answer_request(run), "answer", run.draft.text[run.draft.new_from :])
    may_be_answer = may_answer(run)
    purpose: Purpose = "either" if may_be_answer else "actions"
    may_change = run.action_format == "native" and run.settings.action_format == "auto"
    request = action_request(run, may_answer=may_be_answer)
    return AskModel(request, purpose, may_change_format=may_change)


def _send(asked: _Asked) -> Next:
    """Send the request unless it cannot possibly fit.

    Weights are estimates, and a refusal is free. So before the first refusal, anything that might
    fit is sent; after one, anything smaller than the refused request.
    """
    run, window, sent = asked.run, asked.run.window, asked.weight or 0
    if window.refusals:
        is_hopeless = sent >= window.sent
    else:
        max_tokens = (window.limit or 0) * _MAX_ESTIMATE
        is_hopeless = window.is_measured and window.tokens(sent) > max_tokens
    if is_hopeless:
        return issue(run, Emit(too_long(run, sent)))
    window = replace(window, sent=sent, others=asked.others)
    return issue(updated(run, window=window), asked.command)


_SUMMARY_SHARE = 1 / 8  # of the window that a summary may take


def ask_again(run: Run, refused: ContextRefused) -> Next:
    """Learn from a refusal and send less, or end the run if that is impossible."""
    weight = run.window.sent or _weight(run)
    run = updated(
        run,
        window=run.window.refused(weight, refused.max_tokens, refused.prompt_tokens),
    )
    if run.window.refusals > MAX_REFUSALS:
        return issue(run, Emit(too_long(run, weight)))
    return _ask_in_phase(run)


def take_summary(run: Run, event: Compacted) -> Next:
    """Replace the older messages by a summary, then send the original request."""
    text = excerpt(event.summary.strip(), run.window.weight(_SUMMARY_SHARE))
    message = Message("user", prompt.summary(text), keeps=event.keeps)
    run = append_messages(run, message)
    run = updated(
        run,
        model_calls=run.model_calls + (event.error is None),
        usage=run.usage + event.usage,
        window=replace(run.window, has_compacted=True),
    )
    return _ask_in_phase(run)


def _ask_in_phase(run: Run) -> Next:
    return ask_for_actions(run) if run.phase is Phase.ACT else ask_for_answer(run)


def _weight(run: Run) -> int:
    """Return the weight of the newest request, which was not weighed without a window."""
    request = action_request(run) if run.phase is Phase.ACT else answer_request(run)
    return request_weight(request)


def event_of_reply(command: AskModel, reply: Replied) -> Replied | Compacted:
    """Return the event for a model's reply: `Compacted` if a summary was requested."""
    if command.purpose != "summary":
        return reply
    return Compacted(strip_lead(reply.text)[0], command.keeps, reply.usage)


def event_of_failure(
    command: AskModel, error: ModelError
) -> Failed | Compacted | ContextRefused | FormatChanged | Replied:
    """Return the event for a failed request.

    A run goes on without its summary, and without native calls unless the manifest insists on them.
    A call that the model's server could not parse counts as a malformed reply.
    """
    if command.purpose == "summary":
        return Compacted("", command.keeps, error=error.code)
    if error.code == "tools_refused" and command.may_change_format:
        return FormatChanged("json", error.message)
    if error.code == "context_too_long":
        return ContextRefused(error.max_tokens, error.prompt_tokens)
    if error.code == "malformed_call" and command.purpose in ("actions", "either"):
        return Replied(error.written, finish_reason=MALFORMED_CALL)
    return Failed(error.code, error.message)
