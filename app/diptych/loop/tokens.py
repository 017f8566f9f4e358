"""Estimates how many tokens a text is, for a model whose tokenizer nobody here knows.

An estimate of ours is its *weight*. It errs on the high side, by kinds of characters, as published
tokenizers treat them: about 4 letters of English a token, 1 to 3 digits, 1 or 2 signs of code, and
1 to 3 bytes of a script that is not Latin. Text without blanks (base64, hashes) has more tokens
than its letters say. What a model reports turns weight into tokens (`context_window`).

Not here: what is done about a request that weighs too much (`fitting`).
"""

import json
from collections.abc import Iterable
from math import ceil

from diptych.loop.messages import Message
from diptych.loop.model_request import FunctionTool, ModelRequest

PART_WEIGHT = 1_000  # of an image or a file: what models take for one of middle size
_MESSAGE_WEIGHT = 8  # of what a chat template puts around a message
_BLANKS = b" \t\r\n"
_LETTERS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_ASCII = bytes(range(128))
_LONGEST_WORD = 20  # letters for each blank; text with more is none that people write


def weight(text: str) -> int:
    """Estimate the tokens of a text, rather too many than too few."""
    data = text.encode(errors="replace")
    no_blanks = data.translate(None, _BLANKS)
    no_letters = no_blanks.translate(None, _LETTERS)
    high = len(no_letters.translate(None, _ASCII))
    blanks, letters = len(data) - len(no_blanks), len(no_blanks) - len(no_letters)
    dense = max(0, letters - _LONGEST_WORD * (blanks + 1))
    return ceil(
        (blanks + letters - dense) / 3.5 + dense / 1.6 + (len(no_letters) - high) * 0.8 + high * 0.5
    )


def message_weight(message: Message) -> int:
    """Estimate the tokens of a message, with what a chat template puts around it."""
    calls = sum(weight(call.arguments) + weight(call.name) for call in message.calls)
    parts = PART_WEIGHT * len(message.parts)
    thoughts = weight(message.reasoning) if message.reasoning else 0
    return _MESSAGE_WEIGHT + weight(message.content) + thoughts + calls + parts


def total_weight(messages: Iterable[Message]) -> int:
    """Estimate the tokens of several messages."""
    return sum(map(message_weight, messages))


def request_weight(request: ModelRequest) -> int:
    """Estimate the tokens of a request, with the functions that it offers."""
    return total_weight(request.messages) + functions_weight(request.tools)


def functions_weight(functions: Iterable[FunctionTool]) -> int:
    """Estimate the tokens of functions that a request offers."""
    return sum(weight(f"{f.name} {f.description} {json.dumps(f.parameters)}") for f in functions)
