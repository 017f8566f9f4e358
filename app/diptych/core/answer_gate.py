"""Tells answers from actions, in whole texts and in streams (loop.md §7).

Whole texts are judged by the phase-1 parser. Not actions are: JSON that is plain data, calls of
something not offered, fenced code, and replies that the parser calls `ambiguous`. A stream is held
back only while it may still be the beginning of an action:

    {…}  […]      until it closes, if it opens like JSON; `[1]`, `[x]`, `{name}` pass at once
    a fence       until it closes, if its tag is json or empty, or if it opens like JSON
    <tag …>       to the end, for tags that models write calls in; other tags pass once known
    }  ]  ,       leftovers of a no-op or a list: until anything else follows
    Action: …     and the few other words that may begin a call: to the end
    n{  [n(       to the end, if `n` is offered

All other text passes from its first character. A value that has closed is released, unless it is a
call (the rest is then held to the end) or a no-op (the next text decides). The result depends only
on the text, not on how the stream was split.
"""

import re
from bisect import bisect_left
from collections.abc import Callable
from enum import Enum, auto
from functools import lru_cache
from typing import NamedTuple

from diptych.core.catalog import Catalog
from diptych.core.reading import ActionError, Calls, parse
from diptych.core.reading.other_forms import offered_name
from diptych.core.reading.own_form import is_no_op
from diptych.core.reading.strict_json import decode_json

_WORD = re.compile(r"[^\s<>\[\]{}()\"'`]{0,128}+")
_NAMESPACES = ("functions.", "functions:", "tools.", "tools:", "default_api.", "default_api:")
_NUMBER = re.compile(r":\d{0,4}\Z")  # Kimi's `functions.read:0`
_METHOD = ".call"  # Llama 3's `read.call(…)`


class BareOpenings:
    """Recognises calls that begin with an offered name, such as `read{` or `[read(`."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def opens(self, text: str) -> bool | None:
        """Whether a text opens a call at its first character; None while undecided."""
        if not self._names:
            return False
        is_list = text.startswith("[")
        body = text[1:].lstrip() if is_list else text
        if not body:
            return None
        word = _WORD.match(body)
        name, after = (word[0], body[word.end() :]) if word else ("", body)
        if not after:
            return None if self._may_become_name(name) else False
        if self._plain(name) not in self._names:
            return False
        after = after.lstrip()
        return after.startswith("(" if is_list else "{") if after else None

    def _may_become_name(self, word: str) -> bool:
        if any(space.startswith(word) for space in _NAMESPACES):
            return True
        plain = self._plain(word)
        spellings = _spellings(self._names)
        place = bisect_left(spellings, plain)
        return place < len(spellings) and spellings[place].startswith(plain)

    def _plain(self, word: str) -> str:
        if word in self._names:
            return word
        space = next((space for space in _NAMESPACES if word.startswith(space)), "")
        return _NUMBER.sub("", word.removeprefix(space)).removesuffix(_METHOD)


@lru_cache(maxsize=32)
def _spellings(names: frozenset[str]) -> list[str]:
    """Return the names, with and without `.call`, sorted for binary search by prefix."""
    return sorted(names | {f"{name}{_METHOD}" for name in names})


_NAME = re.compile(
    r"(?:\b(?:tool|agent|name|function|action|to)[\"']?\s*[:=]\s*[\"']?)([^\s\"'<>{}()\[\],|]{1,128})",
    re.IGNORECASE,
)
_NO_OP = re.compile(r"(?:(?:```|~~~)[\w-]*)?(?:\s*<>\s*|[\[\]{},\s]+)(?:```|~~~)?")
_FENCED = re.compile(r"(`{3,}|~{3,})[\w-]*\s*(?P<inside>.*?)\1", re.DOTALL)


def is_only_no_op(text: str) -> bool:
    """Whether a whole text is a no-op, fenced or not."""
    text = text.strip()
    if _NO_OP.fullmatch(text):
        return True
    if "null" not in text:
        return False
    fenced = _FENCED.fullmatch(text)
    value = decode_json(fenced["inside"].strip() if fenced else text)
    return not isinstance(value, ValueError) and is_no_op(value)


def is_call(text: str, catalog: Catalog) -> bool:
    """Whether a text contains calls, or a malformed call of something that is offered."""
    match parse(text, catalog):
        case Calls():
            return True
        case ActionError(type=kind) if kind != "ambiguous":
            names = {match[1] for match in _NAME.finditer(text)}
            return any(offered_name(name, catalog, may_be_away=True) for name in names)
        case _:
            return False


def is_attempt(text: str, catalog: Catalog) -> bool:
    """Whether phase 1 would read a text as calls, or reject it as a malformed call.

    Unlike `is_call`, this includes calls of something not offered: at the beginning of a direct
    answer they are rejected, not shown (§3).
    """
    match parse(text, catalog):
        case Calls():
            return True
        case ActionError(type=kind):
            return kind != "ambiguous"
        case _:
            return False


_BLANKS = "\ufeff \t\r\n\f\v"
_REMAINS = "}]," + _BLANKS
_TAGS = frozenset(
    {"tool_call", "tool_calls", "toolcall", "function", "function_call", "function_calls"}
    | {"invoke", "functions", "tool_code", "tools"}
)
_LITERALS = (  # other beginnings of calls in the forms of `reading.forms`
    "[TOOL_CALLS]",
    "]<]minimax[>[",
    '"tool"',
    '"agent"',
    '"calls"',
    "functools[",
    "function call<|",
    "to=",
    "Action:",
    ">>>",
)
_LONGEST = max(map(len, _LITERALS))
_TAG = re.compile(r"<([\w:.-]{1,64})")
_FENCE = re.compile(r"(?P<mark>`{3,}|~{3,})(?P<tag>[^\n]*)(?P<end>\n?)")
_BRACKET = re.compile(r'["\\{}\[\]\n]')


class _Kind(Enum):
    """How a text begins."""

    FLOW = auto()  # prose: passes at once, up to the end of its line if lines are watched
    NO_OP = auto()
    BRACKETS = auto()
    FENCE = auto()  # of JSON
    CODE = auto()  # a fence of anything else
    ACTION = auto()  # held to the end


class _Opening(NamedTuple):
    kind: _Kind
    end: int  # of the classified text
    mark: str = ""  # that opens the fence


class AnswerGate:
    """Passes an answer on as it streams, but holds back possible actions.

    `is_action` judges a whole value or fenced block; `is_attempt` replaces it until any text has
    passed. `names` are the callable names. With `watches_lines`, every line is checked and not only
    the beginning: for replies that may be an answer or calls (`answerMode: direct`). No text passes
    before `min_chars` are available.
    """

    def __init__(
        self,
        is_action: Callable[[str], bool],
        *,
        is_attempt: Callable[[str], bool] | None = None,
        names: frozenset[str] = frozenset(),
        watches_lines: bool = False,
        min_chars: int = 0,
    ) -> None:
        self._is_action = is_action
        self._judge_opening = is_attempt or is_action
        self._has_flowed = False
        self._bare = BareOpenings(names)
        self._watches_lines = watches_lines
        self._min_chars = min_chars
        self._kind: _Kind | None = None  # None at a beginning; `_lead` is its text so far
        self._lead = ""
        self._held: list[str] = []
        self._unit: list[str] = []  # pieces of the value or fence that is open
        self._brackets = _Brackets()
        self._mark = ""
        self._tail = ""  # of a fence; may contain part of its closing mark
        self._released: list[str] = []

    def feed(self, piece: str) -> str:
        """Take the next piece; return the text that may be sent now."""
        while piece:
            match self._kind:
                case None:
                    piece = self._begin(piece)
                case _Kind.BRACKETS | _Kind.FENCE:
                    piece = self._collect(piece)
                case _Kind.FLOW | _Kind.CODE:
                    piece = self._flow(piece)
                case _:
                    self._held.append(piece)
                    piece = ""
        if self._min_chars and sum(map(len, self._released)) < self._min_chars:
            return ""
        self._min_chars = 0
        return self._take_released()

    def finish(self) -> str:
        """Return the held text, at the end of the answer."""
        return self._take_released() + "".join((*self._held, *self._unit, self._lead))

    def _take_released(self) -> str:
        text = "".join(self._released)
        self._released.clear()
        return text

    def _begin(self, piece: str) -> str:
        """Classify a beginning; return the unread rest of the piece."""
        self._lead += piece
        opening = _opening(self._lead, self._bare)
        if opening is None:
            return ""
        text, self._lead = self._lead, ""
        known, rest = text[: opening.end], text[opening.end :]
        self._kind, self._mark, self._tail = opening.kind, opening.mark, ""
        if opening.kind is _Kind.FENCE:
            self._unit.append(known)
            self._tail = "\n"
            return rest
        self._held.append(known)
        match opening.kind:
            case _Kind.FLOW | _Kind.CODE:
                self._release()
            case _Kind.BRACKETS:
                self._brackets = _Brackets()
            case _Kind.NO_OP:
                self._kind = None
        return rest

    def _collect(self, piece: str) -> str:
        """Read to the end of the open value or fence, then judge it."""
        end = self._brackets.end(piece) if self._kind is _Kind.BRACKETS else self._fence_end(piece)
        if end is None:
            self._unit.append(piece)
            return ""
        unit = "".join((*self._unit, piece[:end]))
        self._unit.clear()
        self._held.append(unit)
        judge = self._is_action if self._has_flowed else self._judge_opening
        if is_only_no_op(unit):
            self._kind = None
        elif judge(unit):
            self._kind = _Kind.ACTION
        else:
            self._kind = _Kind.FLOW
            self._release()
        return piece[end:]

    def _flow(self, piece: str) -> str:
        if not self._watches_lines:
            self._released.append(piece)
            return ""
        end = piece.find("\n") + 1 if self._kind is _Kind.FLOW else self._fence_end(piece)
        if not end:
            self._released.append(piece)
            return ""
        self._released.append(piece[:end])
        self._kind = None if self._kind is _Kind.FLOW else _Kind.FLOW
        return piece[end:]

    def _fence_end(self, piece: str) -> int | None:
        """Return the offset after the fence's closing mark, None while it is open."""
        closing = f"\n{self._mark}"
        text = self._tail + piece
        place = text.find(closing)
        if place < 0:
            self._tail = text[-len(closing) :]
            return None
        return place + len(closing) - len(self._tail)

    def _release(self) -> None:
        self._has_flowed = True
        self._released += self._held
        self._held.clear()


class _Brackets:
    """Finds the end of a streamed JSON value; a line break ends an unclosed string."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escapes = False  # the last character is an escaping backslash

    def end(self, piece: str) -> int | None:
        """Return the offset after the bracket that closes the value, None while it is open."""
        skipped = 1 if self._escapes else 0
        self._escapes = False
        for token in _BRACKET.finditer(piece):
            if token.start() < skipped:
                continue
            match token[0]:
                case "\\":
                    skipped = token.end() + 1 if self._in_string else 0
                    self._escapes = skipped > len(piece)
                case '"':
                    self._in_string = not self._in_string
                case "\n":
                    self._in_string = False
                case "{" | "[" if not self._in_string:
                    self._depth += 1
                case "}" | "]" if not self._in_string:
                    self._depth -= 1
                    if self._depth <= 0:
                        return token.end()
        return None


def _opening(text: str, bare: BareOpenings) -> _Opening | None:
    """Classify how a text begins; None while more characters could change the result."""
    at = len(text) - len(text.lstrip(_BLANKS))
    rest = text[at:]
    if not rest:
        return None
    match rest[0]:
        case "`" | "~":
            return _fence(text, at)
        case "<":
            return _tag(rest, at)
        case "{" | "[":
            after = rest[1:].lstrip(_BLANKS)
            if not after:
                return None
            if after[0] in ("\"}'{tac" if rest[0] == "{" else '{[]"'):
                return _Opening(_Kind.BRACKETS, at)
        case "}" | "]" | "," if not rest.strip(_REMAINS):
            return None
    opens = _opens_words(rest)
    if opens is False:
        opens = bare.opens(rest)
    if opens is None:
        return None
    return _Opening(_Kind.ACTION, len(text)) if opens else _Opening(_Kind.FLOW, at)


def _opens_words(rest: str) -> bool | None:
    if rest.startswith(_LITERALS):
        return True
    is_start = len(rest) < _LONGEST and any(literal.startswith(rest) for literal in _LITERALS)
    return None if is_start else False


def _tag(rest: str, at: int) -> _Opening | None:
    if rest.startswith("<>"):
        return _Opening(_Kind.NO_OP, at + len("<>"))
    if rest.startswith(("<|", "<\uff5c")):
        return _Opening(_Kind.ACTION, at)
    name = _TAG.match(rest)
    if name and name.end() < len(rest):
        is_call = not _TAGS.isdisjoint(name[1].lower().split(":"))
        return _Opening(_Kind.ACTION if is_call else _Kind.FLOW, at)
    return None if rest == "<" or name else _Opening(_Kind.FLOW, at)


def _fence(text: str, at: int) -> _Opening | None:
    fence = _FENCE.match(text, at)
    if fence is None:
        is_undecided = len(set(text[at:])) == 1  # one or two marks
        return None if is_undecided else _Opening(_Kind.FLOW, at)
    tag = fence["tag"].strip().lower()
    if tag.startswith(("{", "[")):
        return _Opening(_Kind.ACTION, at)
    if "`" in tag and fence["mark"].startswith("`"):  # code in a line
        return _Opening(_Kind.FLOW, at)
    inside = text[fence.end() :].lstrip(_BLANKS)
    is_json = not tag or tag.startswith("json") or inside.startswith(("{", "["))
    if not fence["end"] or not (inside or is_json):
        return None
    kind, end = (_Kind.FENCE, fence.end()) if is_json else (_Kind.CODE, fence.end("mark"))
    return _Opening(kind, end, fence["mark"])
