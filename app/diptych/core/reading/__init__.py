"""Reads a model's reply (loop.md §3): from text to calls, a no-op, prose or an error.

`parser` is the entry point. It removes reasoning (`leading_reasoning`) and cuts endless text
(`repetition`). `forms` rewrites other models' call forms in our own, `extraction` finds JSON in the
text, `other_forms` and `own_form` turn it into calls, `arguments` checks them against schemas. The
outcome is a `verdict`.
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
