"""Finds a key that stands twice in one object of a body.

One reader takes its first value and another its last: what a proxy has checked would not be what
is done. JSON readers in C keep the last and say nothing, so it is found by what is missing.
"""

import asyncio
import json
from typing import Any

import orjson

from diptych.core.reading.strict_json import unique_keys

_ESCAPED_COLON = b"\\u003a"
_MAX_NAMED = 64 * 1024
"""Bytes of a body whose repeated key is named: it is looked for by a reader that is slow."""

_VALUES_AT_ONCE = 10_000  # a millisecond or two, in which no other request is served


async def repeated_key_problem(raw: bytes, value: object) -> str | None:
    """Say which key of a body in UTF-8 stands twice in one object; None if none does.

    `value` is what `raw` was read as. A body has a colon for each key, and those within its texts.
    Where `value` has fewer, a key was dropped with its value, as it stood there twice.
    """
    try:
        count = orjson.dumps(value).count(b":")  # never escaped there; every chat pays for this
    except TypeError:  # nested deeper than orjson writes, or with numbers over 64 bits
        count = await _count_colons(value)
    if _count_written_colons(raw) == count:
        return None
    if len(raw) <= _MAX_NAMED:
        try:
            json.loads(raw, object_pairs_hook=unique_keys)
        except ValueError as error:
            return str(error)
        except RecursionError:  # too deep for this reader
            pass
    return "a key appears twice in one object"


def _count_written_colons(raw: bytes) -> int:
    """Count the colons of a body in JSON, with those that it writes as escapes."""
    count = raw.count(b":")
    if b"\\u003" in raw:  # after an escaped backslash this is no escape
        count += raw.replace(b"\\\\", b"  ").lower().count(_ESCAPED_COLON)
    return count


async def _count_colons(value: object) -> int:
    """Count the keys, and the colons in keys and texts; others are served meanwhile."""
    count = 0
    values: list[Any] = [value]
    for place, found in enumerate(values):
        if type(found) is dict:
            count += len(found) + "".join(found).count(":")
            values += found.values()
        elif type(found) is list:
            values += found
        elif type(found) is str:
            count += found.count(":")
        if place % _VALUES_AT_ONCE == _VALUES_AT_ONCE - 1:
            await asyncio.sleep(0)
    return count
