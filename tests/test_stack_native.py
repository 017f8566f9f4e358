"""Native calls through the whole stack: a model's HTTP server, tools, the record, `/ready`."""

import json
from typing import Any

import pytest
from aiohttp import web
from support.model_server import Exchange, Step, model_server, usage
from support.stack import agent, box, call, stage, stages

from diptych.core.run_settings import RunSettings
from diptych.manifest.settings import PeerConfig

pytestmark = pytest.mark.asyncio

NATIVE = RunSettings(action_format="native")
AUTO = RunSettings(action_format="auto")
NO_TOOLS = '{"error": {"message": "registry.example/gemma2 does not support tools"}}'  # Ollama


async def echo(text: str) -> str:
    """Say a text again."""
    return f"echo: {text}"


def asks(*calls: tuple[str, str, dict[str, Any]], ended: str = "tool_calls") -> Step:
    """A step that calls natively: id, name and arguments of each call; `ended` is why it ended."""

    async def ask(exchange: Exchange) -> web.StreamResponse:
        asked = [
            {
                "index": place,
                "id": call_id,
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for place, (call_id, name, arguments) in enumerate(calls)
        ]
        message = {"role": "assistant", "content": None, "tool_calls": asked}
        choice = {"index": 0, "finish_reason": ended}
        if not exchange.body["stream"]:
            whole = {"choices": [{**choice, "message": message}], "usage": usage("x")}
            return web.json_response(whole)
        stream = await exchange.open()
        await stream.write(b"data: " + json.dumps({"choices": [{"delta": message}]}).encode())
        last = json.dumps({"choices": [{**choice, "delta": {}}], "usage": usage("x")})
        await stream.write(f"\n\ndata: {last}\n\ndata: [DONE]\n\n".encode())
        return stream

    return ask


async def refuses_tools(exchange: Exchange) -> web.StreamResponse:
    """A step of a model that takes no tools: in JSON it asks once, and then answers."""
    if "tools" in exchange.body:
        return web.Response(status=400, text=NO_TOOLS, content_type="application/json")
    said = "".join(str(m["content"]) for m in exchange.body["messages"])
    if exchange.is_phase_2:
        return await exchange.say("It is x.")
    return await exchange.say("{}" if "echo: x" in said else call("echo", text="x"))


async def test_tools_and_agents_are_called_natively_side_by_side() -> None:
    both = asks(("a", "echo", {"text": "x"}), ("b", "delegate_to_writer", {"task": "Write."}))
    async with model_server(both, "I know.", "It is x.") as model:
        lead = agent(
            model=model,
            tools=(box(echo),),
            agents=(PeerConfig("writer", "writer"),),
            loop=NATIVE,
        )
        async with stages(lead, agent("{}", "Written.", name="writer")) as (helper, _):
            assert await helper.answer() == "It is x."
            facts = await helper.facts()
            ready = (await helper.http.get("/ready")).json()
        first, second, answer = model.requests
    names = [tool["function"]["name"] for tool in first["tools"]]
    assert names == ["echo", "delegate_to_writer"]
    assert [(m["tool_call_id"], m["content"]) for m in second["messages"][-2:]] == [
        ("a", "echo: x"),
        ("b", "Written."),
    ]
    assert "tools" not in answer
    assert all(m["role"] != "tool" and "tool_calls" not in m for m in answer["messages"])
    assert sorted(facts) == [
        "agent_response", "delegation_request", "delegation_response", "tool_call", "tool_result",
        "user_message",
    ]  # fmt: skip
    assert ready["action_format"] == "native"


async def test_auto_learns_that_an_endpoint_takes_no_tools_and_says_so() -> None:
    async with (
        model_server(refuses_tools) as model,
        stage(model=model, tools=(box(echo),), loop=AUTO) as helper,
    ):
        assert (await helper.http.get("/ready")).json()["action_format"] == "native"
        first = await helper.start()
        await helper.ended(first)
        assert await helper.answer() == "It is x."
        ready = (await helper.http.get("/ready")).json()
        events = (await helper.http.get(f"/v1/runs/{first}/events")).text
    assert events.count("event: action_format") == 1
    assert ready["action_format"] == "json"
    assert "the model's endpoint refuses tools: calls are asked for as JSON" in ready["notes"]
    assert ["tools" in request for request in model.requests].count(True) == 1


NO_SCHEMA = (  # Groq
    '{"error": {"message": "invalid JSON schema for tool echo, tools[0].function.parameters: '
    '\'required\' present but \'properties\' is missing", "type": "invalid_request_error"}}'
)


async def refuses_one_tool(exchange: Exchange) -> web.StreamResponse:
    """A step of an endpoint that does not take the schema of one tool."""
    if "tools" in exchange.body:
        return web.Response(status=400, text=NO_SCHEMA, content_type="application/json")
    return await refuses_tools(exchange)


async def test_auto_goes_on_in_json_where_one_tool_s_schema_is_refused() -> None:
    async with (
        model_server(refuses_one_tool) as model,
        stage(model=model, tools=(box(echo),), loop=AUTO) as helper,
    ):
        run_id = await helper.start()
        assert (await helper.ended(run_id))["status"] == "completed"
        await helper.ended(await helper.start())
        ready = (await helper.http.get("/ready")).json()
        events = (await helper.http.get(f"/v1/runs/{run_id}/events")).text
        assert (await helper.facts()).count("tool_result") == 2
    assert ready["action_format"] == "json"
    assert (
        "the model's endpoint refuses the tool 'echo': calls are asked for as JSON"
        in (ready["notes"])
    )
    assert events.count("event: action_format") == 1
    assert "It does not accept the tool 'echo'" in events
    assert ["tools" in request for request in model.requests].count(True) == 1


def cannot_read_call(status: int, body: str) -> Step:
    """A step in which the model's server could not read the call that the model wrote."""

    async def fail(exchange: Exchange) -> web.Response:
        assert "tools" in exchange.body
        return web.Response(status=status, text=body, content_type="application/json")

    return fail


PEG_NATIVE = (  # llama.cpp, Llama 3.2's template
    '{"error": {"code": 500, "message": "The model produced output that does not match the '
    'expected peg-native format", "type": "server_error"}}'
)


@pytest.mark.parametrize("mode", ["separate", "direct"], ids=["whole", "streamed"])
@pytest.mark.parametrize("ended", ["length", "SAFETY"])
async def test_calls_of_a_reply_that_was_cut_off_or_filtered_are_not_made(
    mode: Any, ended: str
) -> None:
    cut = asks(("a", "echo", {"text": "x"}), ended=ended)
    settings = RunSettings(action_format="native", answer_mode=mode)
    async with (
        model_server(cut, "I can not.", "I can not.") as model,
        stage(model=model, tools=(box(echo),), loop=settings) as helper,
    ):
        assert await helper.answer() == "I can not."
        (error,) = [e for e in await helper.memory() if e["event_type"] == "action_error"]
        facts = await helper.facts()
    assert error["metadata"]["error_type"] == "truncated"
    assert ("length limit" if ended == "length" else "content filter") in error["content"]
    assert "tool_call" not in facts


@pytest.mark.parametrize("mode", ["separate", "direct"])
async def test_a_call_that_the_server_cannot_read_is_asked_for_anew(mode: Any) -> None:
    good = asks(("a", "echo", {"text": "x"}))
    settings = RunSettings(action_format="native", answer_mode=mode)
    steps = (cannot_read_call(500, PEG_NATIVE), good, "It is x.", "It is x.")
    async with (
        model_server(*steps) as model,
        stage(model=model, tools=(box(echo),), loop=settings) as helper,
    ):
        assert await helper.answer() == "It is x."
        facts = await helper.facts()
        told = model.requests[1]["messages"][-1]["content"]
    assert "json_syntax" in told
    assert facts.count("action_error") == facts.count("tool_result") == 1
