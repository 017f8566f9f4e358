"""An agent as an MCP server, asked by the SDK's client in both eras, and by raw JSON-RPC."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import httpx2
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from support.face import Face, Speaker, access_of, as_, face
from support.stack import agent, call, frames, listening, stages, until

from diptych.access.grants import Right
from diptych.access.limits import Limits
from diptych.core.run_settings import RunSettings
from diptych.policy.rules import Policy, Rule

OLDER, NEWER = "2025-11-25", "2026-07-28"
ERAS = pytest.mark.parametrize("era", ["legacy", NEWER])
META = {
    "io.modelcontextprotocol/protocolVersion": NEWER,
    "io.modelcontextprotocol/clientCapabilities": {},
}
ACCEPT = {"Accept": "application/json, text/event-stream"}
PAY = call("pay", amount=5)


@asynccontextmanager
async def client(url: str, era: str, key: str = "") -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with httpx2.AsyncClient(headers=headers) as http:
        transport = streamable_http_client(f"{url}/mcp", http_client=http)
        async with Client(transport, mode=era, read_timeout_seconds=10) as opened:
            yield opened


@asynccontextmanager
async def served(*replies: Any, **doubles: Any) -> AsyncIterator[tuple[Face, str]]:
    async with face(*replies, **doubles) as helper, listening(helper.app) as url:
        yield helper, url


RIGHTS = {"ada": {Right.ASK}, "bob": {Right.ASK}, "reader": {Right.READ}}


def text_of(result: Any) -> str:
    (only,) = result.content
    return str(only.text)


def request(method: str, number: int = 1, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def ask(**arguments: Any) -> dict[str, Any]:
    return request("tools/call", name="ask", arguments=arguments)


def cancelled(number: int) -> dict[str, Any]:
    params = {"requestId": number}
    return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}


async def add(a: int) -> str:
    return str(a + 1)


async def fail() -> str:
    raise RuntimeError


async def pay(amount: int) -> str:
    return f"paid {amount}"


@ERAS
async def test_a_conversation_with_progress(era: str) -> None:
    replies = (call("add", a=1), call("fail"), "{}", "Two.")
    told: list[tuple[float, str | None]] = []

    async def progress(number: float, _: float | None, message: str | None) -> None:
        told.append((number, message))

    async with served(*replies, tools={"add": add, "fail": fail}) as (helper, url):
        async with client(url, era) as opened:
            (tool,) = (await opened.list_tools()).tools
            assert (tool.name, tool.title, tool.description) == ("ask", "helper", "Helps.")
            assert (tool.input_schema["required"], tool.output_schema) == (["message"], None)
            first = await opened.call_tool(
                "ask", {"message": "1 + 1?", "session": "sums"}, progress_callback=progress
            )
            await opened.call_tool("ask", {"message": "Sure?", "session": "sums"})
        assert (text_of(first), first.is_error) == ("Two.", False)
        messages = ["calls add", "calls fail", "fail failed", "answered"]
        assert told == list(enumerate(messages, start=1))
        second, run = await helper.house.runs.entries()
        assert first.meta is not None
        assert first.meta["dev.diptych/runId"] == run.run_id
        assert first.meta["dev.diptych/sessionId"] == second.session_id == "sums"
        assert "1 + 1?" in str(helper.house.model.requests[-1])


@ERAS
async def test_what_is_no_answer_is_an_error_that_the_model_can_read(era: str) -> None:
    replies = (call("add", a=1), call("add", a=2))  # then the script is used up
    async with served(*replies, tools={"add": add}) as (_, url), client(url, era) as opened:
        failed = await opened.call_tool("ask", {"message": "hi"})
        assert failed.is_error
        assert "has 2 replies" in text_of(failed)
        for arguments, problem in (
            ({}, "message is missing"),
            ({"message": " \n"}, "message is empty"),
            ({"message": 1}, "message must be a valid string"),
            ({"message": "hi", "to": "x"}, "to is not known here"),
            ({"message": "hi", "session": "a b"}, "a session id has 1 to 128"),
        ):
            refused = await opened.call_tool("ask", arguments)
            assert refused.is_error
            assert problem in text_of(refused)
        with pytest.raises(MCPError, match="no tool 'forget'"):
            await opened.call_tool("forget", {})


@ERAS
async def test_structured_output(era: str) -> None:
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
    configs = [
        agent("{}", '{"sum": 2}', name=name, loop=RunSettings(output_schema=output_schema))
        for name, output_schema in (("typed", schema), ("free", {}))
    ]
    listing = RunSettings(output_schema={"type": "array"})
    short = RunSettings(output_schema=schema, max_steps=1)
    configs += [
        agent("{}", "[2]", name="listing", loop=listing),
        agent(call("x"), name="short", loop=short),
    ]
    async with stages(*configs) as told:
        found = {}
        for stage in told:
            async with client(f"{told[0].url}/agents/{stage.name}", era) as opened:
                (tool,) = (await opened.list_tools()).tools
                result = await opened.call_tool("ask", {"message": "1 + 1?"})
                found[stage.name] = tool.output_schema, result.structured_content, result.is_error
    assert found == {
        "typed": (schema, {"sum": 2}, False),
        "free": ({"type": "object"}, {"sum": 2}, False),
        "listing": (None, None, False),  # the older era has schemas of objects only
        "short": (schema, None, True),
    }


@ERAS
async def test_a_call_that_waits_for_approval_is_named_and_its_run_goes_on(era: str) -> None:
    rules = Policy((Rule("tool", "pay", "ask"),))
    async with served(PAY, "{}", "Paid.", tools={"pay": pay}, policy=rules) as (helper, url):
        async with client(url, era) as opened:
            waiting = await opened.call_tool("ask", {"message": "Pay.", "session": "s"})
        (entry,) = await helper.house.runs.entries()
        assert waiting.is_error
        for named in (entry.run_id, "call_1_1", '"amount": 5', "'s'"):
            assert named in text_of(waiting)
        path = f"/v1/runs/{entry.run_id}"
        await helper.http.post(f"{path}/approvals/call_1_1", json={"decision": "approve"})
        await helper.house.told(entry.run_id)
        assert (await helper.http.get(path)).json()["answer"] == "Paid."


# Cancelling


@pytest.mark.parametrize(
    ("era", "reason"),
    [("legacy", "the client cancelled its request"), (NEWER, "the client disconnected")],
)
async def test_a_cancelled_call_cancels_its_run_alone(era: str, reason: str) -> None:
    model = Speaker("one ", ..., "two")
    async with served(model=model) as (helper, url), client(url, era) as opened:
        other = (await helper.http.post("/v1/runs", json={"input": "hi"})).json()["id"]
        asking = asyncio.create_task(opened.call_tool("ask", {"message": "hi"}))
        await until(lambda: _has(helper, 2))
        asking.cancel()
        await asyncio.wait([asking])
        mine, _ = await helper.house.runs.entries()
        await until(lambda: _has_ended(helper, mine.run_id))  # a reader would keep it alive
        end = (await helper.house.runs.records(mine.run_id))[-1]
        assert (end.event_type, end.content) == ("aborted", reason)
        model.go.set()
        assert (await helper.house.told(other))[-1].event_type == "completed"


async def _has(helper: Face, count: int) -> bool:
    entries = await helper.house.runs.entries()
    return len(entries) == count and all(entry.status == "running" for entry in entries)


async def _has_ended(helper: Face, run_id: str) -> bool:
    return (await helper.house.runs.entry(run_id)).status == "aborted"


async def test_a_run_of_the_older_era_survives_hanging_up_and_foreign_cancels() -> None:
    model = Speaker("one ", ..., "two")
    async with served(model=model, access=access_of(RIGHTS)) as (helper, url):
        ada, bob = ({**as_(name), "Mcp-Session-Id": "one", **ACCEPT} for name in ("ada", "bob"))
        async with httpx.AsyncClient(base_url=url) as http:
            asking = asyncio.create_task(http.post("/mcp", json=ask(message="hi"), headers=ada))
            await model.has_stopped.wait()
            asking.cancel()
            await asyncio.wait([asking])
            for headers, number in ((bob, 1), (ada, 2), ({**ada, "Mcp-Session-Id": "two"}, 1)):
                reply = await http.post("/mcp", json=cancelled(number), headers=headers)
                assert (reply.status_code, reply.content) == (202, b"")
        (entry,) = await helper.house.runs.entries()
        assert entry.status == "running"
        model.go.set()
        assert (await helper.house.told(entry.run_id))[-1].event_type == "completed"


# Access


@ERAS
async def test_who_may_ask_and_how_often(era: str) -> None:
    limits = Limits(runs_per_minute=1)
    async with served(access=access_of(RIGHTS), limits=limits) as (helper, url):
        async with client(url, era, "key-of-ada") as ada:
            assert len((await ada.list_tools()).tools) == 1
            mine = {"message": "A secret.", "session": "s"}
            assert text_of(await ada.call_tool("ask", mine)) == "Hello!"
        async with client(url, era, "key-of-bob") as bob:
            await bob.call_tool("ask", {"message": "What did I say?", "session": "s"})
        said = str(helper.house.model.requests[-1])
        assert "What did I say?" in said
        assert "A secret." not in said
        async with client(url, era, "key-of-reader") as reader:
            assert (await reader.list_tools()).tools == []
        newer = {"MCP-Protocol-Version": NEWER, "Mcp-Method": "tools/call", "Mcp-Name": "ask"}
        body = ask(message="hi")
        if era == NEWER:
            body["params"]["_meta"] = META
        for key, status in (("ada", 429), ("reader", 403), ("nobody", 401)):
            headers = {**as_(key), **ACCEPT}
            headers |= newer if era == NEWER else {}
            reply = await helper.http.post("/mcp", json=body, headers=headers)
            assert reply.status_code == status
            assert reply.json()["error"]["message"]
            named = {429: "Retry-After", 401: "WWW-Authenticate"}.get(status, "Content-Type")
            assert named in reply.headers


# Raw requests


async def test_bad_requests() -> None:
    async with face() as helper:
        for body, headers, status, code in (
            (b"{", {}, 400, -32700),
            (b'{"id": 1, "id": 2}', {}, 400, -32700),
            (b"\xff", {}, 400, -32700),
            (b"[]", {}, 400, -32602),
            (request("tools/list"), {"Accept": "text/html"}, 406, -32600),
            (request("tools/list"), {"MCP-Protocol-Version": "1999-01-01"}, 400, -32602),
            (request("tools/list"), {"MCP-Protocol-Version": NEWER}, 400, -32602),
            (request("tools/list"), {"Content-Type": "text/plain"}, 415, -32600),
            (b'"' + b"x" * 2**20 + b'"', {}, 413, -32600),
        ):
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            headers = {"Content-Type": "application/json", **ACCEPT, **headers}
            reply = await helper.http.post("/mcp", content=content, headers=headers)
            assert (reply.status_code, reply.json()["error"]["code"]) == (status, code)
        assert await helper.house.runs.entries() == []


async def test_there_is_nothing_to_get() -> None:
    async with face() as helper:
        for method in ("GET", "DELETE"):
            reply = await helper.http.request(method, "/mcp", headers=ACCEPT)
            assert (reply.status_code, reply.headers["Allow"]) == (405, "POST")


async def test_headers_are_trimmed_and_meta_carries_the_trace() -> None:
    trace = f"00-{'a' * 32}-{'b' * 16}-01"
    async with face() as helper:
        headers = {"MCP-Protocol-Version": NEWER, "Mcp-Method": "tools/call ", "Mcp-Name": " ask "}
        body = ask(message="hi")
        body["params"]["_meta"] = {**META, "traceparent": trace}
        reply = await helper.http.post("/mcp", json=body, headers={**ACCEPT, **headers})
        assert reply.json()["result"]["content"][0]["text"] == "Hello!"
        (entry,) = await helper.house.runs.entries()
        first, *_ = await helper.house.runs.records(entry.run_id)
        assert first.metadata["traceparent"] == trace


async def test_a_session_id_is_a_name_that_no_replica_must_know() -> None:
    async with face() as helper:
        hello = {"protocolVersion": OLDER, "capabilities": {}}
        hello["clientInfo"] = {"name": "t", "version": "1"}
        reply = await helper.http.post("/mcp", json=request("initialize", **hello), headers=ACCEPT)
        (told,) = frames(reply.text.replace("\r\n", "\n"))
        assert told.json["result"]["protocolVersion"] == OLDER
        assert len(reply.headers["Mcp-Session-Id"]) == 32
        headers = {**ACCEPT, "Mcp-Session-Id": "of-another-replica", "MCP-Protocol-Version": OLDER}
        listed = await helper.http.post("/mcp", json=request("tools/list"), headers=headers)
        (told,) = frames(listed.text.replace("\r\n", "\n"))
        assert told.json["result"]["tools"][0]["name"] == "ask"
        assert "Mcp-Session-Id" not in listed.headers
