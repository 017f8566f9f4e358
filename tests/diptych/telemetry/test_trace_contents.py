"""What is shown of messages, arguments and results in traces: valid JSON, and never too much."""

import json
from typing import Any

import pytest

from diptych.core.messages import Message, NativeCall
from diptych.telemetry.contents import (
    MAX_CHARS,
    input_attributes,
    output_attributes,
    value_text,
)

ESCAPED = "\x01" * 20_000  # each takes six characters in JSON
CALLS = tuple(NativeCall(f"call_{n}", f"box__{ESCAPED}", ESCAPED) for n in range(100))


@pytest.mark.parametrize(
    "found",
    [
        input_attributes((Message("system", ESCAPED), Message("user", ESCAPED))),
        input_attributes(tuple(Message("user", str(n) * 3_900) for n in range(9))),
        input_attributes((Message("user", "hi"), Message("assistant", ESCAPED, calls=CALLS))),
        output_attributes(ESCAPED, "stop", CALLS),
        output_attributes("", "tool_calls", CALLS[:1]),
    ],
)
def test_an_attribute_is_json_and_not_too_long(found: dict[str, str]) -> None:
    for text in found.values():
        assert len(text) <= MAX_CHARS
        assert json.loads(text)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize("value", [{"a": 2**70}, nested(300), [nested(5_000)], ESCAPED])
def test_any_value_is_shown_somehow(value: Any) -> None:
    assert 0 < len(value_text(value)) <= MAX_CHARS
