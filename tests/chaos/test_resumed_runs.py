"""Runs whose owner is killed with -9, that fail then, and that are resumed: issue 11, part 11."""

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web
from support.model_server import Exchange, model_server
from support.orders import Charges, order_agent, say_slowly
from support.scene import Scene, scene
from support.stack import until

pytestmark = pytest.mark.timeout(300)


class FragileModel:
    """Charges once for each question, then answers; while it is ill it refuses every answer."""

    def __init__(self) -> None:
        self.is_ill = True

    async def take(self, exchange: Exchange) -> web.StreamResponse:
        messages = exchange.body["messages"]
        key = next(m["content"] for m in messages if m["role"] == "user").partition("\n")[0]
        await asyncio.sleep(0.2)
        if exchange.is_phase_2:
            if self.is_ill:
                return web.json_response({"error": {"message": "ill"}}, status=400)
            return await say_slowly(exchange, f"charged {key}", 0.01)
        has_charged = any("charge" in m["content"] for m in messages if m["role"] == "assistant")
        call = {"tool": "charge", "arguments": {"key": key}}
        return await exchange.say(json.dumps({} if has_charged else call))


async def test_no_call_is_made_twice_by_killed_failed_and_resumed_runs(tools: Charges) -> None:
    fragile = FragileModel()
    async with model_server(fragile.take) as model:
        async with scene(tools=tools, **order_agent(model, tools)) as on:
            callers = [on.caller(f"c{n}", n) for n in range(6)]
            keys = [f"resumed {n}" for n in range(6)]
            runs = [await c.start(key, 30.0) for c, key in zip(callers, keys, strict=True)]
            await until(lambda: len(_charged(tools, keys)) >= 2, 30)  # some are in their call
            on.pods[0].kill()
            on.trouble("kill -9", 30.0)
            on.pods[0].start()
            await on.pods[0].ready()
            before = await on.logs()
            assert {log[-1].event for log in before.values()} == {"failed"}
            charged = _charged(tools, keys)
            fragile.is_ill = False
            resumed = []
            for run, pod in zip(runs, on.pods * 3, strict=True):
                async with on.http.post(f"{pod.url}/v1/runs/{run}/resume") as response:
                    assert response.status == 202, await response.text()
                    resumed.append((await response.json())["id"])
            for run in resumed:
                await until(lambda run=run: _has_ended(on, run), 30)
            assert _charged(tools, keys) == charged
            assert len(charged) == len(set(charged))  # each at most once
            views = [await _view(on, run) for run in resumed]
    assert [view["status"] for view in views] == ["completed"] * 6
    assert [view["answer"] for view in views] == [f"charged {key}" for key in keys]


def _charged(tools: Charges, keys: list[str]) -> list[str]:
    said = (event["key"] for event in tools.history() if event["kind"] == "tool_started")
    return [key for text in said for key in keys if text.endswith(key)]


async def _view(on: Scene, run: str) -> dict[str, Any]:
    async with on.http.get(f"{on.pods[1].url}/v1/runs/{run}") as response:
        return await response.json()


async def _has_ended(on: Scene, run: str) -> bool:
    return (await _view(on, run))["status"] in {"completed", "failed"}
