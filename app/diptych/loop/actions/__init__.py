"""Reads what a model's reply asks for (loop.md §3): from text to calls, a no-op or prose.

`parser` is the way in. `extraction` finds JSON in text, by one pass over `brackets`, decoded by
`strict_json`; `arguments` checks it against schemas; `references` are `${id.path}`.
"""

from diptych.loop.actions.extraction import ActionError, ActionErrorType, NoOp, Prose, strip_lead
from diptych.loop.actions.parser import Calls, check_calls, parse

__all__ = [
    "ActionError",
    "ActionErrorType",
    "Calls",
    "NoOp",
    "Prose",
    "check_calls",
    "parse",
    "strip_lead",
]
