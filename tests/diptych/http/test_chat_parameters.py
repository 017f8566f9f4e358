"""Parameters of a chat: what reaches the model, and what is named because it does not."""

from typing import Any

from support.face import HI, face, openai_error
from support.stack import call

from diptych.core.events import RunRequested
from diptych.manifest.settings import ChatConfig

CHAT = "/v1/chat/completions"
WARNING = "X-Diptych-Warning"
ALL: dict[str, Any] = {
    "temperature": 0.5,
    "top_p": 1,
    "max_tokens": 100,
    "stop": ["END"],
    "seed": 7,
    "presence_penalty": -2,
    "frequency_penalty": 2,
    "logit_bias": {"50256": -100},
    "reasoning_effort": "low",
    "verbosity": "high",
}
POLICY = ChatConfig(allow_parameters=tuple(ALL))


async def sent(chat: ChatConfig, *asked: Any) -> list[tuple[Any, str | None]]:
    """Send chats with fields: give the recorded parameters, and the warning of each reply."""
    found = []
    async with face(chat=chat) as helper:
        for fields in asked:
            response = await helper.http.post(CHAT, json={**HI, **fields})
            assert response.status_code == 200, response.text
            first = (await helper.house.events(response.headers["X-Run-ID"]))[0]
            assert isinstance(first, RunRequested)
            found.append((first.parameters, response.headers.get(WARNING)))
    return found


async def test_some_may_be_allowed_and_others_not() -> None:
    chat = ChatConfig(allow_parameters=("seed",))
    [found] = await sent(chat, {"temperature": 0, "seed": 1})
    assert found == ({"seed": 1}, "ignored: temperature")


async def test_a_parameter_is_passed_on_by_its_one_name() -> None:
    newer, nulls = {"max_completion_tokens": 5}, {"temperature": None, "stop": None}
    found = await sent(POLICY, newer, {**newer, "max_tokens": 9}, nulls)
    assert found == [({"max_tokens": 5}, None), ({"max_tokens": 5}, None), ({}, None)]


async def test_a_field_without_effect_is_named() -> None:
    warnings: list[tuple[dict[str, Any], str | None]] = [
        ({"top_k": 40, "min_p": 0.1}, "top_k, min_p"),
        ({"logprobs": False, "modalities": []}, None),
        ({"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "flex"}, None),
        ({"a\r\nX-Bad": 1, "ö": 1, "b" * 65: 1, "ok": 1}, "ok"),
        ({f"p{n}": 1 for n in range(99)}, ", ".join(f"p{n}" for n in range(20))),
    ]
    found = await sent(ChatConfig(), *(fields for fields, _ in warnings))
    assert found == [({}, names and f"ignored: {names}") for _, names in warnings]


async def test_a_parameter_that_would_reach_the_model_must_have_a_value_of_its_kind() -> None:
    async with face(chat=POLICY) as helper:
        for field, value, code in (
            ("temperature", "0.2", "invalid_type"),
            ("temperature", 2.1, "invalid_value"),
            ("max_tokens", 0, "invalid_value"),
            ("stop", ["x"] * 17, "array_above_max_length"),
            ("logit_bias", {"1": "x"}, "invalid_type"),
        ):
            response = await helper.http.post(CHAT, json={**HI, field: value})
            error = openai_error(response, 400)
            assert (error["param"].partition(".")[0], error["code"]) == (field, code)
        assert await helper.house.runs.entries() == []


async def test_streams_and_errors_bring_the_warning_too() -> None:
    async with face("{}", "Hello!") as helper:
        streamed = await helper.http.post(CHAT, json={**HI, "stream": True, "seed": 1})
        assert streamed.headers[WARNING] == "ignored: seed"
    async with face(call("nope"), {"error": "it broke"}) as helper:
        failed = await helper.http.post(CHAT, json={**HI, "seed": 1})
        assert failed.status_code == 502
        assert failed.headers[WARNING] == "ignored: seed"
