"""The JSON of the chat completions API: encodes requests, decodes replies and chunks.

Pure. There is a chunk for each token, so decoding one is kept cheap: no pydantic models, no copies.

Not here: connections (`endpoint`), server-sent events (`net`), retries (`completions`).
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from diptych.adapters.openai_chat.failures import AttemptFailure, malformed_reply
from diptych.loop.messages import Message, Usage
from diptych.loop.text import well_formed
from diptych.ports import Reply

DONE = b"[DONE]"


def encode_request(fields: Mapping[str, object], messages: Sequence[Message]) -> bytes:
    """Encode a request: the messages, and the other fields as they are."""
    try:
        return orjson.dumps(
            {**fields, "messages": [{"role": m.role, "content": m.content} for m in messages]}
        )
    except TypeError:  # orjson refuses lone surrogates, which a tool's result that was cut may hold
        well_formed_messages = [
            {"role": m.role, "content": well_formed(m.content)} for m in messages
        ]
        return orjson.dumps({**fields, "messages": well_formed_messages})


def decode_reply(body: bytes) -> Reply:
    """Decode the body of a reply that was not streamed.

    Raises `AttemptFailure`: `model_garbage`, or `model_failed` for an error object in a success.
    """
    found = _decode(body)
    choice = _first_choice(found)
    message = choice.get("message") if choice else None
    if choice is None or not isinstance(message, dict):
        raise malformed_reply("a reply without choices")
    finish_reason = choice.get("finish_reason")
    return Reply(
        text=well_formed(_text(message)),
        usage=_usage(found.get("usage")) or Usage(),
        finish_reason=finish_reason if isinstance(finish_reason, str) and finish_reason else "stop",
        reasoning=well_formed(_reasoning(message)),
    )


class StreamedReply:
    """A reply whose chunks are arriving: its usage, finish reason, and whether it is complete."""

    def __init__(self) -> None:
        self.usage: Usage | None = None
        self.finish_reason: str | None = None
        self.is_done = False  # `[DONE]` has arrived
        self.has_choice = False  # some choice has arrived
        self._high_surrogate = ""  # of a surrogate pair that is split between two chunks

    @property
    def is_complete(self) -> bool:
        """Whether the reply said that it ended: by a `finish_reason`, or by `[DONE]`."""
        return self.finish_reason is not None or (self.is_done and self.has_choice)

    def apply(self, events: Sequence[bytes]) -> tuple[str, str]:
        """Apply the events that arrived together; give their text and their reasoning.

        Chunks without choices are fine, with usage or without. Raises `AttemptFailure`:
        `model_garbage`, or `model_failed` for an error object.
        """
        texts: list[str] = []
        thoughts: list[str] = []
        for event in events:
            if event == DONE:
                self.is_done = True
                break
            chunk = _decode(event)
            usage = chunk.get("usage")
            if usage is not None:
                self.usage = _usage(usage) or self.usage
            choice = _first_choice(chunk)
            if choice is not None:
                self._apply_choice(choice, texts, thoughts)
        return self._joined(texts), well_formed("".join(thoughts))

    def _apply_choice(
        self, choice: Mapping[str, Any], texts: list[str], thoughts: list[str]
    ) -> None:
        self.has_choice = True
        delta = choice.get("delta")
        if isinstance(delta, dict):
            if text := _text(delta):
                texts.append(text)
            if thought := _reasoning(delta):
                thoughts.append(thought)
        finish_reason = choice.get("finish_reason")
        if isinstance(finish_reason, str) and finish_reason:
            self.finish_reason = finish_reason

    def _joined(self, texts: list[str]) -> str:
        """Join texts; half a character at the end is held back until its other half arrives."""
        text = "".join((self._high_surrogate, *texts))
        self._high_surrogate = ""
        if text.isascii():
            return text
        if "\ud800" <= text[-1] <= "\udbff" and not self.is_done:
            text, self._high_surrogate = text[:-1], text[-1]
        return well_formed(text)


def _decode(payload: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(payload)
    except orjson.JSONDecodeError:
        found = _decode_leniently(payload)
    if not isinstance(found, dict):
        raise malformed_reply("JSON that is no object")
    if found.get("error"):
        raise AttemptFailure(
            "model_failed",
            "The model endpoint reported an error instead of a reply. Try again, or look at its "
            "log.",
        )
    return found


def _decode_leniently(payload: bytes) -> object:
    """Decode what orjson refuses but servers send: NaN, lone surrogates, invalid UTF-8."""
    try:
        return json.loads(payload.decode(errors="replace"))
    except (ValueError, RecursionError) as error:
        raise malformed_reply("something that is not JSON") from error


def _first_choice(found: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Give the first choice, which is the only one, as we never send `n`; None if there is none."""
    choices = found.get("choices")
    if not choices:
        return None
    if isinstance(choices, list) and isinstance(choices[0], dict):
        return choices[0]
    raise malformed_reply("choices that are no list of objects")


def _text(message: Mapping[str, Any]) -> str:
    """Give the text of a message or delta; `tool_calls` are never requested, and not read."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):  # content parts
        return "".join(part["text"] for part in content if _is_text_part(part))
    if content is not None:
        raise malformed_reply("content that is not text")
    refusal = message.get("refusal")  # which OpenAI's models send instead of content
    return refusal if isinstance(refusal, str) else ""


def _is_text_part(part: object) -> bool:
    return isinstance(part, dict) and isinstance(part.get("text"), str)


def _reasoning(message: Mapping[str, Any]) -> str:
    """Give the reasoning; servers that send both fields send the same text in both."""
    for name in ("reasoning_content", "reasoning"):
        thought = message.get(name)
        if thought and isinstance(thought, str):
            return thought
    return ""


def _usage(found: object) -> Usage | None:
    if not isinstance(found, dict):
        return None
    return Usage(_count(found.get("prompt_tokens")), _count(found.get("completion_tokens")))


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0
