"""A question is not lost with a connection that breaks before the reply, and is not asked twice."""

import asyncio
import signal
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from support.command_line import RecordingRenderer
from support.flaky_agent import flaky, http_error, response
from support.tcp_proxy import TcpProxy, tcp_proxy

from diptych.cli.client.remote import RemoteAgent, RemoteError, agent_at
from diptych.cli.follow import start_and_follow
from diptych.cli.output.timeline import RETRYING_START
from diptych.manifest.settings import AgentConfig
from diptych.ports import Notice
from diptych.runs.service import RunService
from diptych.serve.process import ListenAddress, Sockets, serve_agents

NEVER = 600.0  # seconds by which a reply is late that does not come


STARTED = response("202 Accepted", {"id": "run-1", "session_id": "s"})


@asynccontextmanager
async def behind_a_bad_network() -> AsyncIterator[tuple[RemoteAgent, TcpProxy, RunService]]:
    sockets = Sockets(ListenAddress(port=0), 1)
    config = AgentConfig("helper", mock_responses='["{}", "Hello there."]')
    async with (
        serve_agents([config], sockets) as sites,
        tcp_proxy(int(sockets.urls[0].rpartition(":")[2])) as proxy,
        agent_at(f"http://127.0.0.1:{proxy.port}") as agent,
    ):
        await sites[0].wait_for_first_connect()
        yield agent, proxy, sites[0].runs


async def has_started(runs: RunService) -> None:
    async with asyncio.timeout(10):
        while not await runs.entries():  # noqa: ASYNC110 - told to nobody
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("session", [None, "talk"])
async def test_a_question_whose_first_response_was_lost_is_one_run(session: str | None) -> None:
    async with behind_a_bad_network() as (agent, proxy, runs):
        proxy.delay = NEVER
        renderer = RecordingRenderer()
        task = asyncio.create_task(start_and_follow(agent, "Hi", session, renderer))
        await has_started(runs)
        proxy.delay = 0.0
        proxy.cut()
        ended = await task
        (entry,) = await runs.entries()
    assert (ended.status, ended.session_id) == ("completed", entry.session_id)
    assert renderer.text == "Hello there."
    assert [
        (n.type, n.fields["message"]) for n in renderer.notices if n.type == RETRYING_START
    ] == [(RETRYING_START, f"the connection to {agent.name} broke")]


async def test_all_tries_have_one_key_and_are_announced_once() -> None:
    leaving = http_error("503 Service Unavailable", "the pod is leaving")
    async with flaky(leaving, b"", STARTED, STARTED) as (server, agent):
        notices: list[Notice] = []
        assert (await agent.start("Hi", None, notices.append)).run_id == "run-1"
        await agent.start("Hi", None, print)
    first, *again, other = server.received("idempotency-key")
    assert again == [first, first]
    assert other != first
    assert notices == [Notice(RETRYING_START, {"message": "HTTP 503: the pod is leaving"})]


async def test_exhausted_retries_say_that_nobody_knows() -> None:
    async with flaky(*[http_error("504 Gateway Timeout", "no reply")] * 5) as (server, agent):
        with pytest.raises(RemoteError, match="504: no reply; the run may have started all the"):
            await agent.start("Hi", None, print)
    assert len(server.received("idempotency-key")) == 4


async def test_an_agent_that_never_listened_is_not_retried() -> None:
    async with flaky() as (_, agent):
        url = agent.url
    async with agent_at(url) as agent:
        began = time.monotonic()
        with pytest.raises(RemoteError, match="nothing listens at"):
            await agent.start("Hi", None, print)
    assert time.monotonic() - began < 5


async def test_a_run_that_could_not_be_cancelled_is_reported() -> None:
    async with behind_a_bad_network() as (agent, proxy, _):
        proxy.delay = NEVER
        task = asyncio.create_task(agent.cancel("run-1"))
        await asyncio.sleep(0.05)
        proxy.cut()
        with pytest.raises(RemoteError, match="broke; the run may still go on; see it with"):
            await task


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
async def test_ctrl_c_before_the_run_has_begun_leaves_a_chat_as_it_was() -> None:
    asked = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (await reader.readuntil(b"\r\n\r\n")).startswith(b"GET /ready"):
            writer.write(response("200 OK", {}))
        else:
            asked.set()
            await reader.read()  # until the other end has had enough
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    async with listening, asyncio.timeout(30):
        chat = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "diptych", "chat", url), stdin=PIPE, stdout=PIPE, stderr=PIPE
        )
        try:
            assert chat.stdin
            chat.stdin.write(b"Hi\n")
            await asked.wait()
            chat.send_signal(signal.SIGINT)
            _, err = await chat.communicate(b"")
        finally:
            if chat.returncode is None:
                chat.kill()
                await chat.communicate()
    assert err.decode().splitlines()[1:] == [
        "✗ aborted, before the agent had said that the run has begun"
    ]
    assert chat.returncode == 0
