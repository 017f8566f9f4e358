"""Runs whose model has fallbacks that take other things than it does, through the whole stack."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from aiohttp import web
from support.model_server import (
    Exchange,
    ModelServer,
    model_server,
    silence,
)
from support.stack import Stage, box, call, frames, stages

from diptych.core.run_settings import RunSettings
from diptych.manifest.settings import AgentConfig, ModelConfig, TimeoutConfig
from diptych.runs.definition import AgentDefinition

pytestmark = pytest.mark.asyncio

NO_TOOLS = '{"error": {"message": "registry.example/gemma2 does not support tools"}}'  # Ollama
TIMEOUTS = TimeoutConfig(connect=0.5, first_byte=5, idle=5, total=10)


async def echo(text: str) -> str:
    """Say a text again."""
    return f"echo: {text}"


def has_result(body: Mapping[str, Any]) -> bool:
    return any("echo: x" in str(message["content"]) for message in body["messages"])


@dataclass
class First:
    """The agent's own model: it calls natively. While it is ill it fails."""

    is_ill: bool = False
    ill_after: int = 99  # requests

    async def __call__(self, exchange: Exchange) -> web.StreamResponse:
        self.ill_after -= 1
        if self.is_ill or self.ill_after < 0:
            return web.json_response({"error": {"message": "ill"}}, status=500)
        if "tools" not in exchange.body or has_result(exchange.body):
            return await exchange.say("It is x, says the first.")
        function = {"name": "echo", "arguments": json.dumps({"text": "x"})}
        message = {"role": "assistant", "tool_calls": [
            {"id": "a", "type": "function", "function": function}]}  # fmt: skip
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        return web.json_response({"choices": [choice]})


async def second(exchange: Exchange) -> web.StreamResponse:
    """A fallback that takes no tools: in JSON it asks once, and then answers."""
    if "tools" in exchange.body or any(m["role"] == "tool" for m in exchange.body["messages"]):
        return web.Response(status=400, text=NO_TOOLS, content_type="application/json")
    if exchange.is_phase_2:
        return await exchange.say("It is x, says the second.")
    return await exchange.say("{}" if has_result(exchange.body) else call("echo", text="x"))


@asynccontextmanager
async def two(first: First, action_format: Any) -> AsyncIterator[tuple[Stage, ModelServer]]:
    async with model_server(first) as own, model_server(second) as other:
        fallback = ModelConfig("second", other.url, timeouts=TIMEOUTS)
        model = ModelConfig("m", own.url, timeouts=TIMEOUTS, fallbacks=(fallback,))
        definition = AgentDefinition(settings=RunSettings(action_format=action_format))
        config = AgentConfig("helper", definition=definition, model=model, tools=(box(echo),))
        async with stages(config) as (helper,):
            yield helper, other


async def ended(helper: Stage) -> tuple[str, list[str], int]:
    """Make a run; give its answer, what was said of its format, and how often `echo` was called."""
    run = await helper.ended(await helper.start("hi"))
    assert run["status"] == "completed", run
    text = (await helper.http.get(f"/v1/runs/{run['id']}/events")).text
    told = [f.json for f in frames(text) if f.json.get("event_type") == "action_format"]
    return run["answer"], [event["content"] for event in told], text.count("event: tool_call")


@pytest.mark.parametrize("ill_after", [0, 1, 2], ids=["at once", "after the call", "in the answer"])
async def test_auto_goes_on_with_a_fallback_that_takes_no_tools(ill_after: int) -> None:
    first = First(ill_after=ill_after)
    async with two(first, "auto") as (helper, _):
        answer, formats, calls = await ended(helper)
        assert (answer, calls) == ("It is x, says the second.", 1)
        assert formats == (["json"] if ill_after < 2 else [])
        assert (await helper.http.get("/ready")).json()["action_format"] == "native"


@pytest.mark.parametrize("hangs_in", ["phase 1", "phase 2"])
async def test_m12_a_model_that_hangs_is_left_for_its_fallback_within_the_deadline(
    hangs_in: str,
) -> None:
    async def first(exchange: Exchange) -> web.StreamResponse:
        if hangs_in == "phase 2" and not exchange.is_phase_2:
            return await exchange.say("{}")
        return await silence(exchange)

    soon = TimeoutConfig(connect=0.5, first_byte=0.5, idle=0.5, total=10)
    async with model_server(first) as own, model_server(second) as other:
        fallback = ModelConfig("second", other.url, timeouts=TIMEOUTS)
        model = ModelConfig("m", own.url, timeouts=soon, fallbacks=(fallback,))
        definition = AgentDefinition(deadline=8.0)
        async with stages(AgentConfig("helper", definition=definition, model=model)) as (helper,):
            run = await helper.ended(await helper.start("echo: x"))
            metrics = (await helper.http.get("/metrics")).text
    assert run["status"] == "completed", run
    assert run["answer"] == "It is x, says the second."
    lines = [li for li in metrics.splitlines() if li.startswith("diptych_model_calls_total{")]
    assert any('model="m",outcome="error"' in li for li in lines), lines
    assert any('model="second",outcome="ok"' in li for li in lines), lines
