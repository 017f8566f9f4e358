"""Estimates how many tokens a text is, for a model whose tokenizer nobody here knows.

An estimate of ours is its *weight*. It errs on the high side, by kinds of characters, as published
tokenizers treat them: about 4 letters of English a token, 1 to 3 digits, 1 or 2 signs of code, and
1 to 3 bytes of a script that is not Latin. Text without blanks (base64, hashes) has more tokens
than its letters say. What a model reports turns weight into tokens (`context_window`).
"""

from functools import lru_cache
from math import ceil

_BLANKS = b" \t\r\n"
_LETTERS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_ASCII = bytes(range(128))
_LONGEST_WORD = 20  # letters for each blank; text with more is none that people write


def weight(text: str) -> int:
    """Estimate the tokens of a text, rather too many than too few."""
    data = text.encode(errors="replace")
    no_blanks = data.translate(None, _BLANKS)
    no_letters = no_blanks.translate(None, _LETTERS)
    high = 0 if text.isascii() else len(no_letters.translate(None, _ASCII))
    blanks, letters = len(data) - len(no_blanks), len(no_blanks) - len(no_letters)
    dense = max(0, letters - _LONGEST_WORD * (blanks + 1))
    return ceil(
        (blanks + letters - dense) / 3.5 + dense / 1.6 + (len(no_letters) - high) * 0.8 + high * 0.5
    )


@lru_cache(maxsize=16)
def prompt_weight(text: str) -> int:
    """Estimate the tokens of a system prompt; remembered, as all runs of an agent have the same."""
    return weight(text)
