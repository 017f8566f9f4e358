"""What follows from a refusal as too long, and from a summary (loop.md §11)."""

from dataclasses import replace

from diptych.core import prompt
from diptych.core.asking import ask_for_actions, ask_for_answer, too_long
from diptych.core.commands import Emit
from diptych.core.context_window import MAX_REFUSALS
from diptych.core.events import Compacted, ContextRefused
from diptych.core.excerpts import excerpt
from diptych.core.messages import Message
from diptych.core.pending import Next, issue
from diptych.core.rendering import action_request, answer_request
from diptych.core.state import Phase, Run, append_messages, updated
from diptych.core.tokens import request_weight

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
    return _ask(run)


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
    return _ask(run)


def _ask(run: Run) -> Next:
    return ask_for_actions(run) if run.phase is Phase.ACT else ask_for_answer(run)


def _weight(run: Run) -> int:
    """The weight of the newest request, which was not taken while no window was known."""
    request = action_request(run) if run.phase is Phase.ACT else answer_request(run)
    return request_weight(request)
