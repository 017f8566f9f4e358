"""Finds JSON values that look like actions in a reply (loop.md §3, "Reading a reply").

One pass matches all brackets. JSON strings never span lines, so quotation marks in prose have no
effect beyond their line. Nothing is scanned twice: the time is linear, even for 100,000 brackets.
"""

import json
import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from diptych.core.catalog import Catalog
from diptych.core.messages import JSON
from diptych.core.reading.other_forms import calls_in, offered_name
from diptych.core.reading.own_form import is_no_op
from diptych.core.reading.strict_json import MAX_DEPTH, decode_json
from diptych.core.reading.verdict import ActionError, NoOp, Prose

# Inside brackets, a string can only follow one of these; other quotation marks are prose. It ends
# on its line, or with the text.
_STRING = r'(?:[ \t]*"(?:[^"\\\n]|\\[^\n])*+(?:"|\\?\Z))?'
_INSIDE = re.compile(rf"[{{\[,:\n]{_STRING}|[}}\]]")
_OUTSIDE = re.compile(rf"[{{\[]{_STRING}|\n")
_BLANKS = re.compile(r"[\s\ufeff]*")
_INDENT = re.compile(r"(?:[^\S\n]|\ufeff)*")
_OPENERS = {"}": "{", "]": "["}


@dataclass(slots=True)
class Span:
    """The text from an opening bracket to its partner.

    `end` is the offset after the partner, 0 without one. `height` is the nesting depth from here on
    (1 for `{}`), including brackets without partners.
    """

    opener: str
    start: int
    starts_line: bool
    end: int = 0
    height: int = 1


def spans(text: str) -> list[Span]:
    """Return a span for each opening bracket, in order. Lines end with a line feed.

    A bracket closes the nearest open one of its kind; those opened in between get no partner.
    Brackets in JSON strings do not count.
    """
    found: list[Span] = []
    unclosed: list[Span] = []
    count = {"{": 0, "[": 0}  # of unclosed brackets, so that stray ones need no search

    def close() -> Span:
        span = unclosed.pop()
        count[span.opener] -= 1
        if unclosed and unclosed[-1].height <= span.height:
            unclosed[-1].height = span.height + 1
        return span

    position, first = 0, _indent_end(text, 0)
    while token := (_INSIDE if unclosed else _OUTSIDE).search(text, position):
        at, position = token.span()
        char = text[at]
        if char in count:
            span = Span(char, at, at == first)
            found.append(span)
            unclosed.append(span)
            count[char] += 1
        elif char == "\n":
            first = _indent_end(text, at + 1)
        elif (opener := _OPENERS.get(char, "")) and count[opener]:
            while (span := close()).opener != opener:
                pass
            span.end = at + 1
    while unclosed:
        close()
    return found


def blank_end(text: str, start: int) -> int:
    """Return the offset of the first non-blank character at or after `start`."""
    blanks = _BLANKS.match(text, start)
    return blanks.end() if blanks else start


def _indent_end(text: str, start: int) -> int:
    indent = _INDENT.match(text, start)
    return indent.end() if indent else start


_ACTION_KEYS = frozenset({"tool", "agent", "arguments", "calls"})
_QUOTED_KEY = re.compile(r'"(?:tool|agent|calls)"')
_NAMED_KEY = re.compile(
    r'"(?:tool_)?name"\s*:\s*"(?P<name>[^"\n]{1,128})"\s*,\s*"(?:arguments|parameters)"'
)
_OTHER_QUOTES = re.compile(r"(?:\[\s*)?\{\s*'?(?:tool|agent|calls)'?\s*:")
_BRACELESS = re.compile(r'\s*"(?:tool|agent|calls)"\s*:')
_MAY_BE_JSON = re.compile(r'\{\s*["}]|\[\s*\]')
_MAY_BE_LIST = re.compile(r'\[\s*["\w\[{-]')
_OPENS_LIKE_JSON = re.compile(r'\{\s*["{]|\[(?:\s*\[)?\s*\{')
_FENCE = re.compile(
    r"^[^\S\n]*(?P<item>(?:[-*+]|\d{1,9}[.)])[^\S\n]+)?(?P<mark>`{3,}|~{3,})(?P<tag>[^\n]*)$",
    re.MULTILINE,
)
_JSON_TAG = re.compile(r"json[5cl]?\b", re.IGNORECASE)
_ALONE = "put the JSON alone in the reply, without other text"


def find_values(
    text: str, catalog: Catalog | None = None
) -> tuple[JSON, ...] | NoOp | Prose | ActionError:
    """Find the values that look like actions in a reply without its reasoning, in order.

    Without any, the reply is a no-op or prose; no-ops beside actions are ignored. A value is an
    object with an action's key, a list with such an object, or a call of something in the catalog
    in another form (`other_forms`). Values are not checked further, and at most `MAX_DEPTH` deep.
    """
    text = _without_fences(text.replace("\r\n", "\n").replace("\r", "\n"))
    if _BRACELESS.match(text):
        return ActionError("json_syntax", "an action is a JSON object: it opens with { and ends }")
    found: list[_Found] = []
    for piece in _pieces(text, catalog):
        if isinstance(piece, ActionError):
            return piece
        found.append(piece)
    calls = [n for n, piece in enumerate(found) if piece.value]
    if not calls:
        is_no_op = text.strip() == "<>" or any(_has_own_lines(text, piece) for piece in found)
        return NoOp() if is_no_op else Prose()
    together = found[calls[0] : calls[-1] + 1]
    if any(piece.inline for piece in found):
        return ActionError("ambiguous", f"a call stands in the middle of a line of text; {_ALONE}")
    for one, other in pairwise(together):
        if blank_end(text, one.end) < other.start:
            return ActionError(
                "ambiguous",
                "there are several calls with text between them, and one may be an example; "
                f"{_ALONE}, several calls as one JSON array",
            )
    return tuple(piece.value for piece in together if piece.value)


def looks_like_action(value: JSON) -> bool:
    """Whether this is an object with an action's key, or a list with such an object."""
    if isinstance(value, list):
        return any(looks_like_action(element) for element in value)
    return isinstance(value, dict) and not _ACTION_KEYS.isdisjoint(value)


@dataclass(frozen=True, slots=True)
class _Found:
    """A value and its place in the text; empty for a no-op."""

    start: int
    end: int
    value: JSON
    inline: bool


def _pieces(text: str, catalog: Catalog | None) -> Iterator[_Found | ActionError]:
    keys = _keys(text, catalog)
    opening = blank_end(text, 0)
    covered = 0  # the text before this offset is done
    place = opening  # a value that starts here follows the last one with only blanks between
    for span in spans(text):
        if span.start < covered:
            continue
        at_place = span.starts_line or span.start == place
        value = _value(text, span)
        if not isinstance(value, ValueError):
            covered = span.end
            is_empty = _is_empty(value)
            if not is_empty and (looks_like_action(value) or _is_call(value, catalog)):
                place = blank_end(text, covered)
                yield _Found(span.start, span.end, value, inline=not at_place)
            elif is_empty and at_place:
                place = blank_end(text, covered)
                yield _Found(span.start, span.end, [], inline=False)
            elif span.start == opening and blank_end(text, covered) == len(text) and _wraps(value):
                yield ActionError("missing_field", f"a call is wrapped in other JSON; {_ALONE}")
        elif at_place:
            has_key = _has_key(keys, span, len(text))
            if error := _broken(text, span, value, opens=span.start == opening, has_key=has_key):
                yield error
            elif not has_key and span.end:
                covered = span.end  # it cannot contain a call


def _is_call(value: JSON, catalog: Catalog | None) -> bool:
    return catalog is not None and calls_in(value, catalog) is not None


def _keys(text: str, catalog: Catalog | None) -> list[int]:
    """Return the sorted offsets of quoted keys that only actions have."""
    keys = [match.start() for match in _QUOTED_KEY.finditer(text)]
    if catalog is None:
        return keys
    named = _NAMED_KEY.finditer(text)
    return sorted(keys + [m.start() for m in named if offered_name(m["name"], catalog)])


def _has_own_lines(text: str, piece: _Found) -> bool:
    before = text[text.rfind("\n", 0, piece.start) + 1 : piece.start]
    after = text[piece.end :].partition("\n")[0]
    return not before.strip(" \t\ufeff") and not after.strip()


def _is_empty(value: JSON) -> bool:
    return is_no_op(value) or (isinstance(value, list) and all(map(_is_empty, value)))


def _wraps(value: JSON) -> bool:
    """Whether JSON data that is the whole reply contains a whole call."""
    match value:
        case {"tool": str(), "arguments": dict()} | {"agent": str(), "task": str()}:
            return True
        case dict():
            return any(_wraps(inner) for inner in value.values())
        case list():
            return any(_wraps(inner) for inner in value)
        case _:
            return False


def _value(text: str, span: Span) -> "JSON | ValueError":
    if not span.end:
        return ValueError("it never closes")
    if not (_MAY_BE_JSON.match(text, span.start) or _MAY_BE_LIST.match(text, span.start)):
        return ValueError("keys and texts need double quotes")
    if span.height > MAX_DEPTH:
        return ValueError(f"it is nested deeper than {MAX_DEPTH}")
    return decode_json(text[span.start : span.end])


def _has_key(keys: list[int], span: Span, length: int) -> bool:
    """Whether a quoted action key lies in the span, or after its start if it never closes."""
    first = bisect_left(keys, span.start)
    return first < len(keys) and keys[first] < (span.end or length)


def _broken(
    text: str, span: Span, problem: ValueError, *, opens: bool, has_key: bool
) -> ActionError | None:
    """Return the error for invalid JSON that looks like an action, None for prose."""
    like_json = bool(_OPENS_LIKE_JSON.match(text, span.start))
    is_object = span.opener == "{"
    if _OTHER_QUOTES.match(text, span.start):
        has_key = like_json = True
    if not span.end and ((opens and (is_object or like_json)) or (has_key and like_json)):
        return ActionError("truncated", f"the JSON opens with {span.opener} and never closes")
    if span.end and has_key and (is_object or like_json):
        return ActionError("json_syntax", f"not valid JSON: {_short(problem)}")
    return None


def _short(problem: ValueError) -> str:
    if isinstance(problem, json.JSONDecodeError):
        where = f"at line {problem.lineno} column {problem.colno} of it"
        if problem.msg.startswith("Invalid control character"):
            return f"a line break or tab inside a text is written \\n or \\t; {where}"
        return f"{problem.msg}, {where}"
    return str(problem)[:200]


def _without_fences(text: str) -> str:
    """Remove the fences around JSON and untagged blocks, and code blocks as a whole.

    Code blocks leave a mark, as they count as prose. A block that opens like JSON is JSON whatever
    its tag; an unclosed block is no block.
    """
    if "```" not in text and "~~~" not in text:
        return text
    kept: list[str] = []
    position = 0
    block: re.Match[str] | None = None
    for fence in _FENCE.finditer(text):
        tag = fence["tag"].strip()
        if block:
            if not tag and not fence["item"] and fence["mark"].startswith(block["mark"]):
                inside = text[block.end() : fence.start()]
                is_json = inside.lstrip().startswith(("{", "["))
                kept += text[position : block.start()], inside if is_json else "`"
                position, block = fence.end(), None
        elif not _is_fence(fence["mark"], tag):
            continue
        elif not tag or _JSON_TAG.match(tag):
            kept.append(text[position : fence.start()])
            position = fence.end()
        else:
            block = fence
    return "".join((*kept, text[position:]))


def _is_fence(mark: str, tag: str) -> bool:
    """Distinguish a fence from inline code, and from a call on the fence's own line."""
    return not (mark[0] == "`" and "`" in tag) and '"' not in tag
