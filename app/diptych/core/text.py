"""Makes text from outside fit for every record, stream and model."""

import re
import unicodedata

RESULT_BYTES = 2**20
"""The limit of a call's result in UTF-8; the rest is cut with a mark (loop.md §5)."""


def well_formed(text: str) -> str:
    """Join split surrogate pairs, and replace halves of them by U+FFFD: UTF-8 holds none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


_JOINERS = "\u200c\u200d"  # which some scripts, and emoji, cannot be written without
_UNSEEN = frozenset({"Cc", "Cf", "Co", "Cs", "Zl", "Zp"})


def one_line(text: str, limit: int | None = None) -> str:
    """Write a name or description of somebody else on one line of at most `limit` characters.

    White space becomes single blanks. Control characters, marks of direction and other characters
    that nobody sees become escapes, so that a reader sees what a model is told.
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
    """Whether a text has the mark of `shortened`."""
    return text.endswith(_CUT)


def shortened(text: str, limit: int) -> str:
    """Cut a text that has more than `limit` characters, with a mark at its end."""
    return text if len(text) <= limit else text[: limit - len(_CUT)] + _CUT


_CUT = " … [cut]"
_BLANK_LINES = re.compile(r"\n{3,}")


def _is_unseen(char: str) -> bool:
    return unicodedata.category(char) in _UNSEEN and char not in _JOINERS


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode()


def bounded(text: str) -> str:
    """Cut a result that is too long, and say so at its end."""
    if len(text) * 4 <= RESULT_BYTES:
        return text
    whole = text.encode()
    if len(whole) <= RESULT_BYTES:
        return text
    shown = whole[:RESULT_BYTES].decode(errors="ignore")
    return f"{shown}\n[cut: {RESULT_BYTES} of {len(whole)} bytes shown]"
