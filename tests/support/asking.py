"""Tools that ask: every call puts questions, and its result is their answers."""

import json
from typing import Any

import pytest

from diptych.core.events import InputRequest
from diptych.core.messages import CallOutput
from diptych.mcp import McpTools

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "title": "Your name", "minLength": 2},
        "mail": {"type": "string", "format": "email", "description": "for the ticket"},
        "seat": {
            "type": "string",
            "oneOf": [{"const": "w", "title": "Window"}, {"const": "a", "title": "Aisle"}],
            "default": "a",
        },
        "count": {"type": "integer", "minimum": 1, "maximum": 9},
        "gift": {"type": "boolean"},
        "meals": {"type": "array", "items": {"type": "string", "enum": ["soup", "cake"]}},
    },
    "required": ["name", "count"],
}
FORM = InputRequest("form", "Who travels?", SCHEMA)
PAGE = InputRequest("url", "Pay for it.", url="https://pay.example.com/bill?n=1")


def ask_in_calls(monkeypatch: pytest.MonkeyPatch, *requests: InputRequest) -> None:
    """Have every call of a tool ask this, one question after another."""

    async def call(_: McpTools, __: Any, ___: Any, context: Any) -> CallOutput:
        answers = [await context.ask(request) for request in requests]
        return CallOutput(json.dumps([[each.action, each.content] for each in answers]))

    monkeypatch.setattr(McpTools, "call", call)
