"""Several agents of one process behind the first port: OpenAI's clients, each agent's access."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio
from langchain_openai import ChatOpenAI
from mcp import Client, MCPError
from openai import AsyncOpenAI
from support.stack import BEYOND, Stage, agent, box, frames, stages, text_of, until

from diptych.access.grants import Grant, Grantee, Right
from diptych.http.team_router import TeamMember, TeamRouter
from diptych.manifest.settings import AccessConfig, AgentConfig, PeerConfig
from diptych.models.connection import open_http_session
from diptych.net.memory_budget import MemoryBudget
from diptych.serve.hosted_agent import HostedAgent

pytestmark = pytest.mark.asyncio(loop_scope="module")

NAMES = ["coordinator", "researcher", "writer"]
HI: Any = [{"role": "user", "content": "hi"}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def team() -> AsyncIterator[list[Stage]]:
    delegation = json.dumps({"agent": "researcher", "task": "look"})
    configs = (
        agent(delegation, "{}", "I coordinate.", name=NAMES[0], agents=(_peer("researcher"),)),
        *(agent("{}", f"I am the {name}.", name=name) for name in NAMES[1:]),
    )
    async with stages(*configs) as served:
        yield served


def _grant(key: str, right: Right) -> Grant:
    return Grant((Grantee("key", key),), frozenset({right}))


def _peer(name: str) -> PeerConfig:
    return PeerConfig(name, url=name)


@pytest_asyncio.fixture(loop_scope="module")
async def client(team: list[Stage]) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{team[0].url}/v1", api_key="none", timeout=10) as opened:
        yield opened


async def test_one_connection_lists_and_asks_every_agent(client: AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == NAMES
    assert (await client.models.retrieve("writer")).id == "writer"
    told = {}
    for name in NAMES:
        chat = await client.chat.completions.create(model=name, messages=HI)
        told[chat.model] = chat.choices[0].message.content
    assert told == {
        "coordinator": "I coordinate.",
        "researcher": "I am the researcher.",
        "writer": "I am the writer.",
    }
    with pytest.raises(openai.NotFoundError, match=r"'painter'.*coordinator, researcher, writer"):
        await client.chat.completions.create(model="painter", messages=HI)
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("painter")


async def test_a_response_is_found_at_its_agent_again(client: AsyncOpenAI) -> None:
    first = await client.responses.create(model="writer", input="hi")
    assert (await client.responses.retrieve(first.id)).output_text == "I am the writer."
    following = await client.responses.create(
        model="writer", input="go on", previous_response_id=first.id
    )
    assert following.output_text == "I am the writer."
    unnamed = await client.responses.create(input="on", previous_response_id=following.id)
    assert unnamed.output_text == "I am the writer."
    await client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(first.id)


async def test_langchain_streams_from_a_later_agent(team: list[Stage]) -> None:
    model: Any = ChatOpenAI(model="writer", base_url=f"{team[0].url}/v1", api_key="none")  # type: ignore[arg-type]
    assert "".join([piece.content async for piece in model.astream("hi")]) == "I am the writer."


async def test_each_agent_has_its_whole_api_below_its_name(team: list[Stage]) -> None:
    door = team[0].http
    run = (await door.post("/agents/writer/v1/runs", json={"input": "hi"})).json()
    events = await door.get(f"/agents/writer/v1/runs/{run['id']}/events")
    assert frames(events.text)[-1].json["event_type"] == "completed"
    assert (await door.get(f"/v1/runs/{run['id']}")).json()["id"] == run["id"]
    assert (await team[2].run(run["id"]))["status"] == "completed"
    card = (await door.get("/agents/researcher/.well-known/agent-card.json")).json()
    assert card["name"] == "researcher"
    urls = {interface["url"] for interface in card["supportedInterfaces"]}
    assert urls == {f"{team[0].url}/agents/researcher/a2a{rest}" for rest in ("", "/rest")}
    page = await door.get("/agents/writer", follow_redirects=True)
    assert (page.status_code, page.headers["content-type"].split(";")[0]) == (200, "text/html")
    assert (await door.get("/agents/painter/v1/models")).status_code == 404
    listed = await door.get("/agents/writer/v1/models")
    assert [model["id"] for model in listed.json()["data"]] == ["writer"]


async def test_bodies_are_refused_at_the_door_as_at_an_agent(team: list[Stage]) -> None:
    for body, status in (
        (b"{", 400),
        (b'["writer"]', 400),
        (b'{"model": 7, "messages": []}', 400),
        (b'"' + b"x" * 2**20 + b'"', 413),
    ):
        answer = await team[0].http.post(
            "/v1/chat/completions", content=body, headers={"Content-Type": "application/json"}
        )
        assert (answer.status_code, answer.json()["error"]["type"]) == (
            status,
            "invalid_request_error",
        )
    streamed = await team[0].http.post(
        "/v1/chat/completions", json={"model": "writer", "messages": HI, "stream": True}
    )
    assert text_of(frames(streamed.text)) == "I am the writer."
    rebound = await team[0].http.get("/v1/models", headers={"Host": "evil.example"})
    assert rebound.status_code == 421


async def test_a_delegation_through_the_door_reaches_the_agent_of_its_path(
    team: list[Stage],
) -> None:
    peer = PeerConfig("helper", url=f"{team[0].url}/agents/writer")
    replies = (json.dumps({"agent": "helper", "task": "hi"}), "{}", "done")
    async with stages(agent(*replies, name="caller", agents=(peer,))) as (caller,):
        await caller.chat(session_id="s")
        results = [event["content"] for event in await caller.memory()]
    assert any("I am the writer." in str(content) for content in results), results


@pytest.mark.parametrize("era", ["legacy", "2026-07-28"])
async def test_mcp_has_a_tool_for_each_agent(team: list[Stage], era: str) -> None:
    async with Client(f"{team[0].url}/mcp", mode=era) as opened:
        assert [tool.name for tool in (await opened.list_tools()).tools] == NAMES
        for name, said in (("coordinator", "I coordinate."), ("writer", "I am the writer.")):
            result: Any = await opened.call_tool(name, {"message": "hi"})
            assert result.content[0].text == said
        with pytest.raises(MCPError, match="no tool 'painter'"):
            await opened.call_tool("painter", {"message": "hi"})
    async with Client(f"{team[0].url}/agents/writer/mcp", mode=era) as opened:
        assert [tool.name for tool in (await opened.list_tools()).tools] == ["ask"]


async def test_a_call_is_cancelled_through_the_door() -> None:
    slow = json.dumps({"tool": "box__wait_forever", "arguments": {}})
    waiting = agent(slow, "{}", "Done.", name="writer", tools=(box(wait_forever),))
    async with stages(agent("{}", "First.", name="first"), waiting) as (door, writer):
        async with Client(f"{door.url}/mcp", mode="legacy") as opened:
            asking = asyncio.create_task(opened.call_tool("writer", {"message": "hi"}))
            await until(lambda: _statuses(writer, "running"))
            asking.cancel()
            await asyncio.wait([asking])
            await until(lambda: _statuses(writer, "aborted"))


async def wait_forever() -> str:
    await asyncio.Event().wait()
    return ""


async def _statuses(stage: Stage, status: str) -> bool:
    runs = (await stage.http.get("/v1/runs")).json()["data"]
    return [run["status"] for run in runs] == [status]


async def test_a_tool_is_listed_for_those_who_may_ask_its_agent() -> None:
    grants = {
        "coordinator": [],
        "researcher": [_grant("ci", Right.ASK)],
        "writer": [_grant("ci", Right.READ)],
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    accept = {"Accept": "application/json, text/event-stream"}
    async with _door({"ci": lambda: "s3cret"}, grants) as http:
        ci = {"Authorization": "Bearer s3cret", **accept}
        listed = frames((await http.post("/mcp", json=body, headers=ci)).text.replace("\r\n", "\n"))
        assert [tool["name"] for tool in listed[0].json["result"]["tools"]] == ["researcher"]
        for name, status in (("coordinator", 403), ("writer", 403), ("researcher", 200)):
            call = {"name": name, "arguments": {"message": "hi"}}
            asked = {**body, "method": "tools/call", "params": call}
            assert (await http.post("/mcp", json=asked, headers=ci)).status_code == status
        refused = await http.post("/mcp", json=body, headers=accept)
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, -32600)


async def test_nothing_is_read_of_a_caller_whom_no_agent_accepts() -> None:
    async def endless() -> AsyncIterator[bytes]:
        yield b"{"
        pytest.fail("the rest of the body was read")

    async with _door({"ci": lambda: "s3cret"}, {name: [] for name in NAMES}) as http:
        refused = await http.post("/v1/chat/completions", content=endless())
    assert refused.status_code == 401


async def test_a_caller_sees_and_asks_only_what_each_agent_grants_it() -> None:
    keys = {"ci": lambda: "s3cret", "ops": lambda: "0ther"}
    grants = {
        "coordinator": [_grant("ci", Right.READ)],
        "researcher": [_grant("ci", Right.ASK)],
        "writer": [_grant("ops", Right.ASK)],
    }
    async with _door(keys, grants) as http:
        ci = {"Authorization": "Bearer s3cret"}
        listed = await http.get("/v1/models", headers=ci)
        assert [model["id"] for model in listed.json()["data"]] == ["researcher"]
        statuses = {
            name: (
                await http.post(
                    "/v1/chat/completions", json={"model": name, "messages": HI}, headers=ci
                )
            ).status_code
            for name in NAMES
        }
        assert statuses == {"coordinator": 403, "researcher": 200, "writer": 403}
        refused = await http.get("/v1/models")
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "unauthorized")


@asynccontextmanager
async def _door(
    keys: Mapping[str, Any], grants: Mapping[str, list[Grant]]
) -> AsyncIterator[httpx.AsyncClient]:
    """Serve the team beyond loopback, where each agent asks who asks; no socket is opened."""
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(open_http_session())
        members = {}
        for name in NAMES:
            access = AccessConfig(keys=keys, grants=tuple(grants[name]))
            config: AgentConfig = agent("{}", "Hello!", name=name, access=access)
            hosted = await stack.enter_async_context(HostedAgent(config, session, shared=BEYOND))
            members[name] = TeamMember(
                hosted.profile, hosted.app(), hosted.runs.entry, hosted.rights
            )
        transport = httpx.ASGITransport(TeamRouter(members, MemoryBudget()))
        client = httpx.AsyncClient(transport=transport, base_url="http://team")
        yield await stack.enter_async_context(client)
