"""A run is cancelled while something hangs: it ends at once, once, and what hangs is stopped.

The tools' servers, the model's, and the agents below are servers of their own, most of them
processes of their own.
"""

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.model_server import model_server, silence, stalls
from support.pods import SERVE, SERVERS, PodProcess
from support.redis_server import free_port
from support.stack import Stage, agent, call, stage, stages, until
from support.trees import delegates_to

from diptych.manifest.settings import PeerConfig, TimeoutConfig, ToolServerConfig

pytestmark = pytest.mark.long

AT_ONCE = 1.0  # second, as loop.md §6 has it
PATIENT = TimeoutConfig(connect=1, first_byte=30, idle=30, total=30)
HANGING = str(SERVERS / "hanging_tools.py")
STARTS = {"tool_call", "delegation_request", "approval_requested"}
RESULTS = {"tool_result", "tool_error", "delegation_response", "delegation_error"}
TERMINAL = {"completed", "failed", "aborted", "max_steps"}


class Notes:
    """What a process of `hanging_tools.py` has written down."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def at(self, what: str) -> float | None:
        """Give when something was written down first."""
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        found = [float(line.split()[1]) for line in lines if line.startswith(what)]
        return found[0] if found else None

    async def started(self) -> None:
        await until(lambda: self.at("started"), 30)

    async def stopped_after(self, began: float) -> float:
        """Wait until the hanging call was stopped; gives after how many seconds."""
        await until(lambda: self.at("cancelled"), 10)
        return (self.at("cancelled") or 0) - began


@contextmanager
def hanging_process(file: Path) -> Iterator[tuple[ToolServerConfig, subprocess.Popen[bytes]]]:
    port = free_port()
    process = subprocess.Popen([sys.executable, HANGING, str(file), str(port)])
    try:
        yield ToolServerConfig("box", url=f"http://127.0.0.1:{port}/mcp"), process
    finally:
        process.kill()
        process.wait()


@contextmanager
def tools_over_http(file: Path) -> Iterator[ToolServerConfig]:
    with hanging_process(file) as (server, _):
        yield server


@contextmanager
def tools_over_stdio(file: Path) -> Iterator[ToolServerConfig]:
    yield ToolServerConfig("box", command=(sys.executable, HANGING, str(file)))


async def cancelled(at: Stage, run_id: str) -> tuple[float, dict[str, Any]]:
    """Cancel a run; gives when it began to be, and the run as it is then, ended within 1 s."""
    began = time.monotonic()
    reply = await at.http.post(f"/v1/runs/{run_id}/cancel")
    took = time.monotonic() - began
    assert (reply.status_code, reply.json()["status"]) == (200, "aborted"), reply.text
    assert took < AT_ONCE
    await _ended_well(at, run_id)
    return began, reply.json()


async def _ended_well(at: Stage, run_id: str) -> None:
    """Check that a run has one terminal event, the last, and each started call one result."""
    events = [e for e in await at.memory() if e["run_id"] == run_id]
    types = [e["event_type"] for e in events]
    assert types.count("aborted") == 1, types
    assert not TERMINAL & set(types[:-1]), types
    calls = [e["metadata"]["call_id"] for e in events if e["event_type"] in STARTS]
    results = [e["metadata"]["call_id"] for e in events if e["event_type"] in RESULTS]
    assert sorted(calls) == sorted(results), types


@pytest.mark.parametrize("tools", [tools_over_http, tools_over_stdio])
async def test_a_tool_that_hangs_is_cancelled_at_its_server(tools: Any, tmp_path: Path) -> None:
    notes = Notes(tmp_path / "notes")
    with tools(notes.file) as server:
        async with stage(call("hang"), "{}", "x", tools=(server,)) as helper:
            await until(lambda: _offers(helper), 30)
            run_id = await helper.start()
            await notes.started()
            began, _ = await cancelled(helper, run_id)
            assert await notes.stopped_after(began) < AT_ONCE
            (error,) = [e for e in await helper.memory() if e["event_type"] == "tool_error"]
            assert error["metadata"]["error"] == "interrupted"


async def _offers(helper: Stage) -> bool:
    return (await helper.http.get("/ready")).json().get("missing", []) == []


async def test_a_tools_server_that_stands_still_holds_nothing_up(tmp_path: Path) -> None:
    notes = Notes(tmp_path / "notes")
    with hanging_process(notes.file) as (server, process):
        async with stage(call("hang"), "{}", "x", tools=(server,)) as helper:
            await until(lambda: _offers(helper), 30)
            run_id = await helper.start()
            await notes.started()
            process.send_signal(signal.SIGSTOP)
            began, _ = await cancelled(helper, run_id)
            process.send_signal(signal.SIGCONT)  # what it was told meanwhile has waited for it
            await notes.stopped_after(began)


@pytest.mark.parametrize(
    "steps",
    [pytest.param([silence], id="acting"), pytest.param(["{}", stalls("Once ")], id="answering")],
)
async def test_a_model_that_hangs_is_hung_up_on(steps: Sequence[Any]) -> None:
    async with model_server(*steps) as model, stage(model=model, timeouts=PATIENT) as helper:
        run_id = await helper.start()
        await until(lambda: len(model.requests) == len(steps))
        await asyncio.sleep(0.1)
        began, _ = await cancelled(helper, run_id)
        async with asyncio.timeout(AT_ONCE - (time.monotonic() - began)):
            await model.hung_up.wait()


async def _has_status(at: Stage, run_id: str, status: str) -> bool:
    return bool((await at.run(run_id))["status"] == status)


def manifest(name: str, replies: Sequence[str], **spec: Any) -> str:
    env = [{"name": "DEBUG_MOCK_RESPONSES", "value": json.dumps(replies)}]
    head = {"apiVersion": "diptych.dev/v1alpha1", "kind": "Agent", "metadata": {"name": name}}
    return json.dumps({**head, "spec": {**spec, "container": {"env": env}}})


@asynccontextmanager
async def process(
    folder: Path, name: str, content: str, *options: str
) -> AsyncIterator[PodProcess]:
    """Serve an agent of a manifest in a process of its own."""
    file = folder / f"{name}.yaml"
    file.write_text(content)
    pod = PodProcess(name, folder, {}, (*SERVE, str(file), *options))
    pod.start()
    try:
        await pod.ready()
        yield pod
    finally:
        pod.end()


@asynccontextmanager
async def tree(folder: Path) -> AsyncIterator[tuple[Stage, list[PodProcess], Notes]]:
    """An agent, its child and its grandchild, each in a process of its own; a tool hangs there."""
    notes = Notes(folder / "notes")
    hanging = [{"name": "box", "command": [sys.executable, HANGING, str(notes.file)]}]
    leaf = manifest("leaf", [call("hang"), "{}", "x"], tools=hanging)
    middle = manifest("middle", [delegates_to("leaf"), "{}", "x"], agents=[{"name": "leaf"}])
    async with (
        process(folder, "leaf", leaf) as below,
        process(folder, "middle", middle, "--service", f"leaf={below.url}") as between,
    ):
        peer = PeerConfig("middle", between.url, share_context=True)
        config = agent(delegates_to("middle"), "{}", "x", name="top", agents=(peer,))
        async with stages(config) as (top,):
            yield top, [between, below], notes


@pytest.mark.timeout(180)
async def test_a_grandchild_is_stopped_with_the_tool_that_it_calls(tmp_path: Path) -> None:
    async with tree(tmp_path) as (top, pods, notes):
        run_id = await top.start()
        await notes.started()
        began, _ = await cancelled(top, run_id)
        assert await notes.stopped_after(began) < AT_ONCE
        for pod in pods:
            async with _client(pod) as at:
                (run,) = (await at.http.get("/v1/runs")).json()["data"]
                await until(lambda at=at, run=run: _has_status(at, run["id"], "aborted"))
                await _ended_well(at, run["id"])


@asynccontextmanager
async def _client(pod: PodProcess) -> AsyncIterator[Stage]:
    async with httpx.AsyncClient(base_url=pod.url, timeout=10) as http:
        yield Stage(None, http)  # type: ignore[arg-type] - only its client is asked
