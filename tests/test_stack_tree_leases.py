"""A task whose caller died is cancelled when nobody took the caller's place in time."""

import asyncio
from typing import Any

import pytest
from support.stack import Stage, box, call, stage, until
from support.trees import said

from diptych.a2a import extension, handler

LEASE = 0.6


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extension, "MIN_LEASE", 0.1)
    monkeypatch.setattr(handler, "ATTEND_SECONDS", 0.1)


async def hang() -> str:
    """Wait for ever."""
    await asyncio.sleep(60)
    return ""


def hanging() -> Any:
    return stage(said(call("hang")), said("{}"), said("x"), name="leaf", tools=(box(hang),))


def asking(method: str, params: Any) -> Any:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


async def stream(leaf: Stage, method: str, params: Any, seconds: float) -> None:
    """Follow a task for a while, and hang up."""
    is_begun = False
    body, headers = asking(method, params), {"A2A-Version": "1.0"}
    try:
        async with (
            asyncio.timeout(10) as limit,
            leaf.http.stream("POST", "/a2a", json=body, headers=headers) as reply,
        ):
            async for _ in reply.aiter_lines():
                if not is_begun:
                    limit.reschedule(asyncio.get_running_loop().time() + seconds)
                is_begun = True
    except TimeoutError:
        pass


def message(lease: float | None) -> Any:
    about = {"lease": lease} if lease else {}
    said_ = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "go"}]}
    return {"message": {**said_, "metadata": {extension.URI: about}}}


async def run_of(leaf: Stage) -> dict[str, Any]:
    (run,) = (await leaf.http.get("/v1/runs")).json()["data"]
    return await leaf.run(run["id"])


async def test_a_task_that_is_followed_goes_on_and_one_that_is_left_is_cancelled() -> None:
    async with hanging() as leaf:
        await stream(leaf, "SendStreamingMessage", message(LEASE), 3 * LEASE)
        run = await run_of(leaf)
        assert run["status"] == "running"  # somebody was there for longer than the lease
        await stream(leaf, "SubscribeToTask", {"id": run["id"]}, 2 * LEASE)
        assert (await run_of(leaf))["status"] == "running"  # somebody else came back in time

        async def is_cancelled() -> bool:
            return (await run_of(leaf))["status"] == "aborted"

        await until(is_cancelled, 10)
        assert (
            "the agent that delegated this task is gone" in (await run_of(leaf))["error"]["message"]
        )
        errors = [e for e in await leaf.memory() if e["event_type"] == "tool_error"]
        assert [e["metadata"]["error"] for e in errors] == ["interrupted"]


async def test_a_task_without_a_lease_goes_on_alone() -> None:
    async with hanging() as leaf:
        await stream(leaf, "SendStreamingMessage", message(None), 0.1)
        await asyncio.sleep(2 * LEASE)
        assert (await run_of(leaf))["status"] == "running"
