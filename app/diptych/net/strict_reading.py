"""Parses JSON for decisions, so strictly that no other parser could read it differently."""

import asyncio

from diptych.core.messages import JSON
from diptych.core.reading.strict_json import decode_json

_QUICKLY_READ = 64 * 1024
"""Bytes that are parsed within about 5 ms, which block the event loop."""


async def read_strictly(raw: bytes) -> JSON:
    """Parse JSON in UTF-8. Raises `ValueError` with a human-readable message."""
    text = raw.decode()
    if len(raw) <= _QUICKLY_READ:
        value = decode_json(text)
    else:
        value = await asyncio.to_thread(decode_json, text)
    if isinstance(value, ValueError):
        raise ValueError(str(value))  # noqa: TRY004 - a copy: `value` in this frame forms a cycle
    return value
