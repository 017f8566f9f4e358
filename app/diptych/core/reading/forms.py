"""Calls between the tags and tokens that models were trained to write (loop.md §3).

Each tagged call is rewritten in place as a line of this loop's own JSON, so that all of the rules
for replies hold for it too: a call in a fenced example of code is none, and several calls with
prose between them are ambiguous. Nothing is scanned twice.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from diptych.core.catalog import Catalog
from diptych.core.messages import JSON, JSONObject
from diptych.core.reading.extraction import blank_end, spans
from diptych.core.reading.other_forms import calls_in, calls_in_code, to_own_form
from diptych.core.reading.strict_json import MAX_DEPTH, decode_at, decode_json

NOISE = "]<]minimax[>["
"""What MiniMax-M3 writes before each tag."""

QUOTES = ("`", '"', "'", "\u201c", "\u2018", "\u00ab")
"""What stands before a tag that is only mentioned."""

_N = r"[^\s<>\[\]{}()\"'`|\uff5c]{1,128}+"  # a name
_FENCED = r"(?:```(?:json)?)?\s*+"
_PREFIX = r"(?:\uff5cDSML\uff5c|[\w-]{1,24}:)?"

_JSON = (  # JSON with the name in it follows
    r"(?:<tool_calls?>|<TOOLCALL>|<\|tool_calls?\|>|<\|tool_call_start\|>|\[TOOL_CALLS\]"
    r"|<\|python_tag\|>|<\|python_start\|>|<\|function_call\|>|<\|START_ACTION\|>"
    r"|<\|tools_prefix\|>|function call<\|role_sep\|>|\bfunctools(?=\[\{))"
)
_NAMED = "|".join(  # a name, then JSON
    (
        rf"\[TOOL_CALLS\]\s*+(?P<name1>{_N})(?:\[CALL_ID\]\s*+[\w-]{{0,64}})?\s*+(?:\[ARGS\])?",
        rf"<function=(?P<name2>{_N})>",
        rf"<\|tool_call_begin\|>\s*+(?P<name3>{_N})\s*+<\|tool_call_argument_begin\|>",
        (
            r"<\uff5ctool\u2581call\u2581begin\uff5c>(?:function<\uff5ctool\u2581sep\uff5c>)?"
            rf"(?P<name4>{_N})(?:<\uff5ctool\u2581sep\uff5c>|\s++)"
        ),
        (
            r"<\|tool_call:begin\|>[^<]{0,64}<\|tool_call:name\|>"
            rf"(?P<name5>{_N})<\|tool_call:args\|>"
        ),
        (
            r"(?:<\|start\|>assistant)?(?:<\|channel\|>\s*+commentary\s*+)?\bto="
            rf"(?P<name6>{_N})\s*+(?:<\|channel\|>\s*+\w{{1,24}}\s*+)?(?:<\|constrain\|>\s*+)?"
            r"(?:\w{1,24}\s*+)?<\|message\|>"
        ),
    )
)
_FIELDS = "|".join(  # a name, then fields between tags
    (
        rf"(?:<tool_call>\s*+)?<function=(?P<name7>{_N})>\s*+(?=<parameter=|</function>)",
        rf'<{_PREFIX}invoke name="(?P<name8>{_N})">',
        rf'<function name="(?P<name9>{_N})">',
        (
            rf"<tool_call(?::\w{{1,24}})?>\s*+(?P<nameA>{_N})\s*+(?:<tool_sep(?::\w{{1,24}})?>\s*+)?"
            r"(?=<arg_key|</tool_call)"
        ),
        rf'<\|open\|>call tool="(?P<nameB>{_N})"[^<>\n]{{0,64}}<\|sep\|>',
    )
)

OPENERS = re.compile(
    rf"(?P<fields>{_FIELDS})"
    rf"|(?P<then_json>(?:{_NAMED})\s*+{_FENCED}(?=\{{))"
    rf"|(?P<gemma><\|tool_call>\s*+call:(?P<nameC>{_N})(?=\{{))"
    rf"|(?P<json>{_JSON}\s*+{_FENCED}(?=[\[{{]))"
    r"|(?P<code>(?:<\|python_tag\|>|<\|python_start\|>|<\|tool_call_start\|>)\s*+(?=[\w.]{1,128}\())"
)
"""What opens a call; the last group is its kind. What follows must look like one."""

ARGUMENT = re.compile(
    rf"<(?P<tag>{_PREFIX}(?:parameter|param))"
    r'(?:=(?P<key1>[^>\n]{1,128})|\s+name="(?P<key2>[^"\n]{1,128})"(?P<says>[^>\n]{0,64}))>'
    r"|<arg_key(?::\w{1,24})?>\s*+(?P<key3>[^<\n]{1,128}?)\s*+</arg_key(?::\w{1,24})?>"
    r"\s*+<(?P<value_tag>arg_value(?::\w{1,24})?)>"
    r'|<\|open\|>argument key="(?P<key4>[^"\n]{1,128})" type="(?P<type>\w{1,24})"<\|sep\|>'
)
"""What opens an argument between tags of its own."""

ANY_TAG = re.compile(r"<(?P<tag>[\w-]{1,64})>")
"""What opens an argument of MiniMax-M3, whose tags are its arguments' names."""

CLOSERS = re.compile(
    rf"</{_PREFIX}(?:tool_calls?|function_calls|invoke)(?::\w{{1,24}})?>|</function>|</TOOLCALL>"
    r"|<\|/?tool_calls?(?:_end)?\|>|<\|END_ACTION\|>|<\|tools_suffix\|>|<\|calls?\|>"
    r"|<\uff5ctool\u2581calls?\u2581end\uff5c>|<tool_call\|>|<\|tool_call:end\|>"
    r"|<\|close\|>call<\|sep\|>|<\|tool_calls_section_end\|>|<\|python_end\|>"
)
"""What closes a call."""

TOKENS = re.compile(
    r"<\|(?:open|close)\|>\w{1,24}<\|sep\|>|<\|start\|>assistant(?:\s+to=[^\s<]{1,128})?"
    r"|<\|[\w:/ ]{1,40}\|>|</s>"
    r"|<\uff5c[^<>\uff5c\n]{1,40}\uff5c>"
    rf"|</?{_PREFIX}(?:tool_calls?|function_calls)(?::\w{{1,24}})?>"
)
"""What may stand around calls and says nothing."""

CODE_END = "<|"
"""What ends code between tokens."""

GEMMA_END = "<tool_call|>"
GEMMA_TOKEN = re.compile(r'<\|"\|>(?P<text>.*?)<\|"\|>|(?P<key>[\w.$-]+)(?=\s*+:)', re.DOTALL)
"""Strings and keys of Gemma 4, which are JSON but for their quotation marks."""


_SEPARATOR = re.compile(r"\s*[;,]\s*(?=[\[{])")
_CODE_CALL = re.compile(r"\[?\s*[\w.]{1,128}\(")
_MAY_BE_JSON = re.compile(r'[{\[]\s*["{\[]')
_MOST_BROKEN = 20  # broken calls that are looked at; one is enough to refuse the reply
_LINE = 400  # characters around a call in which the rest of its line is looked for
_BLOCKQUOTE = re.compile(r"[ \t]*>(?!>>)")  # of Markdown; `>>>` is Functionary's
_SHOWN = 300  # characters of JSON that cannot be read
_TRUNCATED = '{"tool": '
"""An object that never closes: read as an action that was cut off."""


@dataclass(frozen=True, slots=True)
class _Region:
    """A tagged call's place in the text, and what stands there in our own form.

    `rest` is the offset from which the text goes on.
    """

    start: int
    rest: int
    lines: tuple[str, ...]
    is_broken: bool = False


def rewrite_tagged(text: str, catalog: Catalog) -> str:
    """Return the text with each tagged call as JSON of our own form, on lines of its own.

    A call with text on both sides of its line, or in quotation marks or a quoted line, stays in the
    middle of that line. Tags that hold nothing like a call stay as they are.
    """
    if "<" not in text and "[TOOL_CALLS]" not in text and "functools" not in text:
        return text
    if f"{NOISE}<invoke" in text:
        text = text.replace(NOISE, "")
    if not OPENERS.search(text):
        return text
    parts: list[str] = []
    position = 0
    for region in _regions(text, catalog):
        between = text[position : region.start]
        parts.append(TOKENS.sub("", between) if position else between)
        parts += _placed(text, region, position)
        position = region.rest
    return "".join((*parts, TOKENS.sub("", text[position:]) if position else text))


def _placed(text: str, region: _Region, since: int) -> Iterator[str]:
    line = text.rfind("\n", max(since, region.start - _LINE), region.start) + 1
    before = text[max(line, since, region.start - _LINE) : region.start]
    after = text[region.rest : region.rest + _LINE].partition("\n")[0]
    is_between = TOKENS.sub("", before).strip() and TOKENS.sub("", after).strip()
    is_last = not OPENERS.match(text, blank_end(text, region.rest))
    is_quoted = before.endswith(QUOTES) or _BLOCKQUOTE.match(before)
    if (is_between and is_last) or is_quoted:
        yield from region.lines
        return
    for rewritten in region.lines:
        yield f"\n{rewritten}\n"


def _regions(text: str, catalog: Catalog) -> Iterator[_Region]:
    position = broken = 0
    values = _json_ranges(text)
    labelled = "${" in text or '"after"' in text
    while broken < _MOST_BROKEN and (opener := OPENERS.search(text, position)):
        inside = bisect_right(values, (opener.start(), len(text))) - 1
        if inside >= 0 and opener.start() < values[inside][1]:
            position = values[inside][1]  # a tag in a JSON string is text
            continue
        region = _region(text, opener, catalog, labelled=labelled)
        position = region.rest if region else opener.end()
        if region:
            yield region
            broken += region.is_broken


def _json_ranges(text: str) -> list[tuple[int, int]]:
    """Return where the outermost JSON values of a text begin and end."""
    ranges: list[tuple[int, int]] = []
    covered = 0
    for span in spans(text):
        if span.start < covered or not span.end or span.height > MAX_DEPTH:
            continue
        if _MAY_BE_JSON.match(text, span.start) and not isinstance(
            decode_json(text[span.start : span.end]), ValueError
        ):
            covered = span.end
            ranges.append((span.start, span.end))
    return ranges


def _region(
    text: str, opener: re.Match[str], catalog: Catalog, *, labelled: bool
) -> _Region | None:
    kind, at = opener.lastgroup or "", opener.end()
    name = next((n for key, n in opener.groupdict().items() if n and key.startswith("name")), "")
    match kind:
        case "json":
            found = _json_calls(text, at, catalog, labelled=labelled)
        case "code":
            found = _code(text, at, catalog)
        case "then_json":
            found = _arguments(text, at, name, catalog)
        case "gemma":
            found = _gemma(text, at, name, catalog)
        case _:
            any_tag = opener[0].startswith("<invoke")
            found = _fields(text, at, name, catalog, any_tag=any_tag)
    if found is None:
        return None
    calls, end = found
    if isinstance(calls, str):
        return _Region(opener.start(), end, (calls,), is_broken=True)
    if "```" in opener[0] and text.startswith("```", fence := blank_end(text, end)):
        end = fence + 3
    lines = tuple(json.dumps(call, default=dict) for call in calls)
    return _Region(opener.start(), _after_closers(text, end), lines)


_Found = tuple[list[JSONObject] | str, int]
"""The calls, or the text of a broken one, and the offset after it."""


def _json_calls(text: str, at: int, catalog: Catalog, *, labelled: bool) -> _Found | None:
    calls: list[JSONObject] = []
    while True:
        decoded = decode_at(text, at)
        if isinstance(decoded, ValueError):
            code = _code(text, at, catalog) if _CODE_CALL.match(text, at) else None
            return code or _broken(text, at, decoded)
        value, at = decoded
        calls += calls_in(value, catalog, tagged=True, labelled=labelled) or (
            [{"tool": False}] if value else [{}]
        )
        more = _SEPARATOR.match(text, at)
        if not more:
            return calls, at
        at = more.end()


def _arguments(text: str, at: int, name: str, catalog: Catalog) -> _Found:
    decoded = decode_at(text, at)
    if isinstance(decoded, ValueError):
        return _broken(text, at, decoded)
    return [to_own_form(name, decoded[0], catalog)], decoded[1]


def _broken(text: str, at: int, problem: ValueError) -> _Found:
    """Return what stands for JSON that cannot be read: cut off, or wrong in itself."""
    is_cut = isinstance(problem, json.JSONDecodeError) and (
        problem.pos >= len(text.rstrip()) or problem.msg.startswith("Unterminated string")
    )
    if is_cut:
        return _TRUNCATED, len(text)
    body = text[at : at + _SHOWN].partition("\n")[0]
    return f'{{"tool": {body} ,}}', at + len(body)  # it holds a call's key, and is no JSON


def _code(text: str, at: int, catalog: Catalog) -> _Found | None:
    closer = text.find(CODE_END, at)
    end = closer if closer >= 0 else len(text)
    found = calls_in_code(text[at:end])
    if found is None:
        return ('{"tool": code}', end) if closer >= 0 else None
    return [to_own_form(name, arguments, catalog) for name, arguments in found], end


def _gemma(text: str, at: int, name: str, catalog: Catalog) -> _Found:
    end = text.find(GEMMA_END, at)
    if end < 0:
        return _TRUNCATED, len(text)
    value = decode_json(GEMMA_TOKEN.sub(_gemma_json, text[at:end].strip()))
    if isinstance(value, ValueError):
        return f'{{"tool": {text[at : min(end, at + _SHOWN)]!r} ,}}', end
    return [to_own_form(name, value, catalog)], end


def _gemma_json(token: re.Match[str]) -> str:
    if token["text"] is not None:
        return json.dumps(token["text"])
    return json.dumps(token["key"])


def _fields(text: str, at: int, name: str, catalog: Catalog, *, any_tag: bool) -> _Found:
    """Read arguments that stand between tags of their own, up to what is no such tag."""
    arguments: dict[str, JSON] = {}
    while True:
        begin = blank_end(text, at)
        field = ARGUMENT.match(text, begin) or (ANY_TAG.match(text, begin) if any_tag else None)
        if field is None:
            return [to_own_form(name, arguments, catalog)], at
        groups = field.groupdict()
        tag = groups.get("tag") or groups.get("value_tag")
        closer = f"</{tag}>" if tag else "<|close|>argument<|sep|>"
        end = text.find(closer, field.end())
        if end < 0:
            return _TRUNCATED, len(text)
        keys = (groups.get(key) for key in ("key1", "key2", "key3", "key4"))
        key = next(filter(None, keys), tag or "")
        if key in arguments:
            return f'{{"tool": twice {key!r} ,}}', end
        arguments[key] = _value(groups, text[field.end() : end])
        at = end + len(closer)


def _value(field: Mapping[str, str | None], text: str) -> JSON:
    """Return an argument's value: text, unless the tag says otherwise. Its schema decides later."""
    if field.get("key1") and text[:1] == "\n" == text[-1:] and len(text) > 1:
        text = text[1:-1]  # <parameter=x>, and the value on lines of its own
    if text.startswith("<![CDATA[") and text.endswith("]]>"):
        text = text[9:-3]  # MiniCPM
    says = (field.get("says") or "") + (field.get("type") or "")
    if 'string="false"' in says or says in {"number", "boolean", "object", "array", "null"}:
        value = decode_json(text)
        return text if isinstance(value, ValueError) else value
    return text


def _after_closers(text: str, end: int) -> int:
    """Return the offset after the tokens that close a call."""
    while closer := CLOSERS.match(text, blank_end(text, end)):
        end = closer.end()
    return end
