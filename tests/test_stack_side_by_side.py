"""One run, read side by side as a chat, as events and as an A2A task: all see the same answer."""

import asyncio
import json
from typing import Any

import pytest
from support.stack import Stage, box, call, frames, stage

from diptych.core.run_settings import RunSettings

pytestmark = pytest.mark.asyncio

ANSWER = "It is 3, and 🤝 nothing (Grüße) else. " * 4
NATIVE = {"tool_calls": [{"name": "add", "arguments": {"a": 1, "b": 2}}], "reasoning": "I add."}
DEEP = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "allOf": [{"$ref": "#/$defs/named"}, {"required": ["parts"]}],
    "properties": {"parts": {"type": "array", "items": {"$ref": "#/$defs/part"}, "minItems": 1}},
    "$defs": {
        "named": {"properties": {"name": {"type": "string", "minLength": 2}}, "required": ["name"]},
        "part": {"allOf": [{"$ref": "#/$defs/named"}], "properties": {"of": {"$ref": "#"}}},
    },
}
WRONG = [
    {"name": "ab"},
    {"name": "ab", "parts": [{"name": "a"}]},
    {"name": "ab", "parts": [{"name": "cd", "of": {"name": "ef"}}]},
]
RIGHT = {"name": "ab", "parts": [{"name": "cd", "of": {"name": "ef", "parts": [{"name": "gh"}]}}]}


class Adder:
    """A tool that adds two numbers once the last reader is there."""

    def __init__(self) -> None:
        self.may_go_on = asyncio.Event()

    async def add(self, a: int, b: int) -> int:
        """Add two numbers."""
        await self.may_go_on.wait()
        return a + b


async def a2a_task(helper: Stage, run_id: str, adder: Adder) -> dict[str, Any]:
    """Follow a run as its A2A task from before its answer on, and give the task at its end."""
    headers = {"A2A-Version": "1.0"}
    asked = {"jsonrpc": "2.0", "id": 1, "params": {"id": run_id}}
    heard = ""
    body = {**asked, "method": "SubscribeToTask"}
    async with helper.http.stream("POST", "/a2a", json=body, headers=headers) as stream:
        async for text in stream.aiter_text():
            adder.may_go_on.set()
            heard += text
    pieces = [f.json["result"] for f in frames(heard.replace("\r\n", "\n"))]
    updates = [p["artifactUpdate"]["artifact"]["parts"] for p in pieces if "artifactUpdate" in p]
    body = {**asked, "method": "GetTask"}
    whole = await helper.http.post("/a2a", json=body, headers=headers)
    task: dict[str, Any] = whole.json()["result"]
    return {"task": task, "streamed": [part for parts in updates for part in parts]}


def text_in(parts: list[dict[str, Any]]) -> str:
    return "".join(part.get("text", "") for part in parts)


async def read_side_by_side(helper: Stage, adder: Adder, **fields: Any) -> dict[str, Any]:
    """Begin a chat, and follow its run in the two other ways while it goes on."""
    body = {"messages": [{"role": "user", "content": "hi"}], "stream": True, **fields}
    chat = asyncio.create_task(helper.http.post("/v1/chat/completions", json=body))
    run_id = ""
    while not run_id:
        await asyncio.sleep(0.02)
        runs = (await helper.http.get("/v1/runs")).json()["data"]
        run_id = runs[0]["id"] if runs else ""
    events, task, response = await asyncio.gather(
        helper.http.get(f"/v1/runs/{run_id}/events"), a2a_task(helper, run_id, adder), chat
    )
    deltas = [c["delta"] for f in frames(response.text)[:-1] for c in f.json["choices"]]
    told = [f.json for f in frames(events.text)]
    (final,) = [e["content"] for e in told if e.get("event_type") == "agent_response"]
    artifact = [part for a in task["task"]["artifacts"] for part in a["parts"]]
    return {
        "chat": "".join(delta.get("content") or "" for delta in deltas),
        "texts": "".join(str(e["content"]) for e in told if e.get("event_type") == "text"),
        "event": final,
        "streamed task": text_in(task["streamed"]),
        "task": text_in(artifact),
        "run": (await helper.run(run_id))["answer"],
        "data": [part["data"] for part in artifact if "data" in part],
    }


@pytest.mark.parametrize("mode", ["separate", "direct"])
async def test_a_native_run_is_the_same_for_three_readers(mode: Any) -> None:
    replies = [NATIVE, *(["I know."] if mode == "separate" else [])]
    loop = RunSettings(action_format="native", answer_mode=mode)
    slow = {"content": ANSWER, "chunk_ms": 20}
    adder = Adder()
    async with stage(*replies, slow, tools=(box(adder.add),), loop=loop) as helper:
        seen = await read_side_by_side(helper, adder)
    assert seen.pop("data") == []
    assert seen == dict.fromkeys(seen, ANSWER)


async def test_a_structured_run_is_the_same_for_three_readers() -> None:
    answers = [json.dumps(WRONG[0]), f"Here:\n```json\n{json.dumps(RIGHT)}\n```"]
    response_format = {"type": "json_schema", "json_schema": {"name": "x", "schema": DEEP}}
    adder = Adder()
    async with stage(call("add", a=1, b=2), "{}", *answers, tools=(box(adder.add),)) as helper:
        seen = await read_side_by_side(helper, adder, response_format=response_format)
    assert seen.pop("data") == [RIGHT]
    assert seen == dict.fromkeys(seen, json.dumps(RIGHT))
