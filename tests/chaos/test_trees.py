"""Trees of agents whose middle dies: what is below goes on, and what is above sees it."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.pods import SERVE, PodProcess, pod_processes
from support.redis_server import redis_server
from support.stack import Stage, box, call, frames, stage
from support.trees import delegates_to, said

PATIENCE = 120.0  # seconds; a takeover takes 10 and more, on a machine that has other work

pytestmark = pytest.mark.timeout(500)


def manifest() -> str:
    """A middle agent that delegates to the leaf once."""
    replies = [delegates_to("leaf"), "{}", "Middle is done."]
    spec = {
        "agents": [{"name": "leaf"}],
        "sessions": {"redis": {"urlFrom": {"secretKeyRef": {"name": "redis", "key": "url"}}}},
        "container": {"env": [{"name": "DEBUG_MOCK_RESPONSES", "value": json.dumps(replies)}]},
    }
    head = {"apiVersion": "diptych.dev/v1alpha1", "kind": "Agent", "metadata": {"name": "middle"}}
    return json.dumps({**head, "spec": spec})


@asynccontextmanager
async def middle(leaf: Stage, folder: Path, count: int) -> AsyncIterator[list[PodProcess]]:
    file = folder / "agent.yaml"
    file.write_text(manifest())
    with (
        redis_server() as redis,
        pod_processes(
            redis.url, count=count, command=(*SERVE, str(file), "--service", f"leaf={leaf.url}")
        ) as pods,
    ):
        await asyncio.gather(*(pod.ready(PATIENCE) for pod in pods))
        yield pods


async def got(pod: PodProcess, path: str) -> Any:
    """Ask a pod, over a connection of its own; gives JSON, or the events of a stream."""
    async with aiohttp.ClientSession() as http, http.get(pod.url + path) as reply:
        if reply.content_type != "text/event-stream":
            return await reply.json()
        return [frame.json for frame in frames(await reply.text()) if frame.id]


async def until_patiently(claim: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await claim():  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def reaches(run: Callable[[], Awaitable[Any]], status: str) -> None:
    """Wait until a run, as it is read each time, has a status."""

    async def has_it() -> bool:
        return bool((await run())["status"] == status)

    await until_patiently(has_it)


async def test_a_new_owner_goes_on_with_the_task_that_its_predecessor_sent(tmp_path: Path) -> None:
    gate, calls = asyncio.Event(), list[int]()

    async def work() -> str:
        """Work until it is over."""
        calls.append(1)
        await gate.wait()
        return "worked"

    replies = [said(call("work")), said("{}"), said("Leaf.")]
    async with (
        stage(*replies, name="leaf", tools=(box(work),)) as leaf,
        middle(leaf, tmp_path, 2) as (one, two),
    ):
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"{one.url}/v1/runs", json={"input": "go"}) as reply,
        ):
            run_id = (await reply.json())["id"]

        async def works() -> bool:
            return bool(calls)

        await until_patiently(works)
        one.kill()

        async def is_taken_over() -> bool:
            return bool((await got(two, f"/v1/runs/{run_id}"))["last_seq"] > 4)

        await until_patiently(is_taken_over)
        gate.set()
        await reaches(lambda: got(two, f"/v1/runs/{run_id}"), "completed")
        events = (await got(two, "/memory/events"))["events"]
        (down,) = [e for e in events if e["event_type"].startswith("delegation_re")][1:]
        assert (down["event_type"], down["content"]) == ("delegation_response", "Leaf.")
        (below,) = (await leaf.http.get("/v1/runs")).json()["data"]
        assert down["metadata"]["child"]["task_id"] == below["id"]
        assert below["status"] == "completed"
        assert calls == [1]
