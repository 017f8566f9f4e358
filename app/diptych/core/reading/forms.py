"""Rewrites other models' call forms as lines of our own JSON (loop.md §3).

Each form is named in loop.md or rendered by a published chat template. Calls are rewritten in
place, so that our own form's rules apply to them: a call in fenced example code is not a call, and
several calls with prose between them are ambiguous. Nothing is scanned twice.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping

from diptych.core.catalog import Catalog
from diptych.core.messages import JSON, JSONObject
from diptych.core.reading.extraction import blank_end, spans
from diptych.core.reading.other_forms import calls_in, calls_in_code, offered_name, to_own_form
from diptych.core.reading.strict_json import MAX_DEPTH, decode_at, decode_json

_NAME = r"[^\s<>\[\]{}()\"'`|\uff5c]{1,128}+"
_PREFIX = r"(?:\uff5cDSML\uff5c|[\w-]{1,24}:)?"  # of a tag
_FENCED = r"\s*+(?:```(?:json)?)?\s*+"

_FORMS = {  # openings of calls by what follows; NAME is the name of a tool or agent
    "fields": (
        r"(?:<tool_call>\s*+)?<function=NAME>\s*+(?=<parameter=|</function>)",  # Qwen3-Coder
        rf'<{_PREFIX}invoke name="NAME">',  # MiniMax, DeepSeek-V3.2
        r'<function name="NAME">',  # MiniCPM
        (  # GLM, Hy3
            r"<tool_call(?::\w{1,24})?>\s*+NAME\s*+(?:<tool_sep(?::\w{1,24})?>\s*+)?"
            r"(?=<arg_key|</tool_call)"
        ),
        r'<\|open\|>call tool="NAME"[^<>\n]{0,64}<\|sep\|>',  # Kimi-K3
    ),
    "arguments": (
        r"\[TOOL_CALLS\]\s*+NAME(?:\[CALL_ID\]\s*+[\w-]{0,64})?\s*+(?:\[ARGS\])?",  # Mistral
        r"<function=NAME>",  # Functionary
        r"<\|tool_call_begin\|>\s*+NAME\s*+<\|tool_call_argument_begin\|>",  # Kimi-K2
        (  # DeepSeek
            r"<\uff5ctool\u2581call\u2581begin\uff5c>(?:function<\uff5ctool\u2581sep\uff5c>)?"
            r"NAME(?:<\uff5ctool\u2581sep\uff5c>|\s++)"
        ),
        r"<\|tool_call:begin\|>[^<]{0,64}<\|tool_call:name\|>NAME<\|tool_call:args\|>",  # Solar
        (  # gpt-oss
            r"(?:<\|start\|>assistant)?(?:<\|channel\|>\s*+commentary\s*+)?\bto=NAME\s*+"
            r"(?:<\|channel\|>\s*+\w{1,24}\s*+)?(?:<\|constrain\|>\s*+)?(?:\w{1,24}\s*+)?"
            r"<\|message\|>"
        ),
    ),
    "gemma": (r"<\|tool_call>\s*+call:NAME(?=\{)",),
    "json": (
        r"<tool_calls?>|<TOOLCALL>|<\|tool_calls?\|>|<\|tool_call_start\|>|\[TOOL_CALLS\]",
        r"<\|python_tag\|>|<\|function_call\|>|<\|START_ACTION\|>|<\|tools_prefix\|>",
        r"function call<\|role_sep\|>|\bfunctools(?=\[\{)",
    ),
}
_FOLLOWED_BY = {"arguments": rf"{_FENCED}(?=\{{)", "json": rf"{_FENCED}(?=[\[{{])"}
_OPENERS = re.compile(
    "|".join(
        f"(?P<{kind}_{n}>(?:{form.replace('NAME', f'(?P<{kind}_{n}_name>{_NAME})')})"
        f"{_FOLLOWED_BY.get(kind, '')})"
        for kind, forms in _FORMS.items()
        for n, form in enumerate(forms)
    )
)
_FIELD = re.compile(  # opens an argument in its own tags
    rf"<(?P<tag>{_PREFIX}(?:parameter|param))"
    r'(?:=(?P<key1>[^>\n]{1,128})|\s+name="(?P<key2>[^"\n]{1,128})"(?P<says>[^>\n]{0,64}))>'
    r"|<arg_key(?::\w{1,24})?>\s*+(?P<key3>[^<\n]{1,128}?)\s*+</arg_key(?::\w{1,24})?>"
    r"\s*+<(?P<value_tag>arg_value(?::\w{1,24})?)>"
    r'|<\|open\|>argument key="(?P<key4>[^"\n]{1,128})" type="(?P<type>\w{1,24})"<\|sep\|>'
)
_ANY_TAG = re.compile(r"<(?P<tag>[\w-]{1,64})>")  # MiniMax-M3 uses argument names as tags
_NOISE = "]<]minimax[>["  # before each tag of MiniMax-M3
_CLOSERS = re.compile(
    rf"</{_PREFIX}(?:tool_calls?|function_calls|invoke)(?::\w{{1,24}})?>|</function>|</TOOLCALL>"
    r"|<\|/?tool_calls?(?:_end)?\|>|<\|END_ACTION\|>|<\|tools_suffix\|>|<\|calls?\|>"
    r"|<\uff5ctool\u2581calls?\u2581end\uff5c>|<tool_call\|>|<\|tool_call:end\|>"
    r"|<\|close\|>call<\|sep\|>|<\|tool_calls_section_end\|>"
)
_TOKENS = re.compile(  # meaningless tokens around calls
    r"<\|(?:open|close)\|>\w{1,24}<\|sep\|>|<\|start\|>assistant(?:\s+to=[^\s<]{1,128})?"
    r"|<\|[\w:/ ]{1,40}\|>|</s>"
    r"|<\uff5c[^<>\uff5c\n]{1,40}\uff5c>"
    rf"|</?{_PREFIX}(?:tool_calls?|function_calls)(?::\w{{1,24}})?>"
)
_GEMMA_END = "<tool_call|>"
_GEMMA_TOKEN = re.compile(  # strings and keys in their own quotation marks
    r'<\|"\|>(?P<text>.*?)<\|"\|>|(?P<key>[\w.$-]+)(?=\s*+:)', re.DOTALL
)
_SEPARATOR = re.compile(r"\s*[;,]\s*(?=[\[{])")
_CODE_CALL = re.compile(r"\[\s*[\w.]{1,128}\(")
_MAY_BE_JSON = re.compile(r'[{\[]\s*["{\[]')
_QUOTES = ("`", '"', "'", "\u201c", "\u2018", "\u00ab")  # before a tag that is only quoted
_BLOCKQUOTE = re.compile(r"[ \t]*>(?!>>)")  # of Markdown; `>>>` is Functionary's
_MAX_BROKEN = 20  # broken calls to look at; one is enough to reject the reply
_LINE = 400  # characters around a call to search for the rest of its line
_SHOWN = 300  # characters of invalid JSON
_TRUNCATED = '{"tool": '  # an object that never closes reads as a truncated action


def rewrite(text: str, catalog: Catalog) -> str:
    """Return the text with each call in another form as our own JSON, on its own line.

    A tagged call stays inside its line if it has text on both sides, or is quoted. Tags without a
    call stay as they are. Bare calls count only if the name is offered; otherwise they are prose.
    """
    return _rewrite_bare(_rewrite_tagged(text, catalog), catalog)


# Tagged calls

_Region = tuple[int, int, tuple[str, ...]]
"""The offsets where a tagged call begins and ends, and its lines in our own form."""

_Found = tuple[list[JSONObject] | str, int]
"""The calls, or a line that stands for a broken one, and the offset after them."""


def _rewrite_tagged(text: str, catalog: Catalog) -> str:
    if "<" not in text and "[TOOL_CALLS]" not in text and "functools" not in text:
        return text
    if f"{_NOISE}<invoke" in text:
        text = text.replace(_NOISE, "")
    parts: list[str] = []
    position = 0
    for start, end, lines in _regions(text, catalog):
        between = text[position:start]
        parts.append(_TOKENS.sub("", between) if position else between)
        alone = _stands_alone(text, start, end, position)
        parts += [f"\n{line}\n" if alone else line for line in lines]
        position = end
    return "".join((*parts, _TOKENS.sub("", text[position:]) if position else text))


def _stands_alone(text: str, start: int, end: int, since: int) -> bool:
    line = text.rfind("\n", max(since, start - _LINE), start) + 1
    before = text[max(line, since, start - _LINE) : start]
    if before.endswith(_QUOTES) or _BLOCKQUOTE.match(before):
        return False
    after = text[end : end + _LINE].partition("\n")[0]
    is_between = _TOKENS.sub("", before).strip() and _TOKENS.sub("", after).strip()
    return not is_between or bool(_OPENERS.match(text, blank_end(text, end)))


def _regions(text: str, catalog: Catalog) -> Iterator[_Region]:
    opener = _OPENERS.search(text)
    values = _json_ranges(text) if opener else []
    labelled = "${" in text or '"after"' in text
    broken = 0
    while opener and broken < _MAX_BROKEN:
        inside = bisect_right(values, (opener.start(), len(text))) - 1
        if inside >= 0 and opener.start() < values[inside][1]:
            end = values[inside][1]  # a tag in a JSON string is text
        else:
            calls, end = _read(text, opener, catalog, labelled=labelled)
            is_broken = isinstance(calls, str)
            lines = (calls,) if isinstance(calls, str) else tuple(map(_line, calls))
            yield opener.start(), end, lines
            broken += is_broken
        opener = _OPENERS.search(text, end)


def _json_ranges(text: str) -> list[tuple[int, int]]:
    """Return the offsets of the outermost JSON values in a text."""
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


def _read(text: str, opener: re.Match[str], catalog: Catalog, *, labelled: bool) -> _Found:
    form = opener.lastgroup or ""
    name, at = opener.groupdict().get(f"{form}_name") or "", opener.end()
    match form.partition("_")[0]:
        case "json":
            calls, end = _json_calls(text, at, catalog, labelled=labelled)
        case "arguments":
            calls, end = _arguments(text, at, name, catalog)
        case "gemma":
            calls, end = _gemma(text, at, name, catalog)
        case _:
            calls, end = _fields(text, opener, name, catalog)
    if isinstance(calls, str):
        return calls, end
    if "```" in opener[0] and text.startswith("```", fence := blank_end(text, end)):
        end = fence + 3
    while closer := _CLOSERS.match(text, blank_end(text, end)):
        end = closer.end()
    return calls, end


def _json_calls(text: str, at: int, catalog: Catalog, *, labelled: bool) -> _Found:
    """Read JSON with named calls; LFM writes a list of Python calls instead."""
    calls: list[JSONObject] = []
    while True:
        decoded = decode_at(text, at)
        if isinstance(decoded, ValueError):
            if _CODE_CALL.match(text, at):
                code_end = text.find("<|", at)
                end = code_end if code_end >= 0 else len(text)
                if code := calls_in_code(text[at:end]):
                    return [to_own_form(*call, catalog) for call in code], end
            return _broken(text, at, decoded)
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
    """Return a line that reads as the right error for invalid JSON: truncated, or bad syntax."""
    is_cut = isinstance(problem, json.JSONDecodeError) and (
        problem.pos >= len(text.rstrip()) or problem.msg.startswith("Unterminated string")
    )
    if is_cut:
        return _TRUNCATED, len(text)
    body = text[at : at + _SHOWN].partition("\n")[0]
    return f'{{"tool": {body} ,}}', at + len(body)  # has a call's key, but is invalid JSON


def _gemma(text: str, at: int, name: str, catalog: Catalog) -> _Found:
    end = text.find(_GEMMA_END, at)
    if end < 0:
        return _TRUNCATED, len(text)
    as_json = _GEMMA_TOKEN.sub(lambda m: json.dumps(m["text"] or m["key"] or ""), text[at:end])
    value = decode_json(as_json)
    if isinstance(value, ValueError):
        return f'{{"tool": {text[at : min(end, at + _SHOWN)]!r} ,}}', end
    return [to_own_form(name, value, catalog)], end


def _fields(text: str, opener: re.Match[str], name: str, catalog: Catalog) -> _Found:
    """Read arguments in tags of their own, until something else follows."""
    arguments: dict[str, JSON] = {}
    at = opener.end()
    while True:
        begin = blank_end(text, at)
        field = _FIELD.match(text, begin)
        if field is None and opener[0].startswith("<invoke"):
            field = _ANY_TAG.match(text, begin)
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
    """Return an argument's value: text, unless the tag says otherwise; its schema decides later."""
    if field.get("key1") and text[:1] == "\n" == text[-1:] and len(text) > 1:
        text = text[1:-1]  # <parameter=x> with the value on its own lines
    if text.startswith("<![CDATA[") and text.endswith("]]>"):
        text = text[9:-3]  # MiniCPM
    says = (field.get("says") or "") + (field.get("type") or "")
    if 'string="false"' in says or says in {"number", "boolean", "object", "array", "null"}:
        value = decode_json(text)
        return text if isinstance(value, ValueError) else value
    return text


# Bare calls

_INPUT = re.compile(r"^[ \t*]*Action Input:", re.MULTILINE)
_NAMED = re.compile(r"\s*(?:>>>)?(?P<name>[^\s<>\[\]{}()\"'`]{1,128}+)\s*(?=\{)")
_CHANNEL = re.compile(r">>>[^\s<>\[\]{}()\"'`]{1,128}+\n\s*(?=\{)")
_FENCE = re.compile(r"```(?P<tag>[\w-]*)[^\S\n]*\n(?P<code>[^`]*)```\s*\Z")
_FENCE_START = re.compile(r"```(?:json)?\s*")
_CALL_TAGS = frozenset({"tool_code", "tool_call", "tool_calls"})


def _rewrite_bare(text: str, catalog: Catalog) -> str:
    """Rewrite calls without tags.

    - a last line `Action: n` with `Action Input: {…}`, even if the input is truncated
    - `n{…}`, or `n`, a line break and `{…}`; alone or after `>>>` (Functionary; Mistral, Kimi and
      DeepSeek after a server dropped their tokens)
    - `[n(a=1), …]` alone (Llama 4)
    """
    begin = blank_end(text, 0)
    if text.startswith("{", begin):
        return text
    if text.startswith("[", begin) and text.rstrip().endswith(")]"):
        return _lines(_offered_code(text, catalog)) or text
    if inputs := list(_INPUT.finditer(text)):
        return _action_input(text, inputs[-1].span(), catalog)
    if lines := _named_json(text, catalog):
        return lines
    channel = _CHANNEL.search(text)
    lines = _named_json(text[channel.start() :], catalog) if channel else ""
    return f"{text[: channel.start()]}\n{lines}" if channel and lines else text


def code_in_fence(text: str, catalog: Catalog) -> JSONObject | None:
    """Return the JSON form of a call written as code in a fence at the end of a reply.

    None if there is none, if it calls nothing offered, or if prose precedes a fence that is not
    tagged as a call.
    """
    at = text.rfind("```", 0, len(text.rstrip()) - 3)
    fence = _FENCE.match(text, at) if at >= 0 else None
    if not fence or (text[:at].strip() and fence["tag"].lower() not in _CALL_TAGS):
        return None
    calls = _offered_code(fence["code"], catalog)
    if not calls:
        return None
    return calls[0] if len(calls) == 1 else {"calls": list[JSON](calls)}


def _offered_code(code: str, catalog: Catalog) -> list[JSONObject]:
    found = calls_in_code(code)
    if not all(offered_name(name, catalog) for name, _ in found):
        return []
    return [to_own_form(name, arguments, catalog) for name, arguments in found]


def _named_json(text: str, catalog: Catalog) -> str:
    """Return the lines of named calls that make up a whole text, else ""."""
    calls: list[JSONObject] = []
    at = 0
    while named := _NAMED.match(text, at):
        decoded = decode_at(text, named.end())
        if isinstance(decoded, ValueError) or not offered_name(named["name"], catalog):
            return ""
        calls.append(to_own_form(named["name"], decoded[0], catalog))
        at = decoded[1]
    return "" if _TOKENS.sub("", text[at:]).strip() else _lines(calls)


def _action_input(text: str, place: tuple[int, int], catalog: Catalog) -> str:
    """Rewrite the call whose `Action Input:` is at this place."""
    before, _, last = text[: place[0]].rstrip().rpartition("\n")
    label, _, name = last.strip().partition("Action:")
    name = name.strip("`* \t")
    if label.strip("* ") or not name or not offered_name(name, catalog, may_be_away=True):
        return text
    begin = blank_end(text, place[1])
    if fence := _FENCE_START.match(text, begin):
        begin = fence.end()
    if not text.startswith("{", begin):
        return text
    found, end = _arguments(text, begin, name, catalog)
    if isinstance(found, str):
        return f"{before}\n{found}"
    if text[end:].replace("Observation:", "", 1).strip("` \n\t"):
        return text
    return f"{before}\n{_lines(found)}\n"


def _lines(calls: Iterable[JSONObject]) -> str:
    return "\n".join(map(_line, calls))


def _line(call: JSONObject) -> str:
    return json.dumps(call, default=dict)
