"""What the chat completions API looks like on the wire: requests out, replies and chunks in.

Pure, and not here: connections, server-sent events, retries. Chunks are read with as little work
as can be, since there is one for each token: no models, no copies.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from diptych.adapters.openai_chat.failures import Failure, garbage
from diptych.loop.messages import Message, Usage
from diptych.loop.text import well_formed
from diptych.ports import Reply

DONE = b"[DONE]"


def request_body(fields: Mapping[str, object], messages: Sequence[Message]) -> bytes:
    """Encode a request: the conversation, and the other fields as they are."""
    try:
        return orjson.dumps(
            {**fields, "messages": [{"role": m.role, "content": m.content} for m in messages]}
        )
    except TypeError:  # orjson refuses lone surrogates, which cut-off tool output may hold
        mended = [{"role": m.role, "content": well_formed(m.content)} for m in messages]
        return orjson.dumps({**fields, "messages": mended})


def whole_reply(body: bytes) -> Reply:
    """Read the body of a reply that was not streamed.

    Raises `Failure`: `model_garbage`, or `model_failed` for an error object in a success.
    """
    found = _decoded(body)
    choice = _first_choice(found)
    message = choice.get("message") if choice else None
    if choice is None or not isinstance(message, dict):
        raise garbage("a reply without choices")
    finish_reason = choice.get("finish_reason")
    return Reply(
        text=well_formed(_text(message)),
        usage=_usage(found.get("usage")) or Usage(),
        finish_reason=finish_reason if isinstance(finish_reason, str) and finish_reason else "stop",
        reasoning=well_formed(_reasoning(message)),
    )


class StreamedReply:
    """What is known of a reply while its chunks arrive."""

    def __init__(self) -> None:
        self.usage: Usage | None = None
        self.finish_reason: str | None = None
        self.is_done = False  # `[DONE]` has come
        self.has_begun = False  # some choice has come
        self._half = ""  # the first half of a surrogate pair that two chunks share

    @property
    def is_whole(self) -> bool:
        """Whether the reply said that it ended: by a `finish_reason`, or by `[DONE]`."""
        return self.finish_reason is not None or (self.is_done and self.has_begun)

    def take(self, events: Sequence[bytes]) -> tuple[str, str]:
        """Take what arrived together; give its text and its reasoning.

        Chunks without choices are fine, with usage or without. Raises `Failure`:
        `model_garbage`, or `model_failed` for an error object.
        """
        texts: list[str] = []
        thoughts: list[str] = []
        for event in events:
            if event == DONE:
                self.is_done = True
                break
            chunk = _decoded(event)
            usage = chunk.get("usage")
            if usage is not None:
                self.usage = _usage(usage) or self.usage
            choice = _first_choice(chunk)
            if choice is not None:
                self._take_choice(choice, texts, thoughts)
        return self._joined(texts), well_formed("".join(thoughts))

    def _take_choice(
        self, choice: Mapping[str, Any], texts: list[str], thoughts: list[str]
    ) -> None:
        self.has_begun = True
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
        """Join text; a character that the model server cut in half waits for its other half."""
        text = "".join((self._half, *texts))
        self._half = ""
        if text.isascii():
            return text
        if "\ud800" <= text[-1] <= "\udbff" and not self.is_done:
            text, self._half = text[:-1], text[-1]
        return well_formed(text)


def _decoded(payload: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(payload)
    except orjson.JSONDecodeError:
        found = _leniently_decoded(payload)
    if not isinstance(found, dict):
        raise garbage("JSON that is no object")
    if found.get("error"):
        raise Failure(
            "model_failed",
            "The model endpoint reported an error instead of a reply. Try again, or look at its "
            "log.",
        )
    return found


def _leniently_decoded(payload: bytes) -> object:
    """Decode what orjson refuses, and servers do send: NaN, half a surrogate pair, bad UTF-8."""
    try:
        return json.loads(payload.decode(errors="replace"))
    except (ValueError, RecursionError) as error:
        raise garbage("something that is not JSON") from error


def _first_choice(found: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Give the only choice there is, as `n` is never asked for; None if there is none."""
    choices = found.get("choices")
    if not choices:
        return None
    if isinstance(choices, list) and isinstance(choices[0], dict):
        return choices[0]
    raise garbage("choices that make no sense")


def _text(message: Mapping[str, Any]) -> str:
    """Give the text of a message or delta; `tool_calls` are not asked for, and not read."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):  # content parts
        return "".join(part["text"] for part in content if _is_text_part(part))
    if content is not None:
        raise garbage("content that is not text")
    refusal = message.get("refusal")  # what OpenAI's models say instead of content
    return refusal if isinstance(refusal, str) else ""


def _is_text_part(part: object) -> bool:
    return isinstance(part, dict) and isinstance(part.get("text"), str)


def _reasoning(message: Mapping[str, Any]) -> str:
    """Give the reasoning; servers that send both fields say the same in both."""
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
