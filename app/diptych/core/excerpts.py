"""Shortens long results to excerpts, and lets the model read the rest by `result__read`.

A text's id is a hash of its content: it is the same everywhere in a session, and needs no storage.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

from diptych.core.catalog import RESULT_SERVER, Catalog, Tool
from diptych.core.messages import Call, JSONObject, Message, NativeCall, ToolCall
from diptych.core.tokens import message_weight, weight

MAX_READ_CHARS: Final = 20_000
_MIN_CHARS = 80  # of an excerpt, without its mark
_MARK_CHARS = 200  # saving less is not worth a mark
READ_RESULT: Final = Tool(
    RESULT_SERVER,
    "read",
    "Reads on in a text of this conversation of which you were given an excerpt. The mark in the "
    "excerpt has the id; offset is the number of the first character that you want.",
    {
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "offset": {"type": "integer", "minimum": 0},
            "limit": {"type": "integer", "minimum": 1, "maximum": MAX_READ_CHARS},
        },
        "required": ["id"],
        "additionalProperties": False,
    },
    read_only=True,
    idempotent=True,
)
"""The built-in tool `result__read`; the loop answers its calls itself."""
_READ_ON = re.compile(
    rf"(\[\d+ of \d+ characters are left out here)\. To read them call {READ_RESULT.long_name}: "
    r"\{[^\n]*\}\]"
)
READER: Final = READ_RESULT.long_name
"""Its only name; a constant because every call is compared with it."""


def text_id(text: str) -> str:
    """Return the id of a text: 8 hexadecimal digits."""
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=4).hexdigest()


def excerpt(text: str, max_weight: float) -> str:
    """Shorten a text to about `max_weight`: its head, its tail, and a mark between them."""
    head, tail = _ends(text, max_weight)
    left = len(text) - head - tail
    if left <= 0:
        return text
    read = {"tool": READ_RESULT.long_name, "arguments": {"id": text_id(text), "offset": head}}
    return (
        f"{text[:head]}\n[{left} of {len(text)} characters are left out here. To read them call "
        f"{READ_RESULT.long_name}: {json.dumps(read)}]\n{text[len(text) - tail :]}"
    )


def clipped(text: str, max_weight: float) -> str:
    """Shorten a text like `excerpt`, but without a way to read the rest."""
    head, tail = _ends(text, max_weight)
    return text if head + tail >= len(text) else f"{text[:head]} […] {text[len(text) - tail :]}"


def _ends(text: str, max_weight: float) -> tuple[int, int]:
    """Return the lengths of the head and tail to show; the head is everything if the text fits."""
    whole = weight(text)
    if whole <= max_weight:
        return len(text), 0
    chars = max(_MIN_CHARS, int(len(text) * max_weight / whole) - _MARK_CHARS)
    if len(text) - chars <= _MARK_CHARS:
        return len(text), 0
    return chars - chars // 3, chars // 3


def shortened(message: Message, max_weight: float) -> Message:
    """Shorten each result in a message, or the whole message, to about `max_weight`.

    Arguments of native calls stay valid JSON. Reasoning is dropped first, as the least valuable.
    """
    if message.reasoning and message_weight(message) > max_weight:
        message = replace(message, reasoning="")
    if message_weight(message) <= max_weight:
        return message
    content, end = "", 0
    places: list[tuple[int, int]] = []
    for start, stop in message.results:
        content += message.content[end:start]
        short = excerpt(message.content[start:stop], max_weight)
        places.append((len(content), len(content) + len(short)))
        content, end = content + short, stop
    content += message.content[end:]
    if content == message.content:  # its results cannot be shortened further
        content, places = excerpt(content, max_weight), []
    calls = tuple(_short_call(call, max_weight) for call in message.calls)
    if content == message.content and calls == message.calls:
        return message
    sources = message.sources if places else ()
    return replace(message, content=content, calls=calls, results=tuple(places), sources=sources)


def without_reader(text: str) -> str:
    """Remove the instructions to read on from excerpts, for requests without tools."""
    return _READ_ON.sub(r"\1]", text)


def mark_results(message: Message, results: Iterable[str], sources: Iterable[str]) -> Message:
    """Record the offsets of the results in a message, and their sources."""
    places: list[tuple[int, int]] = []
    end = 0
    for text in results:
        start = message.content.find(text, end)
        if start < 0:
            return message
        end = start + len(text)
        places.append((start, end))
    return replace(message, results=tuple(places), sources=tuple(sources))


def is_reader(call: Call) -> bool:
    """Whether a call is `result__read`, which the loop answers itself."""
    return isinstance(call, ToolCall) and call.name == READER


def with_reader(catalog: Catalog, *, is_offered: bool) -> Catalog:
    """Return the catalog with or without `result__read`."""
    if (catalog.tool(READ_RESULT.long_name) == READ_RESULT) == is_offered:
        return catalog
    others = tuple(tool for tool in catalog.tools if tool != READ_RESULT)
    return replace(catalog, tools=(*others, READ_RESULT) if is_offered else others)


def read_text(messages: Iterable[Message], arguments: JSONObject, max_weight: float) -> str | None:
    """Return the piece that a call of `result__read` asks for; None for an unknown id.

    It weighs at most about `max_weight`, so that it is never shortened itself.
    """
    wanted: Any = arguments["id"]
    offset: Any = arguments.get("offset", 0)
    limit: Any = arguments.get("limit", MAX_READ_CHARS)
    text = next((t for m in messages for t in _texts(m) if text_id(t) == wanted), None)
    if text is None:
        return None
    piece = text[offset : offset + min(limit, MAX_READ_CHARS)]
    while len(piece) > _MIN_CHARS and weight(piece) > max_weight:
        piece = piece[: max(_MIN_CHARS, int(len(piece) * max_weight / weight(piece) * 0.9))]
    end = offset + len(piece)
    if not piece:
        return f"[the text has {len(text)} characters; there are none from {offset} on]"
    rest = f"; read on with offset {end}" if end < len(text) else ", the end"
    return f"{piece}\n[characters {offset} to {end} of {len(text)}{rest}]"


def _texts(message: Message) -> Iterator[str]:
    yield from (message.content[start:stop] for start, stop in message.results)
    yield message.content
    yield from (call.arguments for call in message.calls)


def _short_call(call: NativeCall, max_weight: float) -> NativeCall:
    short = excerpt(call.arguments, max_weight)
    if short == call.arguments:
        return call
    return replace(call, arguments=json.dumps({"excerpt": short}, ensure_ascii=False))
