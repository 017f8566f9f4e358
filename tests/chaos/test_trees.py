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
from support.stack import Stage, agent, box, call, frames, stage, stages
from support.trees import delegates_to, differences, recorded, said, told

from diptych.manifest.settings import PeerConfig
from diptych.policy.rules import Policy, Rule

PATIENCE = 120.0  # seconds; a takeover takes 10 and more, on a machine that has other work
ASK = Policy((Rule("tool", "pay", "ask"),))

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


async def test_what_waits_below_a_middle_that_dies_is_decided_at_the_top(tmp_path: Path) -> None:
    paid = list[int]()

    async def pay() -> str:
        """Pay."""
        paid.append(1)
        return "paid"

    replies = [said(call("pay")), said("{}"), said("Leaf.")]
    async with (
        stage(*replies, name="leaf", tools=(box(pay),), policy=ASK) as leaf,
        middle(leaf, tmp_path, 1) as (pod,),
    ):
        peer = PeerConfig("middle", pod.url, share_context=True)
        # What happens below is told live alone: whoever follows must have come before.
        delegates = said(delegates_to("middle"), delay_ms=1000)
        top_config = agent(delegates, said("{}"), said("Top."), name="top", agents=(peer,))
        async with stages(top_config) as (top,):
            run_id = await top.start()
            following = asyncio.create_task(told(top, run_id))

            await reaches(lambda: top.run(run_id), "input-required")
            pod.kill()
            pod.start()
            await pod.ready(PATIENCE)
            call_id = "call_1_1.call_1_1.call_1_1"

            async def is_decided() -> bool:
                path = f"/v1/runs/{run_id}/approvals/{call_id}"
                reply = await top.http.post(path, json={"decision": "approve"}, timeout=60)
                assert reply.status_code in {200, 202, 409, 503}, reply.text
                return reply.status_code != 503

            await until_patiently(is_decided)
            await reaches(lambda: top.run(run_id), "completed")
            assert paid == [1]
            assert "delegation_response" in await top.facts()
            (below,) = (await leaf.http.get("/v1/runs")).json()["data"]
            (between,) = (await got(pod, "/v1/runs"))["data"]
            records = {
                ("call_1_1",): await got(pod, f"/v1/runs/{between['id']}/events"),
                ("call_1_1", "call_1_1"): await recorded(leaf, below["id"]),
            }
            # Of the middle nothing is missing; of the leaf what it did while nobody passed it on.
            wrong = differences(await following, records)
            assert [each for each in wrong if not each.endswith("not told")] == []
            assert [each for each in wrong if each.startswith("('call_1_1',)")] == []
