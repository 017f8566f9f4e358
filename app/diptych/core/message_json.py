"""Encodes messages as JSON for records and stores, and decodes them again.

A field that has its default is left out, so that earlier versions read what they know.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from diptych.core.messages import JSON, Message, NativeCall


def encode_message(message: Message) -> dict[str, JSON]:
    """Give a message as a JSON object."""
    stored: dict[str, JSON] = {"role": message.role, "content": message.content}
    if message.calls:
        stored["calls"] = encode_calls(message.calls)
    if message.call_id is not None:
        stored["call_id"] = message.call_id
    if message.parts:
        stored["parts"] = list(message.parts)
    if message.results:
        stored["results"] = [list(place) for place in message.results]
    if message.keeps is not None:
        stored["keeps"] = message.keeps
    if message.reasoning:
        stored["reasoning"] = message.reasoning
    if message.sources:
        stored["sources"] = list(message.sources)
    return stored


def decode_message(stored: Mapping[str, Any]) -> Message:
    """Read a message back. Raises `LookupError` or `TypeError` if it is none."""
    return Message(
        stored["role"],
        stored["content"],
        decode_calls(stored.get("calls", ())),
        stored.get("call_id"),
        tuple(stored.get("parts", ())),
        tuple((start, end) for start, end in stored.get("results", ())),
        stored.get("keeps"),
        stored.get("reasoning", ""),
        tuple(stored.get("sources", ())),
    )


def encode_calls(calls: tuple[NativeCall, ...]) -> list[JSON]:
    """Give native calls as JSON objects."""
    return [_encode_call(call) for call in calls]


def decode_calls(stored: Sequence[Mapping[str, Any]]) -> tuple[NativeCall, ...]:
    """Read native calls back."""
    return tuple(
        NativeCall(call["id"], call["name"], call["arguments"], call.get("extra"))
        for call in stored
    )


def _encode_call(call: NativeCall) -> dict[str, JSON]:
    stored: dict[str, JSON] = {"id": call.id, "name": call.name, "arguments": call.arguments}
    return stored if call.extra is None else {**stored, "extra": call.extra}
