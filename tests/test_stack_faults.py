"""Rows of docs/spec/faults.md that no other test stands for, against whole stacks."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from support.hostile import listed, mcp_app, peak_memory, self_signed, serving
from support.stack import agent, call, stage, stages

from diptych.manifest.settings import AgentConfig, ModelConfig, ToolServerConfig

CONNECT = 5.0  # seconds


# T9: 200 tools on 5 servers, one of them slow to list


@asynccontextmanager
async def tool_servers() -> AsyncIterator[list[ToolServerConfig]]:
    """Serve five servers of 40 tools each; the first one lists nothing for a minute."""

    async def slow_to_list(scope: Any, receive: Any, send: Any) -> None:
        if dict(scope.get("headers", ())).get(b"mcp-method") == b"tools/list":
            await asyncio.sleep(60)
        await slow(scope, receive, send)

    apps = [mcp_app([listed(f"do_{n}_{m}") for m in range(40)]) for n in range(5)]
    slow = apps[0]
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(serving(app)) for app in (slow_to_list, *apps[1:])]
        yield [ToolServerConfig(f"s{n}", url=f"{url}/mcp") for n, url in enumerate(urls)]


async def test_a_server_that_is_slow_to_list_holds_up_no_other() -> None:
    async with tool_servers() as servers, asyncio.timeout(30):
        async with stage(call("do_4_39"), "{}", "Did it.", tools=tuple(servers)) as helper:
            assert await helper.answer() == "Did it."
            [result] = [e for e in await helper.memory() if e["event_type"] == "tool_result"]
            ready = (await helper.http.get("/ready")).json()
    assert "hostile do_4_39" in str(result)
    assert [missing["name"] for missing in ready["missing"]] == ["s0"]


# T4: results that are none


TEXT = [{"type": "text", "text": "fine"}]
GARBLED: dict[str, dict[str, Any]] = {
    "another_type": {"result": {"resultType": "surprise", "content": TEXT}},
    "null": {"result": None},
    "no_content": {"result": {"content": [{"type": "smell", "smell": "x"}]}},
    "a_text_as_error": {"error": "no"},
    "neither": {},
}


def garbled(behind: Any) -> Any:
    """Give a server that answers calls of the tools in `GARBLED` so, under the request's id."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if dict(scope.get("headers", ())).get(b"mcp-method") != b"tools/call":
            await behind(scope, receive, send)
            return
        body, is_whole = b"", False
        while not is_whole:
            message = await receive()
            body, is_whole = body + message["body"], not message.get("more_body")
        asked = json.loads(body)
        response = {"jsonrpc": "2.0", "id": asked["id"], **GARBLED[asked["params"]["name"]]}
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(response).encode()})

    return app


async def test_results_that_are_none_have_an_unknown_outcome_and_the_run_goes_on() -> None:
    calls = f"[{', '.join(call(name) for name in GARBLED)}]"
    async with serving(garbled(mcp_app([listed(name) for name in GARBLED]))) as url:
        tools = (ToolServerConfig("s", url=f"{url}/mcp", timeout=1.0),)
        async with stage(calls, "{}", "They failed.", tools=tools) as helper:
            assert await helper.answer() == "They failed."
            facts = [e for e in await helper.memory() if e["event_type"] == "tool_error"]
    assert [fact["metadata"]["error"] for fact in facts] == ["unknown"] * len(GARBLED)
    for fact in facts:
        assert fact["content"].startswith("outcome: unknown. This call was started and may have ")


# C9: 10,000 messages


async def test_ten_thousand_messages_are_refused_and_cost_20_mb_at_most() -> None:
    messages = [{"role": "user", "content": f"message {n}"} for n in range(10_000)]
    async with stage("{}", "Read.") as helper:
        await helper.answer()
        before = peak_memory()
        response = await helper.http.post("/v1/runs", json={"messages": messages})
        assert response.status_code == 400
        assert "messages has more than 1000 items" in response.text
        assert peak_memory() - before < 20 * 2**20
        assert await helper.answer("And you?") == "Read."


# M3: a host that nobody knows, a certificate that nobody signed


async def failing(config: AgentConfig) -> tuple[int, dict[str, Any], float]:
    async with stages(config) as (helper,):
        began = time.monotonic()
        response = await helper.chat()
        error = json.loads(response.text)["error"]
        return response.status_code, error, time.monotonic() - began


async def test_a_model_whose_host_nobody_knows_is_a_502_at_once() -> None:
    model = ModelConfig("m", "http://no-such-host.invalid/v1")
    status, error, seconds = await failing(replace(agent(), mock_responses=None, model=model))
    assert (status, error["code"]) == (502, "model_unreachable")
    assert seconds < CONNECT
    assert "host name is not known" in error["message"]


async def test_a_model_with_a_certificate_that_nobody_signed_is_asked_nothing(
    tmp_path: Path,
) -> None:
    asked = 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal asked
        asked += scope["type"] == "http"

    async with serving(app, certificate=self_signed(tmp_path)) as url:
        model = ModelConfig("m", f"{url.replace('http:', 'https:')}/v1")
        config = replace(agent(), mock_responses=None, model=model)
        status, error, seconds = await failing(config)
    assert (status, error["code"], asked) == (502, "model_unreachable", 0)
    assert seconds < CONNECT
    assert "TLS" in error["message"]
