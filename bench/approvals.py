"""What calls cost that wait for approval: memory for each, and CPU while nobody decides.

Each waits in a run and session of its own. In the end all are decided on.
"""

import asyncio
import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import aiohttp

from bench.processes import ROOT, Backends, Peer, await_ready, free_port, started
from bench.report import table

sys.path.append(str(ROOT / "tests"))

from support.redis_server import redis_server

WAITING = 1_000
SECONDS = 20.0  # of waiting that are measured
AT_ONCE = 20
CALL = "call_1_1"
_SCRIPT = [json.dumps({"tool": "echo", "arguments": {"text": "5 coins"}}), "{}", "Done."]


async def measure(behind: Backends) -> str:
    """Measure, in memory and in Redis, and give a table."""
    rows = [["memory", *await _measured(behind, "")]]
    with redis_server() as redis:
        rows.append(["Redis", *await _measured(behind, redis.url)])
    head = ["runs are in", "before, MB", f"with {WAITING:,} that wait, MB", "more, MB"]
    return table([*head, f"CPU in {SECONDS:g} s, ms", "idle before, ms"], rows)


async def _measured(behind: Backends, redis: str) -> list[str]:
    with _agent(behind, redis) as pod:
        base = f"http://127.0.0.1:{pod.port}"
        async with aiohttp.ClientSession(base) as http:
            await _decide(http, await _ask(http))  # what is loaded by the first run
            idle = await _cpu(pod)
            before = pod.memory()
            limit = asyncio.Semaphore(AT_ONCE)

            async def ask() -> str:
                async with limit:
                    return await _ask(http)

            runs = await asyncio.gather(*(ask() for _ in range(WAITING)))
            waiting = pod.memory()
            busy = await _cpu(pod)
            for run in runs:
                await _decide(http, run)
    numbers = before, waiting, waiting - before, busy * 1e3, idle * 1e3
    return [f"{number:.0f}" for number in numbers]


async def _ask(http: aiohttp.ClientSession) -> str:
    """Begin a run, and wait until its call waits."""
    async with http.post("/v1/runs", json={"input": "Pay."}) as reply:
        run = str((await reply.json())["id"])
    while True:
        async with http.get(f"/v1/runs/{run}") as reply:
            if (await reply.json())["status"] == "input-required":
                return run
        await asyncio.sleep(0.05)


async def _decide(http: aiohttp.ClientSession, run: str) -> None:
    path = f"/v1/runs/{run}/approvals/{CALL}"
    async with http.post(path, json={"decision": "approve"}) as reply:
        assert reply.status == 200, await reply.text()


async def _cpu(pod: Peer) -> float:
    began = pod.cpu()
    await asyncio.sleep(SECONDS)
    return pod.cpu() - began


@contextlib.contextmanager
def _agent(behind: Backends, redis: str) -> Iterator[Peer]:
    store = {"redis": {"urlFrom": {"secretKeyRef": {"name": "redis", "key": "url"}}}}
    spec = {
        "tools": [{"name": "box", "url": behind.tools_url}],
        "policy": [{"match": {"tool": "echo"}, "do": "ask", "expires": "1h"}],
        "container": {"env": [{"name": "DEBUG_MOCK_RESPONSES", "value": json.dumps(_SCRIPT)}]},
        **({"sessions": store} if redis else {}),
    }
    head = {"apiVersion": "diptych.dev/v1alpha1", "kind": "Agent", "metadata": {"name": "bench"}}
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "agent.yaml"
        file.write_text(json.dumps({**head, "spec": spec}))
        command = [sys.executable, "-m", "diptych", "serve", str(file)]
        environ = {"PORT": str(port), "REDIS_URL": redis}
        with started("approvals", command, environ, says_port=False) as peer:
            peer.port = port
            await_ready(port)
            yield peer
