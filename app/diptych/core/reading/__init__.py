"""Reads what a model's reply asks for (loop.md §3): from text to calls, a no-op or prose.

`reply` is the way in for text, and `native` for calls in the API's own form. `reply` takes the
reasoning off (`leading_reasoning`) and looks for text without end (`repetition`). `parser` makes
calls of the rest: `tagged` and `bare_forms` write those of other models in our own form,
`extraction` finds values in text, or that it is prose or a no-op, by one pass over `brackets`,
decoded by `strict_json`; `other_forms` and `own_form` make calls of it, `typed_arguments` and
`arguments` hold them against schemas, `linking` makes them a graph; `references` are `${id.path}`.
What all of it comes to is a `verdict`.
"""

from diptych.core.reading.leading_reasoning import ReasoningSplitter, strip_lead
from diptych.core.reading.parser import (
    MALFORMED_CALL,
    RULES_0_1,
    Reading,
    Rules,
    check_calls,
    parse,
    read_native,
    read_reply,
)
from diptych.core.reading.repetition import RepetitionFilter, repetition_end
from diptych.core.reading.verdict import ActionError, ActionErrorType, Calls, NoOp, Prose

__all__ = [
    "MALFORMED_CALL",
    "RULES_0_1",
    "ActionError",
    "ActionErrorType",
    "Calls",
    "NoOp",
    "Prose",
    "Reading",
    "ReasoningSplitter",
    "RepetitionFilter",
    "Rules",
    "check_calls",
    "parse",
    "read_native",
    "read_reply",
    "repetition_end",
    "strip_lead",
]
