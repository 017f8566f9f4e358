"""How large a regular expression (RE2) may become when it is compiled.

RE2 writes counted repeats out: `((a|b){50}){19}` has 950 alternatives. At worst it holds each byte
of a text against all of them.
"""

import re

MAX_SIZE = 131_072  # instructions that RE2 compiles at most, by its limit of memory
_MAX_REPEAT = 1_000  # of RE2; nested repeats count as their product
_TOKEN = re.compile(
    r"""(?P<quoted>\\Q)
    | (?P<class>\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\])
    | (?P<repeat>\{(?P<least>\d+)(?:,(?P<most>\d*))?\})
    | (?P<set>\\[pP](?:\{[^}]*\}|.)|\\x\{[^}]*\}|\\[a-zA-Z]|\.)
    | (?P<other>\\.|.)""",
    re.DOTALL | re.VERBOSE,
)
_UNICODE_CLASS = re.compile(r"\\[pP]")
_IGNORES_CASE = re.compile(r"\(\?\w*i")
_LEAST = 4  # of any pattern, for what surrounds it
_SET = 3  # of `.` or `\w`, of whose ranges at most a few are looked at
_BEYOND_ASCII = 8  # bytes and ranges of bytes that one character may become


def pattern_size(pattern: str, unicode_class: int) -> int:
    r"""Bound the size of a compiled pattern, in units of one literal character.

    `unicode_class` is how many units one such as `\pL` has. Of a pattern that RE2 refuses the
    size says nothing.
    """
    wide = 2 if _IGNORES_CASE.search(pattern) else 1
    wide = wide if pattern.isascii() else _BEYOND_ASCII
    groups = [(0, 0)]  # for each open group: the size of what is before its last atom, and of that
    for token in _TOKEN.finditer(pattern):
        text, (before, atom) = token[0], groups[-1]
        if token["quoted"] or (text == ")" and len(groups) == 1):
            return len(pattern) * _MAX_REPEAT * unicode_class  # brackets may mean anything
        if token["repeat"]:
            groups[-1] = before, (atom + 1) * _times(token)
        elif text in {"*", "+", "?"}:
            groups[-1] = before, atom + 1
        elif text == "(":
            groups.append((0, 0))
        elif text == ")":
            groups.pop()
            groups[-1] = sum(groups[-1]), before + atom + 1
        else:
            groups[-1] = before + atom, _atom(token, unicode_class) * wide
    return _LEAST + sum(map(sum, groups))


def _times(token: re.Match[str]) -> int:
    return max(1, int(token["least"]) + (token["most"] == ""), int(token["most"] or 0))


def _atom(token: re.Match[str], unicode_class: int) -> int:
    size = unicode_class * len(_UNICODE_CLASS.findall(token[0]))
    if token["class"]:
        return size + _SET + len(token[0]) // 4
    return size + (_SET if token["set"] else 1)
