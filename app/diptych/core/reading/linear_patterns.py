"""Searches texts with patterns that strangers wrote, in a time that is bounded beforehand.

Python's `re` takes exponential time for `(a+)+$`. The engine here is Rust's, which pydantic has
in it: its time is at most the number of states of the pattern times the length of the text. A
pattern with look-around or back-references has no such engine.
"""

import re
from functools import lru_cache

from pydantic_core import SchemaError, SchemaValidator, core_schema

MAX_STATES = 20_000
MAX_WORK = 5_000_000
"""States times characters: at most 0.1 s."""

_TOKEN = re.compile(
    r"\\[pPwWdDsS]|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{(\d+)(?:(,)(\d*))?\}|[()]|.", re.DOTALL
)
_LITERALS = frozenset("\\^$.|?*+()[]{}-/\"' nrtfvbBAzZ")  # when escaped
_CLASS_STATES = 50  # of a class of Unicode, in bytes of UTF-8; about


class UnusablePattern(Exception):
    """A pattern that cannot be searched for in a bounded time."""


def matches(pattern: str, text: str) -> bool:
    """Say whether a pattern matches somewhere in a text. Raises `UnusablePattern`."""
    if (states(pattern) + 1) * len(text) > MAX_WORK:
        raise UnusablePattern(pattern)
    return _compiled(pattern).isinstance_python(text)


@lru_cache(maxsize=256)
def states(pattern: str) -> int:
    """Estimate the states of a pattern, counted repetitions written out.

    Raises `UnusablePattern` if there are too many.
    """
    sequences, atom = [0], 0
    for token in _TOKEN.finditer(pattern):
        text = token[0]
        match text[0]:
            case "(":
                sequences.append(0)
                atom = 0
            case ")" if len(sequences) > 1:
                atom = sequences.pop()
                sequences[-1] += atom
            case "{" if token[1]:
                times = int((token[3] or token[1])[:9])
                sequences[-1] += atom * max(times - 1, 0)
                atom *= max(times, 1)
            case "[" | "." | "\\" if text[1:] not in _LITERALS:
                atom = _CLASS_STATES
                sequences[-1] += atom
            case "*" | "+" | "?" | "|":
                sequences[-1] += 1
            case _:
                atom = 1
                sequences[-1] += atom
        if sequences[-1] > MAX_STATES:
            raise UnusablePattern(pattern)
    return sum(sequences)


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> SchemaValidator:
    try:
        schema = core_schema.str_schema(pattern=pattern, regex_engine="rust-regex")
        return SchemaValidator(schema)
    except SchemaError as error:
        raise UnusablePattern(pattern) from error
