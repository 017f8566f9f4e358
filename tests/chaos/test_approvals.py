"""Calls that wait for a decision, while the pod that asked for it dies."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.orders import Charges
from support.pods import SERVE, PodProcess, pod_processes
from support.redis_server import redis_server

PATIENCE = 120.0  # seconds; a takeover takes 10 and more, on a machine that has other work
CALL = "call_1_1"
APPROVE = {"decision": "approve"}

pytestmark = pytest.mark.timeout(500)


def manifest(tools: Charges, key: str) -> str:
    """An agent that charges once, if somebody approves."""
    charge = json.dumps({"tool": "charge", "arguments": {"key": key}})
    spec = {
        "tools": [{"name": "box", "url": tools.url}],
        "policy": [{"match": {"tool": "charge"}, "do": "ask"}],
        "loop": {"deadline": "10s"},
        "sessions": {"redis": {"urlFrom": {"secretKeyRef": {"name": "redis", "key": "url"}}}},
        "container": {
            "env": [
                {"name": "DEBUG_MOCK_RESPONSES", "value": json.dumps([charge, "{}", "All done."])}
            ]
        },
    }
    head = {"apiVersion": "diptych.dev/v1alpha1", "kind": "Agent", "metadata": {"name": "durable"}}
    return json.dumps({**head, "spec": spec})


class Cashier:
    """Two pods of that agent, and who asks them."""

    def __init__(self, pods: list[PodProcess], http: aiohttp.ClientSession) -> None:
        self.one, self.other = pods
        self.http = http

    async def ask(self) -> str:
        """Ask the first pod, and wait until the call waits; gives the run's id."""
        async with self.http.post(f"{self.one.url}/v1/runs", json={"input": "pay"}) as reply:
            run_id: str = (await reply.json())["id"]
        await self.until(self.one, run_id, "input-required")
        return run_id

    async def run(self, pod: PodProcess, run_id: str) -> Any:
        async with self.http.get(f"{pod.url}/v1/runs/{run_id}") as reply:
            return await reply.json()

    async def until(self, pod: PodProcess, run_id: str, status: str) -> Any:
        async with asyncio.timeout(PATIENCE):
            while (run := await self.run(pod, run_id)).get("status") != status:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        return run

    async def decide(self, pod: PodProcess, run_id: str, body: Any) -> tuple[int, Any]:
        """Decide, again and again while the run has no owner."""
        async with asyncio.timeout(PATIENCE):
            while True:
                path = f"{pod.url}/v1/runs/{run_id}/approvals/{CALL}"
                async with self.http.post(path, json=body) as reply:
                    if reply.status != 503:
                        return reply.status, await reply.json()
                await asyncio.sleep(0.2)

    async def types(self, pod: PodProcess, run_id: str) -> list[str]:
        path = f"{pod.url}/memory/events"
        async with self.http.get(path) as reply:
            events = (await reply.json())["events"]
        return [each["event_type"] for each in events if each["run_id"] == run_id]


@asynccontextmanager
async def cashier(tools: Charges, key: str, folder: Path) -> AsyncIterator[Cashier]:
    file = folder / "agent.yaml"
    file.write_text(manifest(tools, key))
    with (
        redis_server() as redis,
        pod_processes(redis.url, command=(*SERVE, str(file))) as pods,
    ):
        async with aiohttp.ClientSession() as http:
            await asyncio.gather(*(pod.ready(PATIENCE) for pod in pods))
            yield Cashier(pods, http)


def charged(tools: Charges, key: str) -> int:
    return sum(event["key"] == f"charge {key}" for event in tools.history())


async def test_the_first_decision_at_any_replica_counts_also_when_its_owner_has_died(
    tools: Charges, tmp_path: Path
) -> None:
    async with cashier(tools, "once", tmp_path) as at:
        await decided_by_several(at, tools)
        before = charged(tools, "once")
        run_id = await at.ask()
        at.one.kill()
        waiting = await at.run(at.other, run_id)
        assert (waiting["status"], waiting["approvals"][0]["status"]) == (
            "input-required",
            "waiting",
        )
        assert charged(tools, "once") == before
        status, approval = await at.decide(at.other, run_id, APPROVE)
        assert (status, approval["decision"]) == (200, "approve"), approval
        ended = await at.until(at.other, run_id, "completed")
        assert ended["answer"] == "All done."
        assert charged(tools, "once") == before + 1
        assert await at.types(at.other, run_id) == [
            *("user_message", "approval_requested", "approval_decided"),
            *("tool_call", "tool_result", "agent_response"),
        ]


async def decided_by_several(at: Cashier, tools: Charges) -> None:
    run_id = await at.ask()
    replies = await asyncio.gather(
        *(at.decide(pod, run_id, APPROVE) for pod in (at.one, at.other, at.other)),
        at.decide(at.one, run_id, {"decision": "reject"}),
    )
    assert sorted(status for status, _ in replies) == [200, 409, 409, 409]
    (won,) = [reply["decision"] for status, reply in replies if status == 200]
    late = [reply["error"]["message"] for status, reply in replies if status == 409]
    assert all(f"already decided: {won} by somebody" in message for message in late), late
    await at.until(at.other, run_id, "completed")
    types = await at.types(at.one, run_id)
    assert types.count("approval_decided") == 1
    assert charged(tools, "once") == types.count("tool_call")
