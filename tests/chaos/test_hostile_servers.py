"""Servers that want to bring down a pod of 512 MiB by their answers (issue 12, part 3): none does.

All of a kind attack at once, each several times. `/health` answers within a second throughout, and
the run goes on: a failed call is a result. What each attack leads to by itself is in
`tests/diptych/models/test_hostile_answers.py`.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import aiohttp
import pytest
from support.floods import limited_pods, watched
from support.hostile import (
    CHUNK,
    SMALL_OBJECTS,
    agent_app,
    answering_calls,
    endless,
    gzip_bomb,
    in_pieces,
    listed,
    mcp_app,
    reply,
    serving,
)
from support.pods import PodProcess
from support.scene import tell
from support.stack import call, script

EACH = 4  # times, at once
SECONDS = 60.0  # in which whoever asks has an answer
PEAK = 350.0  # MB, of the 512 MiB

JSON_TYPE, EVENTS = {"content_type": "application/json"}, {"content_type": "text/event-stream"}
HEADERS = {f"x_{n}": "y" * 60 for n in range(100_000)}  # some 7 MB
Body = Callable[[], Iterable[bytes]]
ATTACKS: dict[str, tuple[Body, Mapping[str, str]]] = {
    "gzip": (lambda: in_pieces(gzip_bomb(600)), {**JSON_TYPE, "content_encoding": "gzip"}),
    "gzip stream": (lambda: in_pieces(gzip_bomb(600)), {**EVENTS, "content_encoding": "gzip"}),
    "blanks": (lambda: endless(b" " * CHUNK), JSON_TYPE),
    "comments": (lambda: endless(b": " + b"x" * CHUNK + b"\n"), EVENTS),
    "one event": (lambda: endless(b"x" * CHUNK), EVENTS),
    "small objects": (lambda: in_pieces(reply(SMALL_OBJECTS)), JSON_TYPE),
    "nested lists": (
        lambda: in_pieces(b'{"jsonrpc":"2.0","id":1,"result":' + b"[" * 2_000_000),
        JSON_TYPE,
    ),
    "headers": (list, {**JSON_TYPE, **HEADERS}),
    "one header": (list, {**JSON_TYPE, "x": "y" * 2_000_000}),
}

REASONS = ("is compressed", "more than 4194304 bytes", "bytes of memory")

# What backtracks, doubles or is large when arguments are checked with it.
DEEP: Any = {"type": "object"}
for _ in range(40):
    DEEP = {"allOf": [DEEP, DEEP]} if len(json.dumps(DEEP)) < 200_000 else DEEP
SCHEMAS = {
    "backtracking": {"properties": {"x": {"type": "string", "pattern": "^(a+)+$"}}},
    "names": {"patternProperties": {"^(a|aa)+$": {"type": "object"}}},
    "itself": {"allOf": [{"$ref": "#"}, {"$ref": "#"}]},
    "doubling": DEEP,
    "unique": {"properties": {"list": {"uniqueItems": True}}},
}
ARGUMENTS = {"x": "a" * 60 + "!", "a" * 60 + "!": 1, "list": [{"a": n} for n in range(300)]}

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module", autouse=True)
def _packed() -> None:
    """Pack before anybody asks: it takes a second, in which a server would answer nobody."""
    gzip_bomb(600)


async def ask(pod: PodProcess) -> tuple[int, Any]:
    """Ask for a chat; give its status and its body."""
    body = {"messages": [{"role": "user", "content": "hi"}]}
    timeout = aiohttp.ClientTimeout(total=SECONDS)
    async with aiohttp.ClientSession(timeout=timeout) as http:
        async with http.post(f"{pod.url}/v1/chat/completions", json=body) as answer:
            return answer.status, await answer.json()


def text_of(answer: tuple[int, Any]) -> str:
    status, body = answer
    return str(body["choices"][0]["message"]["content"]) if status == 200 else f"{status}: {body}"


async def attacked(pod: PodProcess, what: str, times: int = 1) -> list[tuple[int, Any]]:
    """Ask so often at once while the pod is watched; give what was answered."""
    began = time.monotonic()
    async with watched(pod, what) as seen:
        told = await asyncio.gather(*(ask(pod) for _ in range(times)))
        tell(f"    {time.monotonic() - began:.1f} s, {sorted({status for status, _ in told})}")
        await asyncio.sleep(1.0)
    seen.check(pod)
    assert seen.peak < PEAK
    return told


@asynccontextmanager
async def all_served(apps: Sequence[Callable[..., Any]]) -> AsyncIterator[list[str]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(serving(app)) for app in apps]


async def failed_calls(what: str, event_type: str, given: Mapping[str, str]) -> list[str]:
    """Let a pod's chats be attacked by what they call; gives the texts of the calls that failed.

    Many at once meet the bound of all answers together first; the last one, alone, its own.
    """
    with limited_pods(**given) as (pod,):
        pod.start()
        await pod.ready()
        told = [*await attacked(pod, what, EACH), *await attacked(pod, f"{what}, alone")]
        assert [text_of(each) for each in told] == ["Hello."] * (EACH + 1)
        failed = await texts_of(pod, event_type)
        tell("\n".join(f"    {n} {text[:150]}" for text, n in Counter(failed).items()))
        return failed


async def test_the_answers_of_tools() -> None:
    apps = [
        answering_calls(mcp_app([listed(f"t{n}")]), EndlesslyOften(body), **headers)
        for n, (body, headers) in enumerate(ATTACKS.values())
    ]
    calls = [{"tool": f"t{n}", "arguments": {}} for n in range(len(apps))]
    async with all_served(apps) as urls:
        servers = {f"MCP_SERVER_S{n}_URL": f"{url}/mcp" for n, url in enumerate(urls)}
        names = ",".join(f"s{n}" for n in range(len(urls)))
        alone = calls[list(ATTACKS).index("blanks")]  # else others may take all the room before it
        answers = script(json.dumps(calls), json.dumps(alone), "{}", "Hello.")
        given = {"DEBUG_MOCK_RESPONSES": answers, "MCP_SERVERS": names, **servers}
        failed = await failed_calls("hostile answers of tools", "tool_error", given)
        assert len(failed) == (EACH + 1) * (len(calls) + 1)
        for reason in REASONS:
            assert reason in "\n".join(failed)


async def test_the_schemas_of_tools() -> None:
    schemas = [{"type": "object", **each} for each in SCHEMAS.values()]
    tools = [listed(f"t{n}", schema=schema) for n, schema in enumerate(schemas)]
    calls = [call(tool.name, **ARGUMENTS) for tool in tools]
    async with serving(mcp_app(tools)) as url:
        given = {"MCP_SERVERS": "s", "MCP_SERVER_S_URL": f"{url}/mcp"}
        answers = script(*calls, "{}", "Hello.")
        with limited_pods(DEBUG_MOCK_RESPONSES=answers, AGENTIC_LOOP_MAX_STEPS="9", **given) as (
            pod,
        ):
            pod.start()
            await pod.ready()
            told = await attacked(pod, "checks by schemas", EACH)
            assert [text_of(each) for each in told] == ["Hello."] * EACH
            checked = [await texts_of(pod, kind) for kind in ("action_error", "tool_result")]
            assert sum(map(len, checked)) == EACH * len(tools), checked


async def test_the_answers_of_agents() -> None:
    apps = [agent_app(body, headers) for body, headers in ATTACKS.values()]
    calls = [{"agent": f"p{n}", "task": "x"} for n in range(len(apps))]
    async with all_served(apps) as urls:
        peers = {f"PEER_AGENT_P{n}_CARD_URL": url for n, url in enumerate(urls)}
        names = ",".join(f"p{n}" for n in range(len(urls)))
        answers = script(json.dumps(calls), "{}", "Hello.")
        given = {"DEBUG_MOCK_RESPONSES": answers, "PEER_AGENTS": names, **peers}
        failed = await failed_calls("hostile answers of agents", "delegation_error", given)
        assert len(failed) == (EACH + 1) * len(calls)


async def test_the_answers_of_a_model() -> None:
    attack = "gzip"
    async with raw_server(lambda: ATTACKS[attack]) as url:
        with limited_pods(MODEL_API_URL=f"{url}/v1", MODEL_NAME="m") as (pod,):
            pod.start()
            await pod.ready()
            for attack in ("gzip", "blanks", "one event", "small objects", "headers"):
                told = await attacked(pod, f"a model that answers with {attack}", 8)
                assert all(status >= 500 for status, _ in told), told[0]


class EndlesslyOften:
    """A body that can be sent again and again."""

    def __init__(self, body: Body) -> None:
        self._body = body

    def __iter__(self) -> Any:
        return iter(self._body())


async def texts_of(pod: PodProcess, kind: str) -> list[str]:
    """Give the texts of these events, of all runs."""
    events: list[Any] = []
    before = ""
    async with aiohttp.ClientSession() as http:
        while before is not None:
            page = f"{pod.url}/memory/events?limit=1000" + (f"&before={before}" if before else "")
            async with http.get(page) as answer:
                told = await answer.json()
            events += told["events"]
            before = told.get("next_before")
    tell(f"    {Counter(event['event_type'] for event in events)}")
    return [str(event["content"]) for event in events if event["event_type"] == kind]


@asynccontextmanager
async def raw_server(
    attack: Callable[[], tuple[Body, Mapping[str, str]]],
) -> AsyncIterator[str]:
    """Answer every request with an attack, as fast as it is taken."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            body, headers = attack()
            names = "".join(f"{k.replace('_', '-')}: {v}\r\n" for k, v in headers.items()).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n" + names + b"\r\n")
            for chunk in body():
                writer.write(chunk)
                await writer.drain()
        writer.transport.abort()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
