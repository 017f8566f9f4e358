"""Client libraries of others run tools of their own in the middle of a run of an agent."""

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from support.clients import run_client
from support.model_server import Exchange, ModelServer, model_server
from support.stack import Stage, box, call, stage

from diptych.manifest.settings import ChatConfig

WAYS = {
    "openai-agents": ["chat", "responses"],
    "openai-node": [],
    "pydantic-ai": ["chat", "responses"],
    "vercel-ai": ["chat", "responses", "compatible"],
}
ANSWER = "The sun shines."
BOTH = f"[{call('echo', text='own')}, {call('weather', city='Paris')}]"
QUESTION: Any = [{"role": "user", "content": "Which weather?"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
called: list[str] = []


async def echo(text: str) -> str:
    """Say a text again, and count."""
    called.append(text)
    return text


async def think(exchange: Exchange) -> Any:
    """Hand over if it can; else call the agent's tool and the caller's, then answer."""
    told = json.dumps(exchange.body["messages"])
    if exchange.is_phase_2:
        return await exchange.say(ANSWER)
    offered = str(exchange.body["messages"][0])
    if "transfer_to_writer" in offered:
        return await exchange.say(call("transfer_to_writer"))
    is_due = "weather" in offered and "sunny in Paris" not in told
    return await exchange.say(BOTH if is_due else "{}")


@pytest_asyncio.fixture
async def model() -> AsyncIterator[ModelServer]:
    async with model_server(think) as server:
        yield server


@pytest_asyncio.fixture
async def helper(model: ModelServer) -> AsyncIterator[Stage]:
    called.clear()
    chat = ChatConfig(caller_tools="pass")
    async with stage(model=model, tools=(box(echo),), chat=chat) as served:
        yield served


@pytest.mark.long
@pytest.mark.parametrize("library", WAYS)
async def test_a_client_library_runs_its_own_tool(helper: Stage, library: str) -> None:
    found = await run_client(library, helper.url, "tools")
    ways = [f"{way}{how}" for way in WAYS[library] for how in ("", ", streamed")]
    asked = {way: [ANSWER, "Paris"] for way in ways or ["whole", "streamed"]}
    handed = {w: [ANSWER, "writer"] for w in found if w.endswith("handed over")}
    assert found == {**asked, **handed}
    assert len(handed) == (2 if library == "openai-agents" else 0)
    assert called == ["own"] * len(asked)


@pytest.mark.parametrize("streaming", [False, True])
async def test_langchain_runs_its_own_tool(helper: Stage, *, streaming: bool) -> None:
    @tool
    def weather(city: str) -> str:
        """Tell the weather of a city."""
        return f"sunny in {city}"

    for use_responses_api in (False, True):
        chat = ChatOpenAI(
            base_url=f"{helper.url}/v1",
            api_key="none",  # type: ignore[arg-type]
            model="helper",
            streaming=streaming,
            use_responses_api=use_responses_api,
        ).bind_tools([weather])
        messages: list[Any] = [HumanMessage("Which weather?")]
        messages.append(await chat.ainvoke(messages))
        messages += [
            ToolMessage(weather.invoke(asked["args"]), tool_call_id=asked["id"])
            for asked in messages[-1].tool_calls
        ]
        assert (await chat.ainvoke(messages)).text == ANSWER
    assert called == ["own", "own"]


async def test_openai_runs_its_own_tool_while_it_streams(helper: Stage) -> None:
    async with openai.AsyncOpenAI(base_url=f"{helper.url}/v1", api_key="none") as client:
        messages = [*QUESTION]
        for _ in range(2):
            asking = client.chat.completions.stream(
                model="helper", messages=messages, tools=[WEATHER]
            )
            async with asking as stream:
                message = (await stream.get_final_completion()).choices[0].message
            messages.append(message)
            for each in message.tool_calls or ():
                city = json.loads(each.function.arguments)["city"]
                result = {"role": "tool", "tool_call_id": each.id, "content": f"sunny in {city}"}
                messages.append(result)
    assert (message.content, called) == (ANSWER, ["own"])


async def test_open_webui_runs_its_own_tool_in_its_wire_habits(helper: Stage) -> None:
    """It streams, and repeats calls with an empty content, an index and results of its own."""
    body: dict[str, Any] = {"model": "helper", "stream": True, "tools": [WEATHER]}
    body |= {"messages": [{"role": "system", "content": "You help."}, *QUESTION], "metadata": {}}
    chunks = await _chunks(helper, body)
    (delta,) = [d for d in chunks if d.get("tool_calls")]
    said = {"role": "assistant", "content": "", "tool_calls": delta["tool_calls"]}
    result = {
        "role": "tool",
        "tool_call_id": delta["tool_calls"][0]["id"],
        "content": [{"type": "input_text", "text": "sunny in Paris"}],
    }
    body["messages"] += [said, result]
    text = "".join(d.get("content") or "" for d in await _chunks(helper, body))
    assert (text, called) == (ANSWER, ["own"])


async def _chunks(helper: Stage, body: Any) -> list[dict[str, Any]]:
    reply = await helper.http.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    lines = [line for line in reply.text.splitlines() if line.startswith("data: {")]
    return [json.loads(line[6:])["choices"][0]["delta"] for line in lines]
