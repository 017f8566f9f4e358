"""A store that is killed with -9 while native calls are under way: none is made a second time."""

import asyncio
import json
import random
from pathlib import Path

import pytest
from aiohttp import web
from support.model_server import Exchange, model_server
from support.orders import Charges, answer, say_slowly
from support.pods import SERVE, all_ready
from support.scene import Scene, orders, scene, tell

MOST_SECONDS = 200.0
RUNS, KILLS, USUAL = 8, 2, 8.0
AGENT = """
apiVersion: diptych.dev/v1alpha1
kind: Agent
metadata: {{name: durable}}
spec:
  model: {{name: m, endpoint: "{model}", actionFormat: native}}
  tools: [{{name: box, url: "{tools}"}}]
  sessions: {{redis: {{urlFrom: {{secretKeyRef: {{name: redis, key: url}}}}}}}}
"""
ALWAYS = ("--appendonly", "yes", "--appendfsync", "always")  # what was written is on the disk

pytestmark = pytest.mark.timeout(400)  # more than MOST_SECONDS, and the start of the pods


async def take(exchange: Exchange) -> web.StreamResponse:
    """Charge and look at once, thinking; then answer."""
    messages = exchange.body["messages"]
    key = next(m["content"] for m in messages if m["role"] == "user").partition("\n")[0]
    await asyncio.sleep(0.3)
    if "tools" not in exchange.body:
        return await say_slowly(exchange, answer(key), 0.05)
    if any(message["role"] == "tool" for message in messages):
        return await exchange.say("I know.")
    calls = [
        {"id": name, "type": "function", "function": {"name": name, "arguments": arguments}}
        for name, arguments in dict.fromkeys(("charge", "look"), json.dumps({"key": key})).items()
    ]
    message = {"role": "assistant", "content": None, "reasoning_content": "I charge, and look."}
    choice = {"index": 0, "finish_reason": "tool_calls", "message": message | {"tool_calls": calls}}
    return web.json_response({"choices": [choice]})


async def test_no_native_call_is_made_twice_though_the_store_is_killed(
    tools: Charges, tmp_path: Path
) -> None:
    draw = random.Random(11)
    async with model_server(take) as model:
        manifest = tmp_path / "agent.yaml"
        manifest.write_text(AGENT.format(model=model.url, tools=tools.url))
        command = (*SERVE, str(manifest))
        async with (
            scene(*ALWAYS, tools=tools, command=command) as on,
            asyncio.timeout(MOST_SECONDS),
        ):
            async with asyncio.TaskGroup() as group:
                given = group.create_task(
                    orders(on, "native", RUNS, seconds=USUAL, within=MOST_SECONDS)
                )
                for _ in range(KILLS):
                    await asyncio.sleep(draw.uniform(0.3, 1.5))
                    if not given.done():
                        await kill_store(on, draw.uniform(0.0, 1.0))
            await all_ready(on.pods)
            await on.reckon()
            keys = [e["key"] for e in tools.history() if "native-" in str(e["key"])]
    charged = [key for key in keys if str(key).startswith("charge")]
    assert len(charged) == len(set(charged)) == RUNS
    assert any("tools" in request for request in model.requests)


async def kill_store(on: Scene, away: float) -> None:
    """Kill the store, and start it again after so many seconds."""
    await asyncio.to_thread(on.redis.kill)
    on.trouble("kill -9 redis", away + USUAL)
    await asyncio.sleep(away)
    await asyncio.to_thread(on.redis.start)
    tell(f"the store was away for {away:.1f} s")
