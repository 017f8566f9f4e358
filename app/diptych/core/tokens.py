"""Estimates how many tokens a text has, for a model whose tokenizer nobody here knows.

Our estimate is a text's *weight*. It errs on the high side, by kinds of characters, as published
tokenizers treat them: about 4 English letters a token, 1 to 3 digits, 1 or 2 signs of code, 1 to 3
bytes of a script that is not Latin; text without blanks (base64, hashes) has more tokens than its
letters say. What a model reports turns weight into tokens (`context_window`).
"""

from functools import lru_cache
from math import ceil

from diptych.core.messages import Message

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


PART_WEIGHT = 1_000  # of an image or a file: what models take for one of middle size
_MESSAGE_WEIGHT = 8  # of what a chat template puts around a message


def message_weight(message: Message) -> int:
    """Estimate the tokens of a message, with what a chat template puts around it."""
    if message.role == "system":
        return _MESSAGE_WEIGHT + prompt_weight(message.content)
    found = _MESSAGE_WEIGHT + weight(message.content) + PART_WEIGHT * len(message.parts)
    if message.reasoning:
        found += weight(message.reasoning)
    for call in message.calls:
        found += weight(call.arguments) + weight(call.name)
    return found
