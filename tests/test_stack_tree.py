"""A tree of agents, each served on loopback: what each record says of the others."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

from support.stack import Stage, agent, stages

from diptych.config.settings import PeerConfig

USAGE = {"prompt_tokens": 10, "completion_tokens": 2}


def delegates_to(name: str, task: str = "do it") -> str:
    return json.dumps({"agent": name, "task": task})


def said(content: str, **fields: Any) -> dict[str, Any]:
    return {"content": content, "usage": USAGE, **fields}


@asynccontextmanager
async def chain(*leaf: Any, depth: int = 3, **fields: Any) -> AsyncIterator[list[Stage]]:
    """Serve agents of which each delegates to the next one; the last is scripted with `leaf`."""
    names = [f"agent-{n}" for n in range(1, depth + 1)]
    configs = [
        agent(
            said(delegates_to(callee)),
            said("{}"),
            said(f"{name} is done."),
            name=name,
            agents=(PeerConfig(callee, callee, share_context=True),),
        )
        for name, callee in pairwise(names)
    ]
    configs.append(agent(*leaf, name=names[-1], **fields))
    async with stages(*configs) as served:
        yield served


async def records(stage: Stage, event_type: str) -> list[dict[str, Any]]:
    return [event for event in await stage.memory() if event["event_type"] == event_type]


async def test_each_record_names_the_run_above_and_the_run_below() -> None:
    async with chain(said("{}"), said("Leaf.")) as (top, middle, leaf):
        run_id = await top.start()
        run = await top.ended(run_id)
        assert run["status"] == "completed"
        (down,) = await records(top, "delegation_response")
        child = down["metadata"]["child"]
        (asked,) = await records(middle, "user_message")
        assert child["url"] == middle.url
        assert child["task_id"] == asked["run_id"]
        assert child["state"] == "completed"
        parent = {"agent": top.name, "run_id": run_id, "call_id": down["metadata"]["call_id"]}
        assert asked["metadata"]["parent"] == parent
        (below,) = await records(middle, "delegation_response")
        assert below["metadata"]["child"]["url"] == leaf.url


async def test_what_children_used_stands_beside_what_the_run_used_itself() -> None:
    async with chain(said("{}"), said("Leaf.")) as (top, middle, _):
        run = await top.ended(await top.start())
        assert run["usage"] == {"prompt_tokens": 30, "completion_tokens": 6}
        assert run["children_usage"] == {"prompt_tokens": 50, "completion_tokens": 10}
        (down,) = await records(top, "delegation_response")
        assert down["metadata"]["child"]["usage"] == run["children_usage"]
        (below,) = await records(middle, "delegation_response")
        assert below["metadata"]["child"]["usage"] == {"prompt_tokens": 20, "completion_tokens": 4}


async def test_a_child_that_fails_leaves_what_it_used_said_and_why() -> None:
    half = said("Half an answer", chunk_ms=20)
    broken = [said("{}"), {**half, "error": "it broke", "content": "Half an answer"}]
    async with chain(*broken, depth=2) as (top, _):
        await top.ended(await top.start())
        (down,) = await records(top, "delegation_error")
        child = down["metadata"]["child"]
        assert (child["state"], child["usage"]) == ("failed", USAGE)
        assert child["code"]


async def test_a_task_that_its_callers_end_cut_is_named_on_record() -> None:
    async with chain({"content": "{}", "delay_ms": 60_000}, depth=2) as (top, leaf):
        run_id = await top.start()
        async with top.http.stream("GET", f"/v1/runs/{run_id}/events") as stream:
            async for line in stream.aiter_lines():
                if line.startswith("event: delegation_request"):
                    break
        while not (runs := (await leaf.http.get("/v1/runs")).json()["data"]):
            pass
        await top.http.post(f"/v1/runs/{run_id}/cancel")
        (down,) = await records(top, "delegation_error")
        assert down["metadata"]["error"] == "interrupted"
        assert down["metadata"]["child"]["task_id"] == runs[0]["id"]
