"""Recognises that a server could not read a native call that its model wrote.

The request is not at fault, and the endpoint takes tools: the model wrote something else than its
server's parser expects. So it is a reply that is wrong, and no failure of the endpoint (loop.md
§3, "Typed errors"). Pure.
"""

import re

from diptych.models.error_report import ErrorReport

_CODES = frozenset({"tool_use_failed"})  # Groq
_WORDS = re.compile(
    # llama.cpp says "peg-native" or another of its formats
    r"does not match the expected [\w-]+ format"
    # Groq, where it gives no code
    r"|failed to call a function\b"
    # Gemini, as the reason why the reply ended
    r"|finish_reason '[\w: ]*malformed_function_call"
)


def is_malformed_call(report: ErrorReport) -> bool:
    """Say whether the endpoint could not read a call that the model wrote."""
    return bool(report.codes & _CODES or _WORDS.search(report.text))
