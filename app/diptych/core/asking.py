"""What the model of a run is asked next: for actions or for the answer, or nothing any more.

Where the conversation has become too long, it is asked for a summary of it first (loop.md §11).
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

_CROWDED = 0.9  # the share of the window that a request may take
_HOPELESS = 2.0  # of the window: what is estimated to be longer is not sent
PARTIAL_RESULT_CHARS = 500  # of each result, in the terminal event at `max_steps`


def next_step(run: Run) -> Next:
    """Ask the model for the next actions, unless all steps are used, or the run's budget is."""
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
    """Whether a phase-1 reply without an action is the answer: with `answerMode: direct`.

    That is not the default. With a schema, a hook that validates answers, or a parameter that is
    about the answer alone, it is not: only phase 2 asks so.
    """
    is_bound = run.output_schema is not None or not ANSWER_PARAMETERS.isdisjoint(
        run.request.parameters
    )
    is_bound = is_bound or "validateAnswer" in run.settings.hooks
    return run.settings.answer_mode == "direct" and not is_bound


def change_format(run: Run, event: FormatChanged) -> Next:
    """Ask again, in the format that the endpoint takes. The refusal cost no step.

    What was refused as too long before says nothing of a request in another format.
    """
    window = replace(run.window, sent=0, others=0, refusals=0)
    system = run.json_system
    return next_step(updated(run, action_format=event.action_format, system=system, window=window))


def ask_for_answer(run: Run) -> Next:
    """Begin phase 2, or ask for its answer again."""
    return _ask(_in_phase(run, Phase.ANSWER))


def too_long(run: Run, sent: int) -> Failed:
    """The end of a run whose request cannot be made to fit; `sent` is the request's weight."""
    window = run.window
    others = window.tokens(prompt_weight(run.system))
    return Failed(
        "context_too_long",
        f"the request has about {window.tokens(sent)} tokens, and the model takes {window.limit}, "
        "although everything is left out that can be. The instructions and tools have about "
        f"{others}; most of the rest is the last message. Send a shorter message, offer fewer "
        "tools, or use a model with a larger context window.",
    )


def _in_phase(run: Run, phase: Phase) -> Run:
    return updated(run, phase=phase, draft=replace(run.draft, is_direct=False))


def _ask(run: Run) -> Next:
    if end := exhausted(run):
        return issue(run, Emit(end))
    asked = _fitting(run)
    if asked.is_crowded and asked.others > run.window.others:
        # There is more beside the conversation than was known when it was made to fit: native
        # calls as text, a schema, an answer to repair.
        asked = _fitting(updated(run, window=replace(run.window, others=asked.others)))
    return issue(asked.run, asked.command) if asked.weight is None else _send(asked)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a run is about to ask; `others` is the weight of all but the conversation.

    `weight` is that of the request, None without a window and for a summary.
    """

    run: Run
    command: AskModel
    weight: int | None = None
    others: int = 0

    @property
    def is_crowded(self) -> bool:
        """Whether the request leaves too little of the window for its reply."""
        window = self.run.window
        if self.weight is None or window.limit is None:
            return False
        return window.tokens(self.weight) > window.limit * _CROWDED


def _fitting(run: Run) -> _Asked:
    """Return a request that fits, or for a summary; it is weighed once, here."""
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
    """Ask, unless there is no hope.

    What fits is an estimate, often measured of other requests, and a refusal costs nothing. So
    after one any smaller request is tried, and before one all that may just fit.
    """
    run, window, sent = asked.run, asked.run.window, asked.weight or 0
    if window.refusals:
        is_hopeless = sent >= window.sent
    else:
        most = (window.limit or 0) * _HOPELESS
        is_hopeless = window.is_measured and window.tokens(sent) > most
    if is_hopeless:
        return issue(run, Emit(too_long(run, sent)))
    window = replace(window, sent=sent, others=asked.others)
    return issue(updated(run, window=window), asked.command)


_SUMMARY_SHARE = 1 / 8  # of the window that a summary may take


def ask_again(run: Run, refused: ContextRefused) -> Next:
    """Learn from a refusal, and ask again with less; end the run if less is not possible."""
    weight = run.window.sent or _weight(run)
    run = updated(
        run,
        window=run.window.refused(weight, refused.max_tokens, refused.prompt_tokens),
    )
    if run.window.refusals > MAX_REFUSALS:
        return issue(run, Emit(too_long(run, weight)))
    return _ask_in_phase(run)


def take_summary(run: Run, event: Compacted) -> Next:
    """Let a summary stand for the messages before those it keeps, and ask what was to be asked."""
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
    """The weight of the newest request, which was not taken while no window was known."""
    request = action_request(run) if run.phase is Phase.ACT else answer_request(run)
    return request_weight(request)


def event_of_reply(command: AskModel, reply: Replied) -> Replied | Compacted:
    """Return what a whole reply is: a summary, if one was asked for."""
    if command.purpose != "summary":
        return reply
    return Compacted(strip_lead(reply.text)[0], command.keeps, reply.usage)


def event_of_failure(
    command: AskModel, error: ModelError
) -> Failed | Compacted | ContextRefused | FormatChanged | Replied:
    """Return what follows from a failed request; without a summary or native calls a run goes on.

    It cannot without native calls where the manifest insists on them. A call that the model's
    server could not read is a reply of phase 1, and not a good one.
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
