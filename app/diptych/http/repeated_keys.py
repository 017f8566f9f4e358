"""Finds a key that stands twice in one object of a body.

One reader takes its first value and another its last: what a proxy has checked would not be what
is done. JSON readers in C keep the last and say nothing, so it is found by what is missing.

Not here: what else is wrong with a body (`http.bodies`, `http.a2a.bindings`).
"""

import json
from typing import Any

from diptych.loop.actions.strict_json import unique_keys

_ESCAPED_COLON = b"\\u003a"


def repeated_key_problem(raw: bytes, value: object) -> str | None:
    """Say which key of a body in UTF-8 stands twice in one object; None if none does.

    `value` is what `raw` was read as. Its keys, and the colons in its texts, are all the colons of
    a body of which nothing was dropped.
    """
    if _count_written_colons(raw) == _count_colons(value):
        return None
    try:
        json.loads(raw, object_pairs_hook=unique_keys)
    except ValueError as error:
        return str(error)
    except RecursionError:  # too deep for this reader, which would have named it
        return "a key appears twice in one object"
    return None


def _count_written_colons(raw: bytes) -> int:
    """Count the colons of a body in JSON, with those that it writes as escapes."""
    count = raw.count(b":")
    if b"\\u003" in raw:  # after an escaped backslash this is no escape
        count += raw.replace(b"\\\\", b"  ").lower().count(_ESCAPED_COLON)
    return count


def _count_colons(value: object) -> int:
    """Count the keys, and the colons in keys and texts; every chat pays for each step of it."""
    count = 0
    values: list[Any] = [value]
    for found in values:
        if type(found) is dict:
            count += len(found)
            for key, inner in found.items():
                if ":" in key:
                    count += key.count(":")
                if type(inner) is not str:
                    values.append(inner)
                elif ":" in inner:
                    count += inner.count(":")
        elif type(found) is list:
            values += found
        elif type(found) is str:
            count += found.count(":")
    return count
