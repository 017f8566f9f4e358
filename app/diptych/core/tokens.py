"""Estimates the tokens of a text for a model whose tokenizer is unknown.

The estimate is called the text's *weight*. It errs on the high side, by kinds of characters, as
published tokenizers treat them: about 4 English letters a token, 1 to 3 digits, 1 or 2 punctuation
marks, 1 to 3 bytes of a non-Latin script; text without spaces (base64, hashes) has more tokens than
its letters suggest. Reported usage turns weight into tokens (`context_window`).
"""

from functools import lru_cache
from math import ceil

from diptych.core.messages import Message

_BLANKS = b" \t\r\n"
_LETTERS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_ASCII = bytes(range(128))
_LONGEST_WORD = 20  # letters per blank; text with longer words is not prose


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
    """Estimate the tokens of a system prompt; cached, as all runs of an agent share it."""
    return weight(text)


PART_WEIGHT = 1_000  # of an image or a file of average size
_MESSAGE_WEIGHT = 8  # what a chat template adds to a message


def message_weight(message: Message) -> int:
    """Estimate the tokens of a message, including its chat template."""
    if message.role == "system":
        return _MESSAGE_WEIGHT + prompt_weight(message.content)
    found = _MESSAGE_WEIGHT + weight(message.content) + PART_WEIGHT * len(message.parts)
    if message.reasoning:
        found += weight(message.reasoning)
    for call in message.calls:
        found += weight(call.arguments) + weight(call.name)
    return found
