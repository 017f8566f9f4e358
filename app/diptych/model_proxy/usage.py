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
TAIL = 8 * 1024  # bytes of a reply's end that have its usage
_QUICKLY_WEIGHED = 64 * 1024  # bytes
_USAGE = re.compile(r'"usage"\s*:\s*(?=\{)')
"""Unescaped quotes cannot stand inside a JSON string, so no text of a model matches."""
_DATA_URL = re.compile(r'"data:[^"]{64,}"')
_BOUNDS = ("max_completion_tokens", "max_tokens")
_decoder = json.JSONDecoder()


async def expected_usage(body: bytes, fields: Mapping[str, Any]) -> Usage:
    """Return the most that a request is expected to use."""
    if len(body) <= _QUICKLY_WEIGHED:
        prompt = _prompt_weight(body)
    else:
        prompt = await asyncio.to_thread(_prompt_weight, body)
    bound = max(_count(fields.get(name)) for name in _BOUNDS) or REPLY_TOKENS
    return Usage(prompt, bound * (_count(fields.get("n")) or 1))


def _prompt_weight(body: bytes) -> int:
    text, parts = _DATA_URL.subn("", body.decode(errors="replace"))
    return weight(text) + parts * PART_WEIGHT


def reported_usage(tail: bytes) -> Usage | None:
    """Return the last usage that the end of a reply reports, if any; whole or streamed."""
    text = tail.decode(errors="replace")
    for found in reversed(list(_USAGE.finditer(text))):
        try:
            counts, _ = _decoder.raw_decode(text, found.end())
        except (ValueError, RecursionError):
            continue
        usage = Usage(_count(counts.get("prompt_tokens")), _count(counts.get("completion_tokens")))
        if usage.is_known:
            return usage
    return None


def _count(value: object) -> int:
    return value if type(value) is int and 0 < value <= MAX_COUNT else 0
