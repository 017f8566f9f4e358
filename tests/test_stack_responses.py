"""OpenAI's own client by its newer API, and libraries on top of it: against a served agent."""

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI
from openai.types.responses import ResponseInputText
from pydantic import BaseModel
from support.clients import run_client
from support.model_server import ModelServer, breaks_off, model_server, status
from support.stack import Stage, box, call, stage

pytestmark = pytest.mark.asyncio(loop_scope="module")

ANSWER = "The echo returned: hello - and Grüße 🤝."
WITH_CALL = (call("echo", text="hello"), "{}", ANSWER)
ASK: Any = {"model": "helper", "input": "hi"}
SLOW = {"content": ANSWER, "chunk_ms": 40}


class City(BaseModel):
    """A city."""

    name: str
    population: int


PARIS = City(name="Paris", population=2_100_000)
WHOLE = PARIS.model_dump_json()
TOOL: Any = {
    "type": "function",
    "name": "City",
    "parameters": {**City.model_json_schema(), "additionalProperties": False},
    "strict": True,
}


async def echo(text: str) -> str:
    """Say a text again."""
    return text


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def model() -> AsyncIterator[ModelServer]:
    async with model_server() as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def helper(model: ModelServer) -> AsyncIterator[Stage]:
    async with stage(model=model, tools=(box(echo),)) as served:
        yield served


def client_of(served: Stage) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", timeout=10, max_retries=0)


@pytest.fixture
def settings(helper: Stage) -> dict[str, Any]:
    return {"base_url": f"{helper.url}/v1", "api_key": "none", "timeout": 10, "max_retries": 0}


async def test_the_async_client_gets_the_same_streamed_helped_and_whole(
    model: ModelServer, settings: dict[str, Any]
) -> None:
    model.play(*WITH_CALL * 3)
    async with AsyncOpenAI(**settings) as client:
        whole = await client.responses.create(**ASK, metadata={"a": "b"})
        assert whole.output_text == ANSWER
        assert (whole.status, whole.metadata) == ("completed", {"a": "b"})
        assert await client.responses.retrieve(whole.id) == whole
        (asked,) = [item async for item in client.responses.input_items.list(whole.id)]
        assert asked.type == "message"
        assert asked.content == [ResponseInputText(type="input_text", text="hi")]
        events = [event async for event in await client.responses.create(**ASK, stream=True)]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
        assert "".join(deltas) == ANSWER
        last = events[-1]
        assert last.type == "response.completed"
        assert last.response.usage == whole.usage
        async with client.responses.stream(**ASK) as stream:
            seen = [event.type async for event in stream]
            assert (await stream.get_final_response()).output_text == ANSWER
        assert "response.output_text.done" in seen


async def test_a_stream_that_is_left_is_taken_up_where_it_was_byte_for_byte() -> None:
    async with stage("{}", SLOW) as slow, client_of(slow) as client:
        stream = await client.responses.create(**ASK, background=True, stream=True)
        heard, run_id, last = "", "", -1
        async for event in stream:
            last = event.sequence_number
            if event.type == "response.created":
                run_id = event.response.id
            if event.type == "response.output_text.delta":
                heard += event.delta
                if len(heard) > 8:
                    break
        await stream.close()
        assert 0 < len(heard) < len(ANSWER)
        rest = await client.responses.retrieve(run_id, stream=True, starting_after=last)
        async for event in rest:
            if event.type == "response.output_text.delta":
                heard += event.delta
        assert heard == ANSWER
        async with client.responses.stream(response_id=run_id, starting_after=last) as again:
            assert (await again.get_final_response()).output_text == ANSWER


async def test_a_background_response_is_polled_and_cancelled() -> None:
    async with stage("{}", SLOW) as slow, client_of(slow) as client:
        found = await client.responses.create(**ASK, background=True)
        assert found.status in ("queued", "in_progress")
        async for _ in await client.responses.retrieve(found.id, stream=True):
            pass
        assert (await client.responses.retrieve(found.id)).output_text == ANSWER
        other = await client.responses.create(**ASK, background=True)
        cancelled = await client.responses.cancel(other.id)
        assert cancelled.status == "cancelled"
        await client.responses.delete(other.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(other.id)


async def test_a_conversation_goes_on_by_the_id_of_its_newest_response(
    model: ModelServer, settings: dict[str, Any]
) -> None:
    model.play("{}", "One.", "{}", "Two.")
    async with AsyncOpenAI(**settings) as client:
        first = await client.responses.create(**ASK)
        await client.responses.create(**ASK, previous_response_id=first.id)
        with pytest.raises(openai.NotFoundError) as unknown:
            await client.responses.create(**ASK, previous_response_id="resp_none")
        assert unknown.value.param == "previous_response_id"
    heard = [m["content"].partition("\n")[0] for m in model.requests[-1]["messages"][-3:]]
    assert heard == ["hi", "One.", "hi"]


async def test_the_client_parses_typed_outputs_and_the_call_that_it_forces(
    model: ModelServer, settings: dict[str, Any]
) -> None:
    model.play(*("{}", WHOLE) * 4, "{}", "Saved.")
    async with AsyncOpenAI(**settings) as client:
        whole = await client.responses.parse(**ASK, text_format=City)
        assert whole.output_parsed == PARIS
        async with client.responses.stream(**ASK, text_format=City) as stream:
            assert (await stream.get_final_response()).output_parsed == PARIS
        forced: Any = {"tools": [TOOL], "tool_choice": {"type": "function", "name": "City"}}
        made = await client.responses.parse(**ASK, **forced)
        async with client.responses.stream(**ASK, **forced) as stream:
            final = await stream.get_final_response()
        for each in (made, final):
            (item,) = each.output
            assert item.type == "function_call"
            assert item.parsed_arguments == PARIS.model_dump()
            call_id = item.call_id
        output: Any = {"type": "function_call_output", "call_id": call_id, "output": "it is in"}
        after = await client.responses.create(
            model="helper", input=[output], previous_response_id=final.id
        )
        assert after.output_text == "Saved."
    assert "it is in" in str(model.requests[-1]["messages"])


async def test_errors_become_the_exceptions_that_the_client_has_for_them(
    model: ModelServer, settings: dict[str, Any]
) -> None:
    model.play(status(401), "{}", breaks_off("Half ", "an "))
    async with AsyncOpenAI(**settings) as client:
        with pytest.raises(openai.BadRequestError) as bad:
            await client.responses.create(model="helper", input=[])
        assert bad.value.param == "input"
        with pytest.raises(openai.NotFoundError):
            await client.responses.create(model="gpt-5", input="hi")
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve("resp_none")
        with pytest.raises(openai.InternalServerError) as failed:
            await client.responses.create(**ASK)
        assert failed.value.code == "model_unauthorized"
        events = [event async for event in await client.responses.create(**ASK, stream=True)]
        last = events[-1]
        assert last.type == "response.failed"
        assert last.response.error
        assert last.response.error.code == "model_cut"


# Libraries on top of it


async def test_langchain_asks_streams_and_gets_typed_outputs(
    model: ModelServer, helper: Stage
) -> None:
    model.play("{}", "Hi.", "{}", "Hi you.", *("{}", WHOLE) * 2, "{}", "More.")
    chat = ChatOpenAI(
        model="helper",
        base_url=f"{helper.url}/v1",
        api_key="none",
        use_responses_api=True,
        max_retries=0,
    )
    first = await chat.ainvoke("hi")
    assert first.text == "Hi."
    pieces = [piece async for piece in chat.astream("hi")]
    assert "".join(piece.text for piece in pieces) == "Hi you."
    for method in ("json_schema", "function_calling"):
        typed = chat.with_structured_output(City, method=method)
        assert await typed.ainvoke("Which city?") == PARIS
    more = await chat.ainvoke([("user", "hi"), first, ("user", "more")])
    assert more.text == "More."


async def test_vercels_sdk_takes_a_second_turn_which_names_what_the_first_one_gave(
    model: ModelServer, helper: Stage
) -> None:
    model.play(*("{}", WHOLE) * 5)
    found = await run_client("vercel-ai", helper.url, "responses")
    assert found == dict.fromkeys(found, json.loads(WHOLE))
    assert len(found) == 5
    turns = [request["messages"] for request in model.requests[-10:]]
    (heard,) = [m["content"] for m in turns[-3] if m["role"] == "assistant"]
    assert heard == WHOLE
