"""Says whether the text of an answer is an action after all (loop.md §7).

The same parser reads it that reads phase 1. JSON that is data is an answer, and so is a call of
something that is not offered, code in a fence, and what the parser calls `ambiguous`.
"""

import re

from diptych.core.catalog import Catalog
from diptych.core.reading import ActionError, Calls, Rules, parse
from diptych.core.reading.other_forms import offered_name
from diptych.core.reading.own_form import is_no_op
from diptych.core.reading.strict_json import decode_json

_NAME = re.compile(
    r"(?:\b(?:tool|agent|name|function|action|to)[\"']?\s*[:=]\s*[\"']?)([^\s\"'<>{}()\[\],|]{1,128})",
    re.IGNORECASE,
)
_NO_OP = re.compile(r"(?:(?:```|~~~)[\w-]*)?(?:\s*<>\s*|[\[\]{},\s]+)(?:```|~~~)?")
_FENCED = re.compile(r"(`{3,}|~{3,})[\w-]*\s*(?P<inside>.*?)\1", re.DOTALL)


def is_only_no_op(text: str) -> bool:
    """Whether all of a text is a no-op, fenced or not. Beside words it is text."""
    text = text.strip()
    if _NO_OP.fullmatch(text):
        return True
    if "null" not in text:
        return False
    fenced = _FENCED.fullmatch(text)
    value = decode_json(fenced["inside"].strip() if fenced else text)
    return not isinstance(value, ValueError) and is_no_op(value)


def is_call(text: str, catalog: Catalog, rules: Rules) -> bool:
    """Whether a text holds calls, or a broken call of something that is offered."""
    match parse(text, catalog, rules):
        case Calls():
            return True
        case ActionError(type=kind) if kind != "ambiguous":
            names = {match[1] for match in _NAME.finditer(text)}
            return any(offered_name(name, catalog, may_be_away=True) for name in names)
        case _:
            return False


def is_attempt(text: str, catalog: Catalog, rules: Rules) -> bool:
    """Whether phase 1 takes a text for calls, or for an attempt at one that the model is told of.

    So does what begins a direct answer: a call of something that nobody offers is none (§3).
    """
    match parse(text, catalog, rules):
        case Calls():
            return True
        case ActionError(type=kind):
            return kind != "ambiguous"
        case _:
            return False
