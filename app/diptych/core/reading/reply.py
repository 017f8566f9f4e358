"""Reads a whole phase-1 reply: what the model said, and what it asks for (loop.md §3, §12)."""

import json
from typing import NamedTuple, TypeVar

from diptych.core.catalog import Catalog
from diptych.core.messages import Call, Delegation
from diptych.core.reading.leading_reasoning import strip_lead
from diptych.core.reading.parser import Rules, parse
from diptych.core.reading.repetition import repetition_end
from diptych.core.reading.verdict import ActionError, Calls, Verdict

MALFORMED_CALL = "malformed_call"
"""The finish reason of a reply with a native call that the model's server could not read."""

_Found = TypeVar("_Found", bound=Verdict)
_THINK, _THINK_END = "<think>", "</think>"
_FILTERED = "content_filter"
_CUT = {
    "length": "your reply was cut off by the length limit; be brief",
    _FILTERED: "your reply was stopped by a content filter, and nothing of it was done; ask for "
    "something else, or answer without it",
}


class Reading(NamedTuple):
    """What a model said, without its reasoning, and what that asks for."""

    said: str
    found: Verdict


def read_reply(text: str, finish_reason: str, catalog: Catalog, rules: Rules) -> Reading:
    """Read a reply of phase 1. Never raises, and takes time in proportion to its length.

    A reply that the model's length limit or a filter cut off, or that repeats itself, never has its
    calls run: all are `truncated`. What only repeats whole calls is no such: the same call is made
    once.
    """
    if not rules.other_forms:
        said = _without_think(text)
        ended = "stop" if finish_reason == _FILTERED else finish_reason  # as version 0.1 took it
        return Reading(said, unless_broken(parse(said, catalog, rules), ended))
    said, _ = strip_lead(text)
    found = parse(said, catalog, rules)
    end = repetition_end(said)
    if end is not None and not _repeats_calls_only(found):
        said = said[:end]
        if isinstance(found, Calls | ActionError):
            detail = "your reply repeated the same text again and again, and was cut; be brief"
            return Reading(said, ActionError("truncated", detail))
    return Reading(said, unless_broken(found, finish_reason))


def unless_broken(found: _Found, finish_reason: str) -> _Found | ActionError:
    """Give what was found, or why it does not count: a reply cut off, or an unreadable call.

    Nobody knows what else a reply would have said that was cut off, by its length or by a filter.
    """
    if finish_reason in _CUT and isinstance(found, Calls | ActionError):
        return ActionError("truncated", _CUT[finish_reason])
    if finish_reason == MALFORMED_CALL and not isinstance(found, Calls):
        return ActionError("json_syntax", "your call could not be read; write it anew, as a whole")
    return found


def _repeats_calls_only(found: Verdict) -> bool:
    """Whether what is repeated are calls as a whole, and nothing inside one of them."""
    if not isinstance(found, Calls) or not found.places:
        return False
    return all(repetition_end(_text_of(call)) is None for call in found.calls)


def _text_of(call: Call) -> str:
    if isinstance(call, Delegation):
        return call.task
    return json.dumps(call.arguments, ensure_ascii=False, default=dict)


def _without_think(reply: str) -> str:
    """Take a leading `<think>…</think>` off, as version 0.1 did."""
    text = reply.lstrip("\ufeff")
    while (rest := text.lstrip(" \t\r\n\f\v\ufeff")).startswith(_THINK):
        _, closed, after = rest.partition(_THINK_END)
        text = after.lstrip() if closed else ""
    return text
