"""Estimates how many tokens messages and requests have, by the weight of their texts."""

from collections.abc import Iterable, Mapping

from diptych.core.messages import Message
from diptych.core.model_request import FunctionTool, ModelRequest
from diptych.core.text_weight import prompt_weight, weight

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


def total_weight(messages: Iterable[Message]) -> int:
    """Estimate the tokens of several messages."""
    return sum(map(message_weight, messages))


def request_weight(request: ModelRequest, known: Mapping[int, int] | None = None) -> int:
    """Estimate the tokens of a request, with the functions that it offers.

    `known` has the weights of messages that were weighed before, by the ids of these objects.
    """
    functions = functions_weight(request.tools) if request.tools else 0
    if not known:
        return functions + sum(map(message_weight, request.messages))
    return functions + sum(known.get(id(m)) or message_weight(m) for m in request.messages)


def functions_weight(functions: Iterable[FunctionTool]) -> int:
    """Estimate the tokens of functions that a request offers."""
    return sum(function.weight for function in functions)
