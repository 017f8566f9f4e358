"""Cleans and bounds text from outside, for records, streams and models."""

import re
import unicodedata
from collections.abc import Sequence

RESULT_BYTES = 2**20
"""Limit of a call's result in UTF-8 bytes; the rest is cut, with a mark (loop.md §5)."""


def well_formed(text: str) -> str:
    """Join split surrogate pairs, and replace lone halves by U+FFFD: UTF-8 cannot encode them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


_JOINERS = "\u200c\u200d"  # needed by some scripts, and by emoji
_UNSEEN = frozenset({"Cc", "Cf", "Co", "Cs", "Zl", "Zp"})


def one_line(text: str, limit: int | None = None) -> str:
    """Put a foreign name or description on one line of at most `limit` characters.

    Whitespace collapses to single spaces. Control characters, direction marks and other invisible
    characters are escaped, so that people see what the model sees.
    """
    line = " ".join(text.split())
    if not line.isprintable():
        line = "".join(_escaped(c) if _is_unseen(c) else c for c in line)
    return line if limit is None else shortened(line, limit)


def several_lines(text: str, limit: int | None = None) -> str:
    """Clean a foreign description as `one_line` does, but keep its line breaks."""
    shown = "\n".join(map(one_line, text.replace("\r\n", "\n").split("\n"))).strip("\n")
    shown = _BLANK_LINES.sub("\n\n", shown)
    return shown if limit is None else shortened(shown, limit)


def is_shortened(text: str) -> bool:
    """Whether `shortened` has cut a text."""
    return text.endswith(_CUT)


def shortened(text: str, limit: int) -> str:
    """Cut a text to `limit` characters, with a mark at the end."""
    return text if len(text) <= limit else text[: limit - len(_CUT)] + _CUT


def some(names: Sequence[str], limit: int = 5) -> str:
    """Join the first names of a list, and say how many more there are."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


_CUT = " … [cut]"
_BLANK_LINES = re.compile(r"\n{3,}")


def _is_unseen(char: str) -> bool:
    return unicodedata.category(char) in _UNSEEN and char not in _JOINERS


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode()


def bounded(text: str) -> str:
    """Cut a result to `RESULT_BYTES`, with a mark at the end."""
    if len(text) * 4 <= RESULT_BYTES:
        return text
    whole = text.encode()
    if len(whole) <= RESULT_BYTES:
        return text
    shown = whole[:RESULT_BYTES].decode(errors="ignore")
    return f"{shown}\n[cut: {RESULT_BYTES} of {len(whole)} bytes shown]"
