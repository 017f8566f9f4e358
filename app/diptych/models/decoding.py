"""Decodes chat completions: whole replies, and the chunks of streamed ones.

Pure. There is one chunk per token, so decoding is kept cheap: no pydantic models, no copies.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from diptych.core.budget import MAX_COUNT
from diptych.core.messages import Usage
from diptych.core.text import well_formed
from diptych.models.error_report import ErrorReport, groq_error, is_error, read_error
from diptych.models.failures import ReportedError, malformed_reply
from diptych.models.native_calls import CallAssembler
from diptych.net.sse import SseEvent
from diptych.ports import Reply

DONE = b"[DONE]"
_MAX_DONE = 16  # bytes, including blanks around it
# Servers' finish reasons. A reply that was truncated, filtered or failed must never look complete,
# whatever its server calls that (loop.md §7).
_CUT = frozenset(
    {
        "length",
        "max_tokens",  # Anthropic, Gemini
        "model_length",  # Mistral
        "model_context_window_exceeded",  # GLM
    }
)
_FILTERED = frozenset(
    {
        "content_filter",  # Gemini adds its own word: "content_filter: SAFETY"
        "safety",  # Gemini, like the next four
        "recitation",
        "blocklist",
        "prohibited_content",
        "spii",
        "sensitive",  # GLM
        "refusal",  # Anthropic
    }
)
_FAILED = frozenset(
    {
        "error",  # OpenRouter
        "abort",  # vLLM, SGLang
        "cancelled",
        "network_error",  # GLM
        "insufficient_system_resource",  # DeepSeek
        "malformed_function_call",  # Gemini
    }
)


def decode_reply(body: bytes, names: frozenset[str] = frozenset()) -> Reply:
    """Decode the body of a whole reply; `names` are the functions offered in the request.

    Raises `AttemptFailure` `model_garbage`, and `ReportedError` for an error object.
    """
    try:
        found = _object(_parsed(body))
    except (ValueError, RecursionError) as error:
        raise malformed_reply("something that is not JSON") from error
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
        usage=_usage(found, choice) or Usage(),
        finish_reason=_canonical_reason(choice.get("finish_reason")) or "stop",
        reasoning=well_formed(_reasoning(message)),
        calls=calls.calls(),
    )


class ChunkDecoder:
    """Decodes the chunks of one reply, and tracks whether it is complete.

    `names` are the functions offered in the request.
    """

    def __init__(self, names: frozenset[str] = frozenset()) -> None:
        self.usage: Usage | None = None
        self.finish_reason: str | None = None
        self.calls = CallAssembler(names)
        self.is_done = False  # `[DONE]` has arrived
        self.has_choice = False  # a choice has arrived
        self._index = 0  # of the choice whose text is arriving
        self._high_surrogate = ""  # first half of a surrogate pair split between two chunks

    @property
    def is_complete(self) -> bool:
        """Whether a `finish_reason` or `[DONE]` has ended the reply."""
        return self.finish_reason is not None or (self.is_done and self.has_choice)

    def apply(self, events: Sequence[SseEvent]) -> tuple[str, str]:
        """Apply events that arrived together; return their text and their reasoning.

        Chunks without choices are valid, with or without usage. Raises `AttemptFailure`
        `model_garbage`, and `ReportedError` for an error object or an unreadable chunk.
        """
        texts: list[str] = []
        thoughts: list[str] = []
        for kind, event, _ in events:
            if kind == "error":
                raise ReportedError(_report_in(event))
            if event == DONE or (len(event) < _MAX_DONE and event.strip() == DONE):
                self.is_done = True
                break
            if not event:
                continue
            chunk = _decode_chunk(event)
            choice = _first_choice(chunk)
            if choice is None:
                _check_is_no_error(chunk)
                self.usage = _usage(chunk, {}) or self.usage
            else:
                self._apply_choice(chunk, choice, texts, thoughts)
        return self._joined(texts), well_formed("".join(thoughts))

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
            delta = choice.get("message")  # some gateways stream a whole reply as one chunk
        if isinstance(delta, dict):
            if text := _text(delta):
                self._follow(choice.get("index"))
                texts.append(text)
            if len(delta) > 1 or not text:
                if thought := _reasoning(delta):
                    thoughts.append(thought)
                if delta.get("tool_calls") or delta.get("function_call"):
                    is_whole = "delta" not in choice
                    (self.calls.add_whole if is_whole else self.calls.add_delta)(delta)
        finish_reason = choice.get("finish_reason")
        if finish_reason or "error" in choice:
            _check_choice(chunk, choice)
            self.finish_reason = _canonical_reason(finish_reason) or self.finish_reason
        if finish_reason or "usage" in chunk:
            self.usage = _usage(chunk, choice) or self.usage

    def _follow(self, index: object) -> None:
        """Accept an increased choice index: LiteLLM numbers the parts of a message this way.

        A decreased index means a second answer, whose text cannot be told from the first's.
        """
        if type(index) is int and index != self._index:
            if index < self._index:
                raise malformed_reply("several choices, although one was requested")
            self._index = index

    def _joined(self, texts: list[str]) -> str:
        """Join texts; hold back half a surrogate pair at the end until the other half arrives."""
        text = "".join((self._high_surrogate, *texts))
        self._high_surrogate = ""
        if text.isascii():
            return text
        if "\ud800" <= text[-1] <= "\udbff" and not self.is_done:
            text, self._high_surrogate = text[:-1], text[-1]
        return well_formed(text)


def _decode_chunk(payload: bytes) -> dict[str, Any]:
    """Decode a chunk. Raises `ReportedError` if it is not JSON.

    A server that has started to stream does speak the API, so a broken chunk is a failure of the
    server rather than a wrong endpoint.
    """
    try:
        found = _parsed(payload)
    except (ValueError, RecursionError):
        raise ReportedError(_plain_report(payload)) from None
    return _object(found)


def _parsed(payload: bytes) -> object:
    """Parse JSON; accept NaN, lone surrogates and invalid UTF-8, which some servers send."""
    try:
        return orjson.loads(payload)
    except orjson.JSONDecodeError:
        return json.loads(payload.decode(errors="replace"))


def _object(found: object) -> dict[str, Any]:
    if isinstance(found, list) and len(found) == 1:
        found = found[0]  # Gemini wraps its errors
    if not isinstance(found, dict):
        raise malformed_reply("JSON that is not an object")
    if found.get("error"):
        raise ReportedError(read_error(found))
    return found


def _report_in(payload: bytes) -> ErrorReport:
    """Parse the data of an `event: error`: an error object or plain text."""
    try:
        return read_error(orjson.loads(payload))
    except orjson.JSONDecodeError:
        return _plain_report(payload)


def _plain_report(payload: bytes) -> ErrorReport:
    """Report a payload that is not JSON: as a message, unless it looks like a broken chunk."""
    words = payload.decode(errors="replace").strip()
    sentence = "" if words[:1] in {"{", "["} else words
    return ErrorReport(0, sentence or "a chunk that cannot be read", words.lower())


def _check_is_no_error(found: Mapping[str, Any]) -> None:
    """Raise `ReportedError` if an object without choices is an error without an `error` field."""
    if is_error(found):
        raise ReportedError(read_error(found))


def _check_choice(found: Mapping[str, Any], choice: Mapping[str, Any]) -> None:
    """Raise `ReportedError` if the final choice reports a failure."""
    if choice.get("error"):  # OpenRouter
        raise ReportedError(read_error(choice["error"]))
    reason = choice.get("finish_reason")
    said = groq_error(found)
    if not said and isinstance(reason, str) and _words(reason) & _FAILED:
        said = f"the reply ended with finish_reason {reason!r}"
    if said:
        raise ReportedError(ErrorReport(0, said, said.lower()))


def _canonical_reason(said: object) -> str:
    """Return `length` for a truncated reply, `content_filter` for a filtered one.

    Any other reason stays as it is; "" if there is none.
    """
    if not isinstance(said, str):
        return ""
    words = _words(said)
    if words & _CUT:
        return "length"
    return "content_filter" if words & _FILTERED else said


def _words(said: str) -> set[str]:
    """Split reasons such as "function_call_filter: MALFORMED_FUNCTION_CALL" into words."""
    return {word.strip() for word in said.lower().replace("-", "_").split(":")}


def _first_choice(found: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the choice with the lowest index; usually the only one, as we never send `n`."""
    choices = found.get("choices")
    if not choices:
        return None
    if not isinstance(choices, list) or not isinstance(choices[0], dict):
        raise malformed_reply("choices that are not a list of objects")
    return choices[0] if len(choices) == 1 else min(choices, key=_index)


def _index(choice: object) -> int:
    index = choice.get("index") if isinstance(choice, dict) else None
    return index if type(index) is int else 0


def _text(message: Mapping[str, Any]) -> str:
    """Return the text of a message or delta."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):  # content parts
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(text for text in texts if isinstance(text, str))
    if content is not None:
        raise malformed_reply("content that is not text")
    refusal = message.get("refusal")  # OpenAI's models send it instead of content
    return refusal if isinstance(refusal, str) else ""


def _reasoning(message: Mapping[str, Any]) -> str:
    """Return the reasoning; servers that send both fields put the same text in both."""
    for name in ("reasoning_content", "reasoning"):
        thought = message.get(name)
        if thought and isinstance(thought, str):
            return thought
    content = message.get("content")
    if isinstance(content, list):  # Mistral's Magistral
        parts = [part.get("thinking") for part in content if isinstance(part, dict)]
        return "".join(_text({"content": part}) for part in parts if isinstance(part, str | list))
    return ""


def _usage(found: Mapping[str, Any], choice: Mapping[str, Any]) -> Usage | None:
    """Read the usage of the chunk, of its choice (Moonshot), or in Groq's own field."""
    extra = found.get("x_groq")
    groq = extra.get("usage") if isinstance(extra, dict) else None
    for counts in (found.get("usage"), choice.get("usage"), groq):
        if isinstance(counts, dict) and counts:
            return Usage(
                _count(counts.get("prompt_tokens")), _count(counts.get("completion_tokens"))
            )
    return None


def _count(value: object) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # from servers whose language has only floats
    return value if isinstance(value, int) and 0 < value <= MAX_COUNT else 0
