"""A person at a terminal, and two real replicas on one Redis of which one ends."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import httpx
import pytest
from support.pods import PodProcess, all_ready, pod_processes
from support.redis_server import redis_server

TEXT = " ".join(f"word{n}" for n in range(40))
SCRIPT = json.dumps(["{}", {"chunk_ms": 100, "content": TEXT}])
TAKEN_OVER = "! another process has taken the run over"

pytestmark = [pytest.mark.skipif(sys.platform == "win32", reason="sends signals"), pytest.mark.long]


@pytest.fixture(scope="module")
def processes() -> Iterator[list[PodProcess]]:
    grace = {"SHUTDOWN_GRACE_SECONDS": "0"}
    with (
        redis_server() as redis,
        pod_processes(redis.url, DEBUG_MOCK_RESPONSES=SCRIPT, **grace) as pods,
    ):
        yield pods


@pytest.fixture
async def pods(processes: list[PodProcess]) -> list[PodProcess]:
    for pod in processes:
        if not pod.is_running:
            pod.start()
    await all_ready(processes)
    return processes


@asynccontextmanager
async def typed(*words: str) -> AsyncIterator[Process]:
    """Type a command; it is ended with the block."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "diptych", *words),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
        env={"PATH": os.defpath, "HOME": os.environ.get("HOME", "/")},
    )
    try:
        async with asyncio.timeout(60):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def start_run(pod: PodProcess) -> str:
    """Start a run, and give its id."""
    async with httpx.AsyncClient(trust_env=False) as http:
        reply = await http.post(f"{pod.url}/v1/runs", json={"input": "Count"})
        return str(reply.json()["id"])


async def read_until(process: Process, word: str) -> str:
    """Read the answer up to a word."""
    assert process.stdout
    return (await process.stdout.readuntil(word.encode())).decode()


async def read_rest(process: Process) -> tuple[str, list[str]]:
    """Read what is left: the answer, and the lines of stderr."""
    out, err = await process.communicate()
    return out.decode(), err.decode().splitlines()


async def test_a_run_whose_owner_is_killed_is_shown_to_its_end(pods: list[PodProcess]) -> None:
    owner, other = pods
    run = await start_run(owner)
    async with typed("attach", run, "--at", other.url) as attached:
        seen = await read_until(attached, "word9 ")
        owner.kill()
        out, err = await read_rest(attached)
    assert seen + out == TEXT + "\n"
    assert err[0].endswith("Count")
    assert err[1] == TAKEN_OVER
    assert err[2].startswith("✓ done in ")
    assert attached.returncode == 0


async def test_ctrl_c_in_attach_prints_the_command_that_attaches_again(
    pods: list[PodProcess],
) -> None:
    owner, other = pods
    run = await start_run(owner)
    async with typed("attach", run, "--at", other.url) as attached:
        await read_until(attached, "word9 ")
        attached.send_signal(signal.SIGINT)
        _, err = await read_rest(attached)
    assert attached.returncode == 130
    hint, command = err[-1].removesuffix("`").split("`")
    assert hint == "! the run may still go on; see it with "
    program, *words = command.split()
    assert program == "diptych"
    async with typed(*words) as again:
        out, err = await read_rest(again)
    assert (out, again.returncode) == (TEXT + "\n", 0)
    assert err[-1].startswith("✓ done in ")
