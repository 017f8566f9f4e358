"""Texts that come from outside: made so that every record, stream and model can hold them.

Pure. Not here: what a text means.
"""

RESULT_BYTES = 2**20
"""What the result of a call may have in UTF-8; the rest is cut with a mark (loop.md §5)."""


def well_formed(text: str) -> str:
    """Join split surrogate pairs, and replace halves of them by U+FFFD: no UTF-8 can hold one."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def bounded(text: str) -> str:
    """Cut a result that is too long, and say so at its end."""
    if len(text) * 4 <= RESULT_BYTES:
        return text
    whole = text.encode()
    if len(whole) <= RESULT_BYTES:
        return text
    shown = whole[:RESULT_BYTES].decode(errors="ignore")
    return f"{shown}\n[cut: {RESULT_BYTES} of {len(whole)} bytes shown]"
