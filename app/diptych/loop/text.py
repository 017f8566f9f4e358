"""Makes text from outside fit for every record, stream and model."""

RESULT_BYTES = 2**20
"""The limit of a call's result in UTF-8; the rest is cut with a mark (loop.md §5)."""


def well_formed(text: str) -> str:
    """Join split surrogate pairs, and replace halves of them by U+FFFD: UTF-8 holds none."""
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
