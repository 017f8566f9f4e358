"""The tokens of requests and replies: expected from a request, and read from a reply's bytes."""

import asyncio
import json
import re
from collections.abc import Mapping
from typing import Any

from diptych.core.budget import MAX_COUNT
from diptych.core.messages import Usage
from diptych.core.tokens import PART_WEIGHT, weight

REPLY_TOKENS = 4_096  # expected of a reply without a bound
_QUICKLY_WEIGHED = 64 * 1024  # bytes
_HEAD, _TAIL = 8 * 1024, 32 * 1024  # bytes of a reply that may have its usage
_USAGE = re.compile(r'"usage"\s*:\s*(?=\{)')
"""Unescaped quotes cannot stand inside a JSON string, so no text of a model matches."""
_DATA_URL = re.compile(r'"data:[^"]{64,}"')
_BOUNDS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_NAMES = (("prompt_tokens", "completion_tokens"), ("input_tokens", "output_tokens"))
_EVENT = b"data:"
_decoder = json.JSONDecoder()


async def expected_usage(body: bytes, fields: Mapping[str, Any], *, has_reply: bool) -> Usage:
    """Return the most that a request is expected to use."""
    if len(body) <= _QUICKLY_WEIGHED:
        prompt = _prompt_weight(body)
    else:
        prompt = await asyncio.to_thread(_prompt_weight, body)
    if not has_reply:
        return Usage(prompt)
    bounds = [_count(fields[name]) for name in _BOUNDS if fields.get(name)]
    return Usage(prompt, (max(bounds, default=0) or REPLY_TOKENS) * (_count(fields.get("n")) or 1))


def _prompt_weight(body: bytes) -> int:
    text, parts = _DATA_URL.subn("", body.decode(errors="replace"))
    return weight(text) + parts * PART_WEIGHT


class UsageReader:
    """Finds the usage in a reply that passes, whole or streamed; keeps only its ends."""

    def __init__(self) -> None:
        self._head = b""
        self._tail = b""
        self.size = 0
        self.events = 0  # of a stream; most servers send one for each token

    def add(self, chunk: bytes) -> None:
        self.size += len(chunk)
        if len(self._head) < _HEAD:
            self._head += chunk[: _HEAD - len(self._head)]
        self._tail = (self._tail + chunk)[-_TAIL:]
        self.events += chunk.count(_EVENT)

    def usage(self) -> Usage | None:
        """Return the last usage that the reply reports, if any."""
        for part in (self._tail, self._head):
            text = part.decode(errors="replace")
            for found in reversed(list(_USAGE.finditer(text))):
                if usage := _usage_at(text, found.end()):
                    return usage
        return None


def _usage_at(text: str, start: int) -> Usage | None:
    try:
        counts, _ = _decoder.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None
    for prompt, completion in _NAMES:
        usage = Usage(_count(counts.get(prompt)), _count(counts.get(completion)))
        if usage.is_known:
            return usage
    return None


def _count(value: object) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 < value <= MAX_COUNT else 0
