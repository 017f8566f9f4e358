"""The floor: two phases written by hand, with nothing that an agent's owner would want besides.

    python -m bench.floor raw|sdk|merged MODEL_URL TOOLS_URL

A raw ASGI app on uvicorn (uvloop, httptools), one pooled aiohttp client for the model, and tools by
a plain POST (`raw`) or through the MCP SDK's client with one held session (`sdk`). No sessions, no
record, no metrics, no limits, no errors: whoever builds an agent by hand starts here.

`raw` and `sdk` write each token as it is read, as one would first write it; `merged` is `sdk` that
writes together what arrived together, which no floor can do better.
"""

import asyncio
import itertools
import json
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import orjson
import uvicorn
from mcp import Client

Json = dict[str, Any]
CallTool = Callable[[Json], Awaitable[str]]
Send = Callable[[Json], Awaitable[None]]
Receive = Callable[[], Awaitable[Json]]

MAX_STEPS = 8
_SYSTEM = (
    "You are a careful assistant.\n\n## Available Tools\n- echo: Says a text again.\n  parameters: "
    '{"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}\n\n'
    'To use a tool, respond with ONLY this JSON: {"tool": "name", "arguments": {…}}. '
    "When you have all that you need, respond with ONLY: {}"
)
_FINAL = "Now provide your final response to the user."
_HEADERS = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
_PARTS = orjson.dumps(
    {
        "id": "run-0",
        "object": "chat.completion.chunk",
        "created": 1741569952,
        "model": "floor",
        "choices": [{"index": 0, "delta": {"content": "@"}, "finish_reason": None}],
    }
).partition(b'"@"')
_BEFORE, _AFTER = b"data: " + _PARTS[0], _PARTS[2] + b"\n\n"


class Floor:
    """The whole agent, as an ASGI app."""

    def __init__(
        self, http: aiohttp.ClientSession, model_url: str, call_tool: CallTool, *, merges: bool
    ) -> None:
        self._http = http
        self._url = f"{model_url}/chat/completions"
        self._call_tool = call_tool
        self._merges = merges

    async def __call__(self, scope: Json, receive: Receive, send: Send) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        if scope["method"] == "GET":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        messages = [{"role": "system", "content": _SYSTEM}, *orjson.loads(body)["messages"]]
        await self._act(messages)
        messages.append({"role": "user", "content": _FINAL})
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        async for told in self._answer(messages):
            await send({"type": "http.response.body", "body": told, "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    async def _act(self, messages: list[Json]) -> None:
        for step in range(1, MAX_STEPS + 1):
            async with self._ask(messages, stream=False) as response:
                reply = orjson.loads(await response.read())
            text = reply["choices"][0]["message"]["content"]
            asked = json.loads(text)
            if not asked:
                return
            calls = asked if isinstance(asked, list) else [asked]
            messages.append({"role": "assistant", "content": text})
            results = await asyncio.gather(*map(self._call_tool, calls))
            told = "\n\n".join(f"[Step {step}/{MAX_STEPS}] Result:\n{text}" for text in results)
            messages.append({"role": "user", "content": told})

    async def _answer(self, messages: list[Json]) -> AsyncIterator[bytes]:
        held = b""
        async with self._ask(messages, stream=True) as response:
            async for arrived in response.content.iter_any():
                *events, held = (held + arrived).split(b"\n\n")
                told = [frame for frame in map(_told, events) if frame]
                for frame in [b"".join(told)] if self._merges and told else told:
                    yield frame

    def _ask(self, messages: list[Json], *, stream: bool) -> Any:
        body = orjson.dumps({"model": "instant-1", "stream": stream, "messages": messages})
        headers = {"Content-Type": "application/json"}
        return self._http.post(self._url, data=body, headers=headers)


def _told(event: bytes) -> bytes:
    if event == b"data: [DONE]" or not event:
        return b""
    choices = orjson.loads(event[6:])["choices"]
    text = choices[0]["delta"].get("content") if choices else None
    return _BEFORE + orjson.dumps(text) + _AFTER if text else b""


def by_post(http: aiohttp.ClientSession, url: str) -> CallTool:
    """Call tools with a plain POST."""
    ids = itertools.count(1)
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "Mcp-Protocol-Version": "2026-07-28",
        "Mcp-Method": "tools/call",
    }

    async def call(asked: Json) -> str:
        params = {"name": asked["tool"], "arguments": asked["arguments"]}
        body = {"jsonrpc": "2.0", "id": next(ids), "method": "tools/call", "params": params}
        async with http.post(url, data=orjson.dumps(body), headers=headers) as response:
            return str(orjson.loads(await response.read())["result"]["content"][0]["text"])

    return call


def by_sdk(client: Client) -> CallTool:
    """Call tools through the SDK's client, on a session that is held."""

    async def call(asked: Json) -> str:
        result = await client.call_tool(asked["tool"], asked["arguments"])
        return str(getattr(result.content[0], "text", ""))

    return call


async def main(way: str, model_url: str, tools_url: str) -> None:
    async with AsyncExitStack() as stack:
        connector = aiohttp.TCPConnector(limit=0)
        http = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        if way != "raw":
            call_tool = by_sdk(await stack.enter_async_context(Client(tools_url)))
        else:
            call_tool = by_post(http, tools_url)
        bound = socket.create_server(("127.0.0.1", 0), backlog=2048)
        sys.stdout.write(f"{bound.getsockname()[1]}\n")
        sys.stdout.flush()
        config = uvicorn.Config(
            Floor(http, model_url, call_tool, merges=way == "merged"),
            lifespan="off",
            access_log=False,
            log_config=None,
        )
        await uvicorn.Server(config).serve([bound])


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=__import__("uvloop").new_event_loop) as runner:
        runner.run(main(*sys.argv[1:]))
