"""The JSON of the chat completions API: decodes replies and chunks.

Pure. There is a chunk for each token, so decoding one is kept cheap: no pydantic models, no copies.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from diptych.core.messages import NativeCall, Usage
from diptych.core.text import well_formed
from diptych.models.error_report import (
    ErrorReport,
    groq_error,
    is_error,
    read_error,
)
from diptych.models.event_shape import EventShape
from diptych.models.failures import ReportedError, malformed_reply
from diptych.models.finish_reasons import canonical_reason, is_failure
from diptych.models.native_calls import CallAssembler
from diptych.models.payloads import decode_chunk, decode_object, error_event
from diptych.models.usage import usage_of
from diptych.net.sse import SseEvent
from diptych.ports import Reply

DONE = b"[DONE]"
_MAX_DONE = 16  # bytes, with blanks around it
_BESIDE_TEXT = ("reasoning_content", "reasoning", "tool_calls", "function_call")  # all we read


def decode_reply(body: bytes, names: frozenset[str] = frozenset()) -> Reply:
    """Decode the body of a reply that was not streamed; `names` are the functions on offer.

    Raises `AttemptFailure` `model_garbage`, and `ReportedError` for an error object in a success.
    """
    found = decode_object(body)
    choice = _first_choice(found)
    if choice is None:
        _check_is_no_error(found)
        raise malformed_reply("a reply without choices")
    _check_choice(found, choice)
    message = choice.get("message")
    if not isinstance(message, dict):
        raise malformed_reply("a reply without a message")
    calls = CallAssembler(names)
    calls.add_whole(message)
    return Reply(
        text=well_formed(_text(message)),
        usage=usage_of(found, choice) or Usage(),
        finish_reason=_reason(choice.get("finish_reason")) or "stop",
        reasoning=well_formed(_reasoning(message)),
        calls=calls.calls(),
    )


class ChunkDecoder:
    """Decodes the chunks of one reply; knows what it has of it, and whether that is all."""

    def __init__(self, names: frozenset[str] = frozenset()) -> None:
        """Take the names of the functions that the request offers."""
        self.usage: Usage | None = None
        self.finish_reason: str | None = None
        self.is_done = False  # `[DONE]` has arrived
        self.has_choice = False  # some choice has arrived
        self._index = 0  # of the choice whose text arrives
        self._high_surrogate = ""  # of a surrogate pair that is split between two chunks
        self._names = names
        self._calls: CallAssembler | None = None
        self._shape = EventShape()

    @property
    def is_complete(self) -> bool:
        """Whether the reply said that it ended: by a `finish_reason`, or by `[DONE]`."""
        return self.finish_reason is not None or (self.is_done and self.has_choice)

    @property
    def calls(self) -> tuple[NativeCall, ...]:
        """The native calls that have arrived; whole once the reply is."""
        return self._calls.calls() if self._calls else ()

    @property
    def newest_arguments(self) -> str:
        """The arguments so far of the native call that began last."""
        return self._calls.newest_arguments if self._calls else ""

    @property
    def calls_size(self) -> int:
        """The characters of the native calls that have arrived, and something for each call."""
        return self._calls.size if self._calls else 0

    def apply(self, events: Sequence[SseEvent]) -> tuple[str, str]:
        """Apply the events that arrived together; give their text and their reasoning.

        Chunks without choices are fine, with usage or without. Raises `AttemptFailure`
        `model_garbage`, and `ReportedError` for an error object or a chunk that cannot be read.
        """
        texts: list[str] = []
        thoughts: list[str] = []
        for kind, event, _ in events:
            if kind == "error":
                raise error_event(event)
            if text := self._shape.text_of(event):
                texts.append(text)
                continue
            if not event:
                continue
            if event == DONE or (len(event) < _MAX_DONE and event.strip() == DONE):
                self.is_done = True
                break
            chunk = decode_chunk(event)
            if text := self._text_alone(chunk):
                self.has_choice = True
                texts.append(text)
                self._shape.learn(event, text, self._text_alone)
            elif (choice := _first_choice(chunk)) is not None:
                self._apply_choice(chunk, choice, texts, thoughts)
            else:
                self._apply_without_choice(chunk)
        return self._joined(texts), well_formed("".join(thoughts))

    def _text_alone(self, chunk: Mapping[str, Any]) -> str:
        """Give the text of a chunk that has nothing else, as nearly all have; of others none."""
        try:
            (choice,) = chunk["choices"]
            delta = choice["delta"]
            text = delta["content"]
        except (LookupError, TypeError, ValueError):
            return ""
        is_alone = (
            type(text) is str
            and (len(delta) == 1 or not any(map(delta.get, _BESIDE_TEXT)))
            and choice.get("index") == self._index
            and not choice.get("finish_reason")
            and "error" not in choice
            and chunk.get("usage") is None  # as OpenAI and Azure have it, up to the last chunk
            and "usage" not in choice
            and "x_groq" not in chunk
        )
        return text if is_alone else ""

    def _apply_without_choice(self, chunk: Mapping[str, Any]) -> None:
        _check_is_no_error(chunk)
        self.usage = usage_of(chunk, {}) or self.usage

    def _apply_choice(
        self,
        chunk: Mapping[str, Any],
        choice: Mapping[str, Any],
        texts: list[str],
        thoughts: list[str],
    ) -> None:
        self.has_choice = True
        delta = choice.get("delta")
        if delta is None:
            delta = choice.get("message")  # of a gateway that streams a whole reply as one chunk
        if isinstance(delta, dict):
            if text := _text(delta):
                if (index := choice.get("index")) != self._index:
                    self._follow(index)
                texts.append(text)
            if len(delta) > 1 or not text:  # else there is text, and nothing else
                if thought := _reasoning(delta):
                    thoughts.append(thought)
                if delta.get("tool_calls") or delta.get("function_call"):
                    self._add_calls(delta, is_whole="delta" not in choice)
        finish_reason = choice.get("finish_reason")
        if finish_reason or "error" in choice:
            _check_choice(chunk, choice)
            self.finish_reason = _reason(finish_reason) or self.finish_reason
        if finish_reason or "usage" in chunk:
            self.usage = usage_of(chunk, choice) or self.usage

    def _follow(self, index: object) -> None:
        """Go on with the text of another choice: LiteLLM counts the parts of a message so.

        One that goes back belongs to a second answer, and the two cannot be told apart.
        """
        if type(index) is int:
            if index < self._index:
                raise malformed_reply("several choices, where one was asked for")
            self._index = index
            self._shape.forget()

    def _add_calls(self, delta: Mapping[str, Any], *, is_whole: bool) -> None:
        if self._calls is None:
            self._calls = CallAssembler(self._names)
        if is_whole:
            self._calls.add_whole(delta)
        else:
            self._calls.add_delta(delta)

    def _joined(self, texts: list[str]) -> str:
        """Join texts; half a character at the end is held back until its other half arrives."""
        text = "".join((self._high_surrogate, *texts))
        self._high_surrogate = ""
        if text.isascii():
            return text
        if "\ud800" <= text[-1] <= "\udbff" and not self.is_done:
            text, self._high_surrogate = text[:-1], text[-1]
        return well_formed(text)


def _check_is_no_error(found: Mapping[str, Any]) -> None:
    """Raise `ReportedError` if an object without choices is an error that has no `error`."""
    if is_error(found):
        raise ReportedError(read_error(found))


def _check_choice(found: Mapping[str, Any], choice: Mapping[str, Any]) -> None:
    """Raise `ReportedError` if a choice that ends a reply says that it failed."""
    if choice.get("error"):  # OpenRouter
        raise ReportedError(read_error(choice["error"]))
    reason = choice.get("finish_reason")
    if is_failure(reason) or groq_error(found):
        said = groq_error(found) or f"the reply ended with finish_reason {reason!r}"
        raise ReportedError(ErrorReport(0, said, said.lower()))


def _reason(said: object) -> str:
    return canonical_reason(said) if isinstance(said, str) else ""


def _first_choice(found: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Give the choice of the lowest index, as a rule the only one: we never send `n`.

    None if there is none.
    """
    choices = found.get("choices")
    if not choices:
        return None
    if not isinstance(choices, list) or not isinstance(choices[0], dict):
        raise malformed_reply("choices that are no list of objects")
    return choices[0] if len(choices) == 1 else min(choices, key=_index)


def _index(choice: object) -> int:
    index = choice.get("index") if isinstance(choice, dict) else None
    return index if type(index) is int else 0


def _text(message: Mapping[str, Any]) -> str:
    """Give the text of a message or delta."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):  # content parts
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(text for text in texts if isinstance(text, str))
    if content is not None:
        raise malformed_reply("content that is not text")
    refusal = message.get("refusal")  # which OpenAI's models send instead of content
    return refusal if isinstance(refusal, str) else ""


def _reasoning(message: Mapping[str, Any]) -> str:
    """Give the reasoning; servers that send both fields send the same text in both."""
    for name in ("reasoning_content", "reasoning"):
        thought = message.get(name)
        if thought and isinstance(thought, str):
            return thought
    content = message.get("content")
    if isinstance(content, list):  # Mistral's Magistral
        parts = [part.get("thinking") for part in content if isinstance(part, dict)]
        return "".join(_text({"content": part}) for part in parts if isinstance(part, str | list))
    return ""
