"""Finds the partner of every bracket in a text that may hold JSON: one pass, no rescans."""

import re
from dataclasses import dataclass

# Inside brackets a string can only follow one of these, which is what tells it from a quotation
# mark in prose. It ends on its line, or where the text does.
_STRING = r'(?:[ \t]*"(?:[^"\\\n]|\\[^\n])*+(?:"|\\?\Z))?'
_INSIDE = re.compile(rf"[{{\[,:\n]{_STRING}|[}}\]]")
_OUTSIDE = re.compile(rf"[{{\[]{_STRING}|\n")
_BLANKS = re.compile(r"[\s\ufeff]*")
_INDENT = re.compile(r"(?:[^\S\n]|\ufeff)*")
_OPENERS = {"}": "{", "]": "["}


@dataclass(slots=True)
class Span:
    """What one opening bracket encloses.

    `end` is the offset after its partner, 0 when it has none. `height` counts the brackets open
    at one time from it on (1 for `{}`), whether or not those inside it have partners.
    """

    opener: str
    start: int
    starts_line: bool
    end: int = 0
    height: int = 1


def spans(text: str) -> list[Span]:
    """Give a span for each opening bracket, in order. Lines end with a line feed.

    A bracket closes the nearest open one of its kind; those opened since then stay without a
    partner. Brackets in JSON strings do not count.
    """
    found: list[Span] = []
    if "{" not in text and "[" not in text:
        return found
    pairing = _Pairing()
    position, first = 0, _indent_end(text, 0)
    while token := (_INSIDE if pairing.open else _OUTSIDE).search(text, position):
        at, position = token.span()
        char = text[at]
        if char in "{[":
            span = Span(char, at, at == first)
            found.append(span)
            pairing.push(span)
        elif char in _OPENERS:
            pairing.close(_OPENERS[char], at + 1)
        elif char == "\n":
            first = _indent_end(text, at + 1)
    pairing.settle()
    return found


def blank_end(text: str, start: int) -> int:
    """Give the offset of the first character from `start` on that is not blank."""
    blanks = _BLANKS.match(text, start)
    return blanks.end() if blanks else start


def _indent_end(text: str, start: int) -> int:
    indent = _INDENT.match(text, start)
    return indent.end() if indent else start


class _Pairing:
    """The brackets that are open at one point of the text."""

    def __init__(self) -> None:
        self.open: list[Span] = []
        self._count = {"{": 0, "[": 0}

    def push(self, span: Span) -> None:
        self.open.append(span)
        self._count[span.opener] += 1

    def close(self, opener: str, end: int) -> None:
        if not self._count[opener]:  # without this, each stray bracket would search them all
            return
        while self.open:
            span = self._pop()
            if span.opener == opener:
                span.end = end
                return

    def settle(self) -> None:
        while self.open:
            self._pop()

    def _pop(self) -> Span:
        span = self.open.pop()
        self._count[span.opener] -= 1
        if self.open and self.open[-1].height <= span.height:
            self.open[-1].height = span.height + 1
        return span
