"""The scripted model: what an entry of DEBUG_MOCK_RESPONSES may hold, and what is played."""

import json
from typing import Any

import pytest

from diptych.core.errors import ConfigError, ModelError
from diptych.core.messages import Message, NativeCall, Usage
from diptych.core.model_request import ModelRequest
from diptych.models.scripted import ScriptedModel, read_script
from diptych.ports import Delta, Reply

ASKED = ModelRequest((Message("user", "Hello you"),))
CALL = NativeCall("call00001", "echo", '{"text":"hi"}')


def scripted(*entries: Any) -> ScriptedModel:
    return ScriptedModel(read_script(json.dumps(entries)))


async def streamed(model: ScriptedModel) -> list[Delta]:
    return [delta async for delta in model.stream(ASKED)]


@pytest.mark.parametrize(
    ("written", "call"),
    [
        pytest.param(
            {
                "id": "a",
                "type": "function",
                "function": {"name": "echo", "arguments": '{"text":"hi"}'},
            },
            NativeCall("a", "echo", '{"text":"hi"}'),
            id="OpenAI's form",
        ),
        pytest.param(
            {"name": "echo", "arguments": '{"te'},
            NativeCall("call00001", "echo", '{"te'),
            id="broken on purpose",
        ),
    ],
)
async def test_an_entry_may_hold_native_calls(written: Any, call: NativeCall) -> None:
    model = scripted({"tool_calls": [written]})
    reply = await model.complete(ASKED)
    assert (reply.text, reply.calls, reply.finish_reason) == ("", (call,), "tool_calls")
    deltas = await streamed(model)
    assert [delta.calls for delta in deltas] == [(call,)]
    assert deltas[-1].finish_reason == "tool_calls"


async def test_an_entry_may_hold_all_at_once() -> None:
    entry = {
        "content": "So be it.",
        "reasoning": "Hm, well.",
        "tool_calls": [{"name": "echo", "arguments": {"text": "hi"}}, {"name": "stop"}],
        "finish_reason": "length",
        "usage": {"prompt_tokens": 1, "completion_tokens": 2},
    }
    calls = (CALL, NativeCall("call00002", "stop", "{}"))
    model = scripted(entry)
    assert await model.complete(ASKED) == Reply(
        "So be it.", Usage(1, 2), "length", "Hm, well.", calls
    )
    assert await streamed(model) == [
        Delta(reasoning="Hm, "),
        Delta(reasoning="well."),
        Delta("So "),
        Delta("be "),
        Delta("it."),
        Delta("", "", Usage(1, 2), "length", calls),
    ]


@pytest.mark.parametrize(
    ("written", "code", "limits"),
    [
        pytest.param("boom", "model_failed", (None, None), id="a text"),
        pytest.param(
            {"message": "boom", "code": "context_too_long", "max_tokens": 8, "prompt_tokens": 9},
            "context_too_long",
            (8, 9),
            id="with a code",
        ),
    ],
)
async def test_an_entry_may_be_an_error(written: Any, code: str, limits: Any) -> None:
    with pytest.raises(ModelError, match="boom") as caught:
        await scripted({"error": written}).complete(ASKED)
    assert caught.value.code == code
    assert (caught.value.max_tokens, caught.value.prompt_tokens) == limits


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"usage": {}}, ': needs "content", "tool_calls" or "error"'),
        ({"tool_calls": [{"arguments": {}}]}, ".tool_calls[0].name: Field required"),
        (
            {"tool_calls": [{"id": "x", "name": "a"}, {"id": "x", "name": "b"}]},
            ": the ids of tool_calls must differ",
        ),
        ({"error": {"message": "x", "code": "y"}}, ".error.code: Input should be 'model_"),
        ({"content": "", "tools": []}, ".tools: Extra inputs are not permitted"),
    ],
)
def test_a_mistake_is_told_with_its_place(entry: Any, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_script(json.dumps([entry]))
    assert str(caught.value).startswith(f"DEBUG_MOCK_RESPONSES[0]{problem}")
