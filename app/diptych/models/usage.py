"""Reads what a reply says of the tokens that it cost, wherever servers put that."""

from collections.abc import Mapping
from typing import Any

from diptych.core.budget import MAX_COUNT
from diptych.core.messages import Usage


def usage_of(found: Mapping[str, Any], choice: Mapping[str, Any]) -> Usage | None:
    """Find the usage: of the chunk, of its choice (Moonshot), or in Groq's own field."""
    extra = found.get("x_groq")
    groq = extra.get("usage") if isinstance(extra, dict) else None
    return _usage(found.get("usage")) or _usage(choice.get("usage")) or _usage(groq)


def _usage(found: object) -> Usage | None:
    if not isinstance(found, dict) or not found:
        return None
    return Usage(_count(found.get("prompt_tokens")), _count(found.get("completion_tokens")))


def _count(value: object) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # of servers whose language has one kind of number
    return value if isinstance(value, int) and 0 < value <= MAX_COUNT else 0
