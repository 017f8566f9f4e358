"""Calls without tags that are no JSON, or not JSON alone (loop.md §3, "Other models' forms").

They count only where the name is offered, for anything else of that look is prose.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from diptych.core.catalog import Catalog
from diptych.core.messages import JSON, JSONObject
from diptych.core.reading.extraction import blank_end
from diptych.core.reading.forms import TOKENS
from diptych.core.reading.other_forms import calls_in, calls_in_code, offered_name, to_own_form
from diptych.core.reading.strict_json import decode_at

_NAME = r"[^\s<>\[\]{}()\"'`]{1,128}+"
_INPUT = re.compile(r"^[ \t*]*Action Input:", re.MULTILINE)
_ALONE = re.compile(rf"\s*(?:>>>)?(?P<name>{_NAME})\s*(?=\{{)")
_CHANNEL = re.compile(rf">>>(?P<name>{_NAME})\n\s*(?=\{{)")
_FENCE = re.compile(r"```(?P<tag>[\w-]*)[^\S\n]*\n(?P<code>[^`]*)```\s*\Z")
_FENCE_START = re.compile(r"```(?:json)?\s*")
_CALL_TAGS = frozenset({"tool_code", "tool_call", "tool_calls"})
_TRUNCATED = '{"tool": '


def rewrite_bare(text: str, catalog: Catalog) -> str:
    """Return the text with its bare calls as JSON of our own form, each on a line of its own.

    - a last line `Action: n` with `Action Input: {…}`, also cut off in the latter;
    - `n{…}` or `n`, a line break and `{…}`, alone or after `>>>` (Functionary; Mistral, Kimi and
      DeepSeek, whose tokens a server dropped);
    - `[n(a=1), …]` alone (Llama 4);
    - `{…}; {…}` alone (Llama 3).
    """
    begin = blank_end(text, 0)
    if text.startswith("[", begin) and text.rstrip().endswith(")]"):
        return _list_of_code(text, catalog)
    if text.startswith("{", begin):
        return _with_semicolons(text, begin, catalog)
    if "Action Input:" in text and (inputs := list(_INPUT.finditer(text))):
        return _action_input(text, inputs[-1].span(), catalog)
    named = _named_json(text, catalog)
    if named == text and (channel := _CHANNEL.search(text)):
        return f"{text[: channel.start()]}\n{_named_json(text[channel.start() :], catalog)}"
    return named


def code_in_fence(text: str, catalog: Catalog) -> JSONObject | None:
    """Return the right form of a call that stands as code in a fence at the end of a reply.

    None if there is none, if it calls nothing that is offered, or if prose stands before a fence
    that is not tagged as a call.
    """
    at = text.rfind("```", 0, len(text.rstrip()) - 3)
    fence = _FENCE.match(text, at) if at >= 0 else None
    if not fence or (text[:at].strip() and fence["tag"].lower() not in _CALL_TAGS):
        return None
    found = calls_in_code(fence["code"])
    if not found or not all(offered_name(name, catalog) for name, _ in found):
        return None
    calls = [to_own_form(name, arguments, catalog) for name, arguments in found]
    return calls[0] if len(calls) == 1 else {"calls": list[JSON](calls)}


def _list_of_code(text: str, catalog: Catalog) -> str:
    found = calls_in_code(text)
    if not found or not all(offered_name(name, catalog) for name, _ in found):
        return text
    return "\n".join(_line(to_own_form(name, arguments, catalog)) for name, arguments in found)


def _with_semicolons(text: str, at: int, catalog: Catalog) -> str:
    """Part several objects that are calls in another form and stand between semicolons."""
    calls: list[JSONObject] = []
    while True:
        decoded = decode_at(text, at)
        found = None if isinstance(decoded, ValueError) else calls_in(decoded[0], catalog)
        if isinstance(decoded, ValueError) or not found:
            return text
        calls += found
        at = blank_end(text, decoded[1])
        if not text.startswith(";", at):
            break
        at = blank_end(text, at + 1)
    return text if len(calls) < 2 or text[at:].strip() else "\n".join(map(_line, calls))  # noqa: PLR2004


def _named_json(text: str, catalog: Catalog) -> str:
    """Rewrite a name and its arguments that are all of the reply."""
    calls: list[dict[str, Any]] = []
    at = 0
    while alone := _ALONE.match(text, at):
        decoded = decode_at(text, alone.end())
        if isinstance(decoded, ValueError) or not isinstance(decoded[0], Mapping):
            return text
        if not offered_name(alone["name"], catalog):
            return text
        calls.append(to_own_form(alone["name"], decoded[0], catalog))
        at = decoded[1]
    rest = TOKENS.sub("", text[at:])
    return text if not calls or rest.strip() else "\n".join(map(_line, calls))


def _action_input(text: str, place: tuple[int, int], catalog: Catalog) -> str:
    """Rewrite a call whose `Action Input:` is at this place."""
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
    decoded = decode_at(text, begin)
    if isinstance(decoded, json.JSONDecodeError) and decoded.pos >= len(text.rstrip()):
        return f"{before}\n{_TRUNCATED}"
    if isinstance(decoded, ValueError):
        return f'{before}\n{{"tool": {text[begin : begin + 300].partition(chr(10))[0]} ,}}'
    if text[decoded[1] :].replace("Observation:", "", 1).strip("` \n\t"):
        return text
    return f"{before}\n{_line(to_own_form(name, decoded[0], catalog))}\n"


def _line(call: JSONObject) -> str:
    return json.dumps(call, default=dict)
