"""Asking an agent over HTTP: the same view as of one in this process."""

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from support.command_line import RecordingRenderer

from diptych.cli.client.remote import BearerToken, RemoteAgent, RemoteError, agent_at
from diptych.cli.follow import print_availability, start_and_follow
from diptych.cli.output.screen import Screen
from diptych.core.codec import Record
from diptych.core.errors import RequestError
from diptych.manifest.settings import AgentConfig, ToolServerConfig
from diptych.serve.process import ListenAddress, Sockets, serve_agents


@asynccontextmanager
async def agent(script: str, *tools: ToolServerConfig) -> AsyncIterator[RemoteAgent]:
    config = AgentConfig("helper", mock_responses=script, tools=tools)
    sockets = Sockets(ListenAddress(port=0), 1)
    url = sockets.urls[0]
    async with (
        serve_agents([config], sockets) as sites,
        agent_at(url.removeprefix("http://")) as remote,
    ):
        await sites[0].wait_for_first_connect()
        yield remote


async def test_the_record_is_what_the_memory_endpoint_shows() -> None:
    async with agent('["{}", "Hello."]') as helper:
        for session in ("a", "b"):
            await start_and_follow(helper, "Hi", session, RecordingRenderer())
        records = await helper.recorded_events()
        assert [r.event_type for r in records] == ["user_message", "agent_response"] * 2
        assert {r.session_id for r in await helper.recorded_events("b")} == {"b"}
        assert [r.event_type for r in await helper.recorded_events("a", 1)] == ["agent_response"]
        assert await helper.recorded_events("c") == []


async def test_cancellation_aborts_the_run_and_shows_its_end() -> None:
    script = '["{}", {"chunk_ms": 20, "content": "' + "word " * 500 + '"}]'
    async with agent(script) as helper:
        said = asyncio.Event()
        renderer = RecordingRenderer(at=1, do=said.set)
        task = asyncio.create_task(start_and_follow(helper, "Hi", None, renderer))
        await said.wait()
        task.cancel()
        assert (await task).status == "aborted"
        assert renderer.kinds[-1] == "aborted"
        assert renderer.kinds.count("user_message") == 1


async def test_what_is_unavailable_is_printed_before_the_first_question() -> None:
    bank = ToolServerConfig("bank", url="http://127.0.0.1:9/mcp")
    async with agent('["{}", "x"]', bank) as helper:
        err = io.StringIO()
        await print_availability(helper, Screen(io.StringIO(), err))
    assert err.getvalue().splitlines() == [
        "DEBUG_MOCK_RESPONSES is on: a script answers instead of a model.",
        "! unavailable: the tools of bank: connection refused",
    ]


@pytest.mark.parametrize(
    ("run_id", "status"),
    [pytest.param("nope", "404", id="a run that never was"), pytest.param("a/b", "404", id="odd")],
)
async def test_the_message_of_a_refusal_is_repeated(run_id: str, status: str) -> None:
    async with agent("x") as helper:
        with pytest.raises(RemoteError, match=f"HTTP {status}: "):
            async for _ in helper.subscribe(run_id):
                pass
        with pytest.raises(RequestError, match="HTTP 400: a session id has"):
            await helper.start("Hi", "a b", print)


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    request = await reader.readuntil(b"\r\n\r\n")
    if b"/events" in request:
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
        )
        writer.write(b'event: progress\ndata: {"type": "progress", "step": 1}\n\n')
    else:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")
    await writer.drain()
    writer.close()
    await writer.wait_closed()


@asynccontextmanager
async def stranger() -> AsyncIterator[RemoteAgent]:
    server = await asyncio.start_server(_answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, agent_at(f"http://127.0.0.1:{port}") as remote:
        yield remote


async def test_a_server_that_is_no_agent_is_reported() -> None:
    async with stranger() as remote:
        with pytest.raises(RemoteError, match="not a Diptych agent"):
            await remote.start("Hi", None, print)


async def test_a_question_that_is_not_utf_8_is_asked_without_what_cannot_be_read() -> None:
    question = b"Gr\xfc\xdfe".decode(errors="surrogateescape")  # as Python reads arguments
    async with agent('["{}", "Hello."]') as remote:
        started = await remote.start(question, None, print)
        asked, *_ = await anext(remote.subscribe(started.run_id))
        assert isinstance(asked, Record)
        assert asked.content == "Gr\ufffd\ufffde"


class TokenAgent:
    """Answers 200 to one token, 401 to any other; notes what it was sent."""

    def __init__(self, accepted: str) -> None:
        self.accepted = accepted
        self.sent: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.sent.append(request.headers["Authorization"])
        is_right = self.sent[-1] == f"Bearer {self.accepted}"
        return httpx.Response(200 if is_right else 401)


async def test_a_token_is_kept_until_it_is_refused_and_then_replaced_once() -> None:
    agent, tokens = TokenAgent("t1"), iter(("t1", "t2", "t3", "t3"))
    token = BearerToken(lambda: next(tokens))
    transport = httpx.MockTransport(agent)
    async with httpx.AsyncClient(transport=transport, base_url="http://a", auth=token) as http:
        for _ in range(2):
            assert (await http.get("/")).status_code == 200
        agent.accepted = "t2"
        assert (await http.get("/")).status_code == 200
        agent.accepted = "none that it could have"
        assert [(await http.get("/")).status_code for _ in range(2)] == [401, 401]
    sent = ["t1", "t1", "t1", "t2", "t2", "t3", "t3"]  # the same again would be refused again
    assert agent.sent == [f"Bearer {each}" for each in sent]
