"""The trace of a run whose owner is killed, and collectors that are dead, slow or hostile."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from aiohttp import web
from support.collector import collector
from support.model_server import ModelServer, model_server, silence, status
from support.pods import PodProcess, all_ready, pod_processes
from support.redis_server import RedisServer, redis_server
from support.stack import call, tool_server

FAILS_ONCE = (status(503, '{"error": {"message": "overloaded"}}'),)
QUESTION = {"input": "What is it?"}


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


async def look() -> str:
    """Look."""
    return "42"


@asynccontextmanager
async def pods(
    redis: RedisServer, model: ModelServer, endpoint: str, count: int = 2, **environ: str
) -> AsyncIterator[tuple[list[PodProcess], httpx.AsyncClient]]:
    """Start replicas of an agent that has one tool, and sends traces there."""
    async with tool_server(look) as tools, httpx.AsyncClient(timeout=60) as http:
        with pod_processes(
            redis.url,
            count,
            AGENT_NAME="traced",
            MODEL_API_URL=model.url,
            MODEL_NAME="m",
            MCP_SERVERS="box",
            MCP_SERVER_BOX_URL=tools.url or "",
            OTEL_EXPORTER_OTLP_ENDPOINT=endpoint,
            OTEL_BSP_SCHEDULE_DELAY="20",
            SHUTDOWN_GRACE_SECONDS="1",
            **environ,
        ) as processes:
            await all_ready(processes)
            yield processes, http


async def start(http: httpx.AsyncClient, pod: PodProcess) -> str:
    started = await http.post(f"{pod.url}/v1/runs", json=QUESTION)
    assert started.status_code == 202, started.text
    return str(started.json()["id"])


async def ended(http: httpx.AsyncClient, pod: PodProcess, run_id: str) -> str:
    await http.get(f"{pod.url}/v1/runs/{run_id}/events")
    return str((await http.get(f"{pod.url}/v1/runs/{run_id}")).json()["status"])


async def test_a_run_that_another_process_goes_on_with_has_one_trace(redis: RedisServer) -> None:
    async with (
        collector() as traces,
        model_server(*FAILS_ONCE, call("box__look"), silence, "{}", "It is 42.") as model,
        pods(redis, model, traces.url) as ((owner, heir), http),
    ):
        run_id = await start(http, owner)
        await traces.until(lambda spans: any(s.name.startswith("execute_tool") for s in spans))
        while len(model.requests) < 3:
            model.asked.clear()
            await model.asked.wait()
        owner.kill()
        assert await ended(http, heir, run_id) == "completed"
        run = await traces.run("traced")
        heir.terminate()
        assert await heir.exited(10) == 0
        assert any(f'"trace_id":"{run.trace_id}"' in line for line in owner.grep("is unavailable"))
        assert not any("trace_id" in line for line in owner.grep("listens at"))
    below = traces.below(run)
    assert [span.name for span in below] == [
        "chat m",
        "execute_tool box__look",
        "taken over",
        "chat m",
        "chat m",
    ]
    assert run.attributes["diptych.run.owner_changes"] == 1
    assert run.attributes["gen_ai.usage.input_tokens"] == 30
    assert {span.trace_id for span in traces.spans} == {run.trace_id}
    assert len({span.span_id for span in traces.spans}) == len(traces.spans)
    assert [span.name for span in traces.spans].count("invoke_agent traced") == 1
    _, tool, gap, third, _ = below
    assert tool.end <= gap.start < gap.end <= third.start
    assert gap.end - gap.start > 1e9, "the owner's lease had to run out"


async def hang(_: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    return web.Response()


async def wait_longer(_: web.Request) -> web.StreamResponse:
    return web.Response(status=503, text="sesame " * 10_000, headers={"Retry-After": "3600"})


@pytest.mark.parametrize("answer", [hang, wait_longer])
async def test_no_run_waits_for_a_collector_and_neither_does_the_end(
    redis: RedisServer, answer: Any
) -> None:
    async with collector() as traces, model_server("{}", "Hello!") as model:
        traces.answer = answer
        async with pods(redis, model, traces.url, count=1) as ((pod,), http):
            model.steps = ["{}", "Hello!"] * 10
            before = pod.memory
            for _ in range(8):
                assert await ended(http, pod, await start(http, pod)) == "completed"
            assert pod.memory < before + 30
            pod.terminate()
            assert await pod.exited(9) == 0
            assert "Traceback" not in pod.tail(100_000)
            assert "sesame" not in pod.tail(100_000)
            assert len(pod.grep("accepts no traces")) == (answer is wait_longer)
            assert len(pod.grep("the last spans are lost")) == (answer is hang)
