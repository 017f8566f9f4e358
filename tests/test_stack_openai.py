"""OpenAI's own Python client, and LangChain's on top of it, against an agent that is served."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI
from pydantic import BaseModel
from support.model_server import ModelServer, breaks_off, model_server, silence, status
from support.stack import Stage, box, call, stage

from diptych.manifest.settings import TimeoutConfig

pytestmark = pytest.mark.asyncio(loop_scope="module")

ANSWER = "The echo returned: hello - and Grüße 🤝."
WITH_CALL = (call("echo", text="hello"), "{}", ANSWER)
HI: Any = [{"role": "user", "content": "hi"}]
USAGE = (30, 1 + 1 + 8)  # three calls of the model; words of each reply
SOON_SILENT = TimeoutConfig(connect=5.0, first_byte=1.0, idle=1.0, total=3.0)
called: list[str] = []


async def echo(text: str) -> str:
    """Say a text again, and count."""
    called.append(text)
    return text


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def model() -> AsyncIterator[ModelServer]:
    async with model_server() as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def helper(model: ModelServer) -> AsyncIterator[Stage]:
    async with stage(model=model, timeouts=SOON_SILENT, tools=(box(echo),)) as served:
        yield served


@pytest.fixture
def settings(helper: Stage) -> dict[str, Any]:
    called.clear()
    return {"base_url": f"{helper.url}/v1", "api_key": "none", "timeout": 10}


# Text and usage


async def test_the_async_client_gets_the_same_streamed_and_not(
    model: ModelServer, settings: dict[str, Any]
) -> None:
    model.play(*WITH_CALL * 2)
    async with AsyncOpenAI(**settings) as client:
        whole = await client.chat.completions.create(model="helper", messages=HI)
        assert whole.choices[0].message.content == ANSWER
        assert whole.choices[0].finish_reason == "stop"
        assert whole.usage
        text, usage, kinds = "", None, []
        async for chunk in await client.chat.completions.create(
            model="helper", messages=HI, stream=True, stream_options={"include_usage": True}
        ):
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
            usage = chunk.usage or usage
            kinds.append((chunk.model_extra or {}).get("type"))
        assert text == ANSWER
        assert usage == whole.usage
        assert kinds.count("progress") == 1
        assert whole.usage.prompt_tokens == USAGE[0]


async def test_the_client_looks_the_agent_up(settings: dict[str, Any]) -> None:
    async with AsyncOpenAI(**settings) as client:
        assert (await client.models.retrieve("helper")).owned_by == "diptych"
        with pytest.raises(openai.NotFoundError) as wrong:
            await client.models.retrieve("gpt-5")
        assert wrong.value.code == "model_not_found"


# Typed outputs


class City(BaseModel):
    """A city."""

    name: str
    population: int


PARIS = City(name="Paris", population=2_100_000)
WHOLE = PARIS.model_dump_json()
TOOL: Any = {
    "type": "function",
    "function": {"name": "City", "parameters": City.model_json_schema()},
}
FORCED: Any = {
    "tools": [TOOL],
    "tool_choice": {"type": "function", "function": {"name": "City"}},
}


async def test_the_client_parses_typed_outputs_whole_and_streamed(
    model: ModelServer, settings: dict[str, Any]
) -> None:
    model.play(*("{}", WHOLE) * 3)
    async with AsyncOpenAI(**settings) as client:
        chat = client.chat.completions
        whole = await chat.parse(model="helper", messages=HI, response_format=City)
        assert whole.choices[0].message.parsed == PARIS
        async with chat.stream(model="helper", messages=HI, response_format=City) as stream:
            seen = [event.type async for event in stream]
            final = await stream.get_final_completion()
        assert final.choices[0].message.parsed == PARIS
        assert "content.done" in seen
        plain = await chat.create(
            model="helper", messages=HI, response_format={"type": "json_object"}
        )
        assert json.loads(plain.choices[0].message.content or "") == PARIS.model_dump()


async def test_the_client_gets_the_call_that_it_forces_whole_and_streamed(
    model: ModelServer, settings: dict[str, Any]
) -> None:
    model.play(*("{}", WHOLE) * 2)
    async with AsyncOpenAI(**settings) as client:
        chat = client.chat.completions
        whole = await chat.create(model="helper", messages=HI, **FORCED)
        async with chat.stream(model="helper", messages=HI, **FORCED) as stream:
            seen = [event.type async for event in stream]
            final = await stream.get_final_completion()
        assert "tool_calls.function.arguments.done" in seen
        for message in (whole.choices[0].message, final.choices[0].message):
            assert not message.content
            (made,) = message.tool_calls or ()
            assert made.type == "function"
            assert made.function.name == "City"
            assert json.loads(made.function.arguments) == PARIS.model_dump()


# Errors


async def test_errors_become_the_exceptions_that_the_client_has_for_them(
    model: ModelServer, settings: dict[str, Any]
) -> None:
    model.play(status(401))
    async with AsyncOpenAI(**settings, max_retries=0) as client:
        create = client.chat.completions.create
        with pytest.raises(openai.BadRequestError, match="there is no user message") as bad:
            await create(model="helper", messages=[{"role": "system", "content": "x"}])
        assert (bad.value.param, bad.value.code) == ("messages", "invalid_request")
        with pytest.raises(openai.NotFoundError, match="this agent is called 'helper'") as wrong:
            await create(model="gpt-5", messages=HI)
        assert wrong.value.code == "model_not_found"
        with pytest.raises(openai.InternalServerError) as failed:
            await create(model="helper", messages=HI)
        assert failed.value.code == "model_unauthorized"
        assert failed.value.status_code == 502


async def test_a_stream_that_fails_later_is_an_exception_after_what_was_told(
    model: ModelServer, settings: dict[str, Any]
) -> None:
    model.play("{}", breaks_off("Half ", "an "))
    async with AsyncOpenAI(**settings) as client:
        told = ""
        with pytest.raises(openai.APIError, match="was cut off") as failed:  # noqa: PT012
            async for chunk in await client.chat.completions.create(
                model="helper", messages=HI, stream=True
            ):
                told += chunk.choices[0].delta.content or ""
        assert told == "Half an "
        assert failed.value.code == "model_cut"
        assert len(model.requests) == 2


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(status(500), id="a model that fails"),
        pytest.param(silence, id="a model that says nothing"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_retry_of_the_client_never_runs_a_tool_twice(
    model: ModelServer, settings: dict[str, Any], fault: Any, stream: bool
) -> None:
    model.play(call("echo", text="once"), fault)
    async with AsyncOpenAI(**settings, max_retries=5) as client:
        with pytest.raises(openai.APIError):  # noqa: PT012
            told: Any = await client.chat.completions.create(
                model="helper", messages=HI, stream=stream
            )
            async for _ in told:
                pass
    assert called == ["once"]


# LangChain


async def test_langchain_gets_the_same_in_all_four_ways(
    model: ModelServer, settings: dict[str, Any]
) -> None:
    model.play(*WITH_CALL * 4)
    chat = ChatOpenAI(model="helper", stream_usage=True, **settings)
    texts, usages = [], []
    for whole in (await asyncio.to_thread(chat.invoke, "hi"), await chat.ainvoke("hi")):
        texts.append(whole.content)
        usages.append(whole.usage_metadata)
    streams = [
        await asyncio.to_thread(lambda: list(chat.stream("hi"))),
        [chunk async for chunk in chat.astream("hi")],
    ]
    for chunks in streams:
        texts.append("".join(str(chunk.content) for chunk in chunks))
        usages.append(next(c.usage_metadata for c in chunks if c.usage_metadata))
    assert texts == [ANSWER] * 4
    counts = [(u["input_tokens"], u["output_tokens"]) for u in usages if u]
    assert counts == [counts[0]] * 4
    assert counts[0][0] == USAGE[0]


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning")  # of the client's
@pytest.mark.parametrize("method", ["function_calling", "json_mode", "json_schema"])
async def test_langchain_gets_typed_outputs_by_each_of_its_methods(
    model: ModelServer, settings: dict[str, Any], method: Any
) -> None:
    model.play(*("{}", WHOLE) * 3)
    chat = ChatOpenAI(model="helper", temperature=0.1, max_tokens=50, **settings)
    typed = chat.with_structured_output(City, method=method)
    assert await asyncio.to_thread(typed.invoke, "Which city, as JSON?") == PARIS
    assert await typed.ainvoke("Which city, as JSON?") == PARIS
    assert [piece async for piece in typed.astream("Which city, as JSON?")][-1] == PARIS
