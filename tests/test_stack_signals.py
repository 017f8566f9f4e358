"""A process that serves, and is told to end: what is under way may end, and nothing is left."""

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from support.stack import frames, script, until

SERVE = """
import asyncio, sys
from diptych.serve.process import ListenAddress, Sockets, serve_until_signal
from diptych.manifest.settings import AgentConfig

async def announce(agents):
    await agents[0].wait_for_first_connect()
    print(agents[0].url, flush=True)

config = AgentConfig("helper", mock_responses=sys.argv[1])
asyncio.run(serve_until_signal([config], Sockets(ListenAddress(port=0), 1), announce))
"""
BODY = {"messages": [{"role": "user", "content": "hi"}], "stream": True}


@contextlib.asynccontextmanager
async def process(*replies: Any) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """Serve an agent from a process of its own; gives the process and the agent's URL."""
    serving = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", SERVE, script(*replies)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert serving.stdout
    try:
        url = (await asyncio.wait_for(serving.stdout.readline(), 15)).decode().strip()
        assert url, (await serving.communicate())[1].decode()
        yield serving, url
    finally:
        if serving.returncode is None:
            serving.kill()
        await serving.communicate()


async def is_leaving(http: httpx.AsyncClient) -> bool:
    return (await http.get("/ready")).status_code == 503


async def test_a_second_signal_ends_what_is_under_way_and_says_so() -> None:
    async with (
        process("{}", {"content": "one two", "chunk_ms": 60_000}) as (serving, url),
        httpx.AsyncClient(base_url=url, timeout=10) as http,
    ):
        run_id = (await http.post("/v1/runs", json={"input": "hi"})).json()["id"]
        async with http.stream("GET", f"/v1/runs/{run_id}/events") as response:
            pieces = response.aiter_text()
            read = await anext(pieces)
            for _ in range(2):
                serving.terminate()
                await until(lambda: is_leaving(http))
            async with asyncio.timeout(3):
                read += "".join([piece async for piece in pieces])
                assert await serving.wait() == 0
        end = frames(read)[-1]
        assert end.event == "aborted"
        assert "shutting down" in json.loads(end.data)["content"]


async def test_a_connection_that_was_made_before_the_signal_may_still_send_its_request() -> None:
    body = json.dumps(BODY | {"stream": False}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with process("{}", "Here.") as (serving, url):
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        async with httpx.AsyncClient(base_url=url) as other:
            await other.get("/health")  # by now the server has accepted the connection before it
            serving.terminate()
            await asyncio.sleep(0.3)
            writer.write(head)
            await asyncio.sleep(0.3)
            writer.write(body)
            reply = await asyncio.wait_for(reader.read(), 5)
        writer.close()
        assert reply.startswith(b"HTTP/1.1 200"), reply
        assert b"Here." in reply
        assert await asyncio.wait_for(serving.wait(), 3) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
async def test_an_idle_process_ends_at_once_though_connections_are_open(
    number: signal.Signals,
) -> None:
    async with process("{}", "x") as (serving, url), httpx.AsyncClient(base_url=url) as http:
        assert (await http.get("/ready")).status_code == 200
        serving.send_signal(number)
        assert await asyncio.wait_for(serving.wait(), 4) == 0
        assert serving.stderr
        assert b"Traceback" not in await serving.stderr.read()


async def test_what_nohup_starts_outlives_its_terminal() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as `nohup` has it, and children too
    try:
        async with process("{}", "x") as (serving, url), httpx.AsyncClient(base_url=url) as http:
            assert (await http.get("/ready")).status_code == 200
            serving.send_signal(signal.SIGHUP)
            with pytest.raises(TimeoutError):  # at SIGTERM it ends at once
                await asyncio.wait_for(serving.wait(), 1)
            assert (await http.get("/ready")).status_code == 200
            serving.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(serving.wait(), 5) == 0
    finally:
        signal.signal(signal.SIGHUP, before)
