"""Takes the secrets of this process out of what a model says, before anything else sees it.

A model's server has the key that it was asked with, and what tools and agents said. A reply that
repeats a secret must not bring it into an answer, a record or a call.
"""

from dataclasses import replace
from typing import cast

from diptych.core.errors import ModelError
from diptych.core.messages import JSONObject, NativeCall
from diptych.net.redaction import SECRETS
from diptych.ports import Delta, Reply


def redacted_reply(reply: Reply) -> Reply:
    """Give a whole reply without secrets."""
    text, reasoning = SECRETS.redact(reply.text), SECRETS.redact(reply.reasoning)
    calls, finish_reason = _redacted_calls(reply.calls), SECRETS.redact(reply.finish_reason)
    return Reply(text, reply.usage, finish_reason, reasoning, calls)


class RedactedDeltas:
    """Takes the secrets out of one streamed reply.

    A few characters that may begin a secret come with a later piece, or never if the reply breaks
    off.
    """

    def __init__(self) -> None:
        self._text, self._reasoning = SECRETS.stream(), SECRETS.stream()

    def redacted(self, delta: Delta) -> Delta:
        """Give the next piece of the reply without secrets."""
        said, thought = self._text.add(delta.text), self._reasoning.add(delta.reasoning)
        if delta.finish_reason is None:
            is_same = said is delta.text and thought is delta.reasoning
            return delta if is_same else replace(delta, text=said, reasoning=thought)
        text, reasoning = said + self._text.end(), thought + self._reasoning.end()
        reason = SECRETS.redact(delta.finish_reason)
        return Delta(text, reasoning, delta.usage, reason, _redacted_calls(delta.calls))


def redacted_failure(error: ModelError) -> ModelError:
    """Give the same failure, with a message without secrets."""
    error.message = SECRETS.redact(error.message)
    error.args = (error.message,)
    return error


def _redacted_calls(calls: tuple[NativeCall, ...]) -> tuple[NativeCall, ...]:
    return tuple(_redacted_call(call, position) for position, call in enumerate(calls))


def _redacted_call(call: NativeCall, position: int) -> NativeCall:
    """Redact a call; ids stay unique in their reply."""
    call_id = call.id if SECRETS.redact(call.id) == call.id else f"redacted_{position}"
    extra = cast("JSONObject | None", SECRETS.redact_value(call.extra))
    name, arguments = SECRETS.redact(call.name), SECRETS.redact(call.arguments)
    return NativeCall(call_id, name, arguments, extra)
