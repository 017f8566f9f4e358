"""Resolves plain YAML scalars as kubectl does, so that a file means the same on a laptop.

kubectl reads YAML with go-yaml v2: it has YAML 1.1's booleans and octal numbers, but neither
sexagesimal numbers nor dates. Then the value becomes JSON, in which 1e6 is a whole number.
`tests/recorded/kubectl-scalars.json` has kubectl's own answers.
"""

import math
import re
from typing import Final

_TRUE: Final = {"y", "yes", "true", "on"}
_FALSE: Final = {"n", "no", "false", "off"}
_NULL: Final = {"", "~", "null", "Null", "NULL"}
_NUMBERLESS: Final = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_INTEGER: Final = re.compile(
    r"[-+]?(?:0[xX](?P<hex>[0-9a-fA-F]+)|0[bB](?P<bin>[01]+)|0[oO]?(?P<oct>[0-7]+)|0|[1-9][0-9]{0,19})"
)
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_BETWEEN: Final = re.compile(r"(?<=[0-9])_(?=[0-9])")
_BASES: Final = {"hex": 16, "bin": 2, "oct": 8}
_MIN_INTEGER, _MAX_INTEGER = -(2**63), 2**63 - 1


def resolve_scalar(text: str) -> str | int | float | bool | None:
    """Return a plain scalar's value. Raises `ValueError` for infinity and not-a-number."""
    if text in _NULL:
        return None
    if text in {text.lower(), text.capitalize(), text.upper()} and text.lower() in _TRUE | _FALSE:
        return text.lower() in _TRUE
    if _NUMBERLESS.fullmatch(text):
        raise ValueError(text)
    digits = _BETWEEN.sub("", text) if text[0] == "." else text.replace("_", "")
    if text[0] == "_":
        return text
    number: float | None = _integer(digits)
    if number is None and _FLOAT.fullmatch(digits) and math.isfinite(float(digits)):
        number = float(digits)
    if number is None:
        return text
    is_whole = number == int(number) and _MIN_INTEGER <= number <= _MAX_INTEGER
    return int(number) if is_whole else float(number)


def _integer(digits: str) -> int | None:
    """Read an integer of Go's syntax and 64 bits; None for anything else."""
    found = _INTEGER.fullmatch(digits)
    if found is None:
        return None
    base = found.lastgroup
    size = int(found[base], _BASES[base]) if base else int(digits.lstrip("+-"))
    number = -size if digits.startswith("-") else size
    return number if _MIN_INTEGER <= number < 2**64 else None
