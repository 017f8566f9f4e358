"""Reads JSON that decides something, so strictly that no other reader takes it differently."""

import asyncio

from diptych.core.messages import JSON
from diptych.core.reading.strict_json import decode_json

_QUICKLY_READ = 64 * 1024
"""Bytes that are read in some 5 ms, in which nobody else is served."""


async def read_strictly(raw: bytes) -> JSON:
    """Read JSON in UTF-8. Raises `ValueError`, whose message is for people."""
    text = raw.decode()
    if len(raw) <= _QUICKLY_READ:
        value = decode_json(text)
    else:
        value = await asyncio.to_thread(decode_json, text)
    if isinstance(value, ValueError):
        raise ValueError(str(value))  # noqa: TRY004 - another, whose traceback leads not to it
    return value
