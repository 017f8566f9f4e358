"""Span attributes with messages, arguments and results, if the settings enable them.

Secrets that this process has read, and JSON Web Tokens, are redacted. Each attribute is bounded:
unsent spans stay in memory while the collector is down.
"""

import json
from collections.abc import Sequence

import orjson

from diptych.core.messages import JSON, Message, NativeCall
from diptych.core.text import shortened
from diptych.net.redaction import SECRETS, without_tokens

MAX_CHARS = 8_000  # of an attribute
_MAX_TEXT = 4_000  # of one text in it
_MAX_MESSAGES = 50
_SMALLER = ((1_000, 30), (200, 15), (40, 8))
"""Limits to try in turn on a message that is too large: characters per text, and parts."""
_LONGEST_SECRET = 20_000  # characters


def input_attributes(messages: tuple[Message, ...]) -> dict[str, str]:
    """Return a model request's system instructions, and the newest messages that fit."""
    system = [_text_part(m.content) for m in messages if m.role == "system"]
    others = [_message(m) for m in messages[-_MAX_MESSAGES:] if m.role != "system"]
    found = {"gen_ai.input.messages": _newest(others)}
    return {**found, "gen_ai.system_instructions": _newest(system)} if system else found


def output_attributes(
    text: str, finish_reason: str, calls: Sequence[NativeCall] = ()
) -> dict[str, str]:
    """Return the output of a model or a run."""
    parts = ([_text_part(text)] if text else []) + [_call_part(call) for call in calls]
    said: JSON = {"role": "assistant", "parts": parts, "finish_reason": finish_reason}
    return {"gen_ai.output.messages": _newest([said])}


def question_attributes(text: str) -> dict[str, str]:
    """Return the input of a run."""
    return {"gen_ai.input.messages": _newest([{"role": "user", "parts": [_text_part(text)]}])}


def value_text(value: JSON) -> str:
    """Return arguments or a result as redacted text."""
    try:
        text = value if isinstance(value, str) else _json(SECRETS.redact_value(value))
    except RecursionError:
        return "[nested too deeply]"
    return _clean(text, MAX_CHARS)


def _message(message: Message) -> JSON:
    if message.role == "tool":
        result = _clean(message.content, _MAX_TEXT)
        part: JSON = {"type": "tool_call_response", "id": message.call_id, "result": result}
        return {"role": "tool", "parts": [part]}
    parts = [_text_part(message.content)] if message.content else []
    parts += [_call_part(call) for call in message.calls]
    parts += [{"type": str(part.get("type", "file"))} for part in message.parts]
    return {"role": message.role, "parts": parts}


def _text_part(text: str) -> JSON:
    return {"type": "text", "content": _clean(text, _MAX_TEXT)}


def _call_part(call: NativeCall) -> JSON:
    arguments = _clean(call.arguments, _MAX_TEXT)
    return {"type": "tool_call", "id": call.id, "name": call.name, "arguments": arguments}


def _clean(text: str, limit: int) -> str:
    # Redact before shortening: half a secret would not be recognised.
    near = text[: limit + _LONGEST_SECRET]
    return shortened(SECRETS.redact(without_tokens(near)), limit)


def _newest(items: list[JSON]) -> str:
    """Return a JSON list of the newest items that fit; shrink the last one if it alone does not."""
    kept: list[str] = []
    size = 2
    for item in reversed(items):
        text = _json(item) if kept else _fitted(item)
        size += len(text) + 1
        if kept and size > MAX_CHARS:
            break
        kept.append(text)
    return f"[{','.join(reversed(kept))}]"


def _fitted(item: JSON) -> str:
    """Return an item as JSON, with shorter texts and fewer parts if it is too large."""
    text = _json(item)
    for size, count in _SMALLER:
        if len(text) + 2 > MAX_CHARS:
            text = _json(_smaller(item, size, count))
    return text


def _smaller(value: JSON, size: int, count: int) -> JSON:
    match value:
        case str():
            return shortened(value, size)
        case list():
            return [_smaller(each, size, count) for each in value[:count]]
        case dict():
            return {name: _smaller(each, size, count) for name, each in value.items()}
    return value


def _json(value: object) -> str:
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # numbers over 64 bits, or deeper nesting than orjson supports
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
