"""Reads what a model's reply asks for (loop.md §3): from text to calls, a no-op or prose.

`parser` is the way in. It takes the reasoning off (`leading_reasoning`) and looks for text without
end (`repetition`). `forms` rewrites calls of other models in our own form, `extraction` finds JSON
in the text, `other_forms` and `own_form` make calls of it, `arguments` checks them against schemas.
The outcome is a `verdict`.
"""

from diptych.core.reading.leading_reasoning import ReasoningSplitter, strip_lead
from diptych.core.reading.parser import (
    MALFORMED_CALL,
    Reading,
    check_calls,
    parse,
    read_native,
    read_reply,
)
from diptych.core.reading.repetition import RepetitionFilter, repetition_end
from diptych.core.reading.verdict import ActionError, ActionErrorType, Calls, NoOp, Prose

__all__ = [
    "MALFORMED_CALL",
    "ActionError",
    "ActionErrorType",
    "Calls",
    "NoOp",
    "Prose",
    "Reading",
    "ReasoningSplitter",
    "RepetitionFilter",
    "check_calls",
    "parse",
    "read_native",
    "read_reply",
    "repetition_end",
    "strip_lead",
]
