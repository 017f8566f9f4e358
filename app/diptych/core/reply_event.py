"""The event that ends a request to the model: a reply, a summary, or a failure."""

from diptych.core.commands import AskModel
from diptych.core.errors import ModelError
from diptych.core.events import Compacted, ContextRefused, Failed, FormatChanged, Replied
from diptych.core.reading import MALFORMED_CALL, strip_lead


def event_of_reply(command: AskModel, reply: Replied) -> Replied | Compacted:
    """Say what a whole reply is: a summary, if one was asked for."""
    if command.purpose != "summary":
        return reply
    return Compacted(strip_lead(reply.text)[0], command.keeps, reply.usage)


def event_of_failure(
    command: AskModel, error: ModelError
) -> Failed | Compacted | ContextRefused | FormatChanged | Replied:
    """Say what follows from a model's failure: without a summary or native calls a run can go on.

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
