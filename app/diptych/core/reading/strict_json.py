"""Decodes JSON strictly, so that no other decoder can read it differently."""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from diptych.core.messages import JSON

MAX_DEPTH = 64
"""Maximum depth of nested brackets; deeper text is not read as JSON."""

_MAX_DIGITS = 20  # of 64 bits
_SURROGATE = re.compile("[\ud800-\udfff]|\\\\u[dD][89a-fA-F]")


def decode_json(text: str) -> "JSON | ValueError":
    """Decode JSON as in RFC 8259; errors are returned, not raised.

    Errors are also repeated keys, NaN, Infinity, numbers over 64 bits, lone surrogates and
    excessive nesting.
    """
    found = _strictly(text, lambda: (_DECODER.decode(text), len(text)))
    return found if isinstance(found, ValueError) else found[0]


def decode_at(text: str, start: int) -> "tuple[JSON, int] | ValueError":
    """Decode the JSON value at `start`; return it with the offset after it.

    As strict as `decode_json`; also an error if deeper than `MAX_DEPTH`. The time is linear in the
    length of the value.
    """
    found = _strictly(text, lambda: _DECODER.raw_decode(text, start), start)
    if isinstance(found, ValueError) or not is_deep(found[0]):
        return found
    return ValueError(f"it is nested deeper than {MAX_DEPTH}")


def _strictly(
    text: str, decode: Callable[[], tuple[JSON, int]], start: int = 0
) -> tuple[JSON, int] | ValueError:
    try:
        value, end = decode()
        if _SURROGATE.search(text, start, end):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return ValueError("a string holds half a surrogate pair, which is not text")
    except ValueError as error:
        return error
    except RecursionError:
        return ValueError("it is nested too deeply")
    return value, end


def is_deep(value: JSON) -> bool:
    """Whether a value is nested deeper than `MAX_DEPTH`."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        inner = [list(v.values()) if isinstance(v, Mapping) else v for v in level]
        level = [child for v in inner if isinstance(v, list) for child in v]
        if not level:
            return False
    return True


def unique_keys(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object (an `object_pairs_hook`). Raises `ValueError` for a repeated key."""
    value = dict(pairs)
    if len(value) < len(pairs):
        times = Counter(name for name, _ in pairs)
        twice = times.most_common(1)[0][0]
        raise ValueError(f"the key {json.dumps(twice[:60])} appears twice in one object")
    return value


def _integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS or not -(2**63) <= (number := int(digits)) < 2**64:
        raise ValueError("a number is too large for 64 bits; write it as a string")
    return number


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError("a number is too large; write it as a string")
    return number


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=unique_keys, parse_int=_integer, parse_float=_finite, parse_constant=_refuse
)
