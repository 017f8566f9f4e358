"""An OpenAI-compatible model server that plays steps, fails as it is told, and remembers all."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Step = str | Callable[["Exchange"], Any]
_MARKS = re.compile(r"<result-\w+>\n|\n</result-\w+>")
_RULES = re.compile(
    r"(^|\n\n)To (use a tool|delegate a task to another agent), respond .*", re.DOTALL
)


@dataclass
class Exchange:
    """One request to the model's server, and how to answer it."""

    request: web.Request
    body: Mapping[str, Any]

    @property
    def is_phase_2(self) -> bool:
        """Whether the final response is asked for."""
        return "Now provide your final response" in str(self.body["messages"][-1]["content"])

    async def say(self, text: str, finish_reason: str = "stop") -> web.StreamResponse:
        """Answer with a text in the way that was asked for; streamed, a word at a time."""
        if not self.body["stream"]:
            message = {"role": "assistant", "content": text}
            choice = {"index": 0, "message": message, "finish_reason": finish_reason}
            return web.json_response({"choices": [choice], "usage": usage(text)})
        stream = await self.open()
        for word in _words(text):
            await stream.write(_data({"content": word}))
        await stream.write(_data({}, finish_reason))
        await stream.write(b"data: %b\n\n" % _json({"choices": [], "usage": usage(text)}))
        await stream.write(b"data: [DONE]\n\n")
        return stream

    async def open(self, *words: str) -> web.StreamResponse:
        """Begin a streamed reply, and leave it there."""
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await stream.prepare(self.request)
        for word in words:
            await stream.write(_data({"content": word}))
        return stream


@dataclass
class ModelServer:
    """An OpenAI-compatible server: the n-th request gets the n-th step, then the last again.

    A step is a text to say, or a coroutine function of the `Exchange`.
    """

    steps: Sequence[Step]
    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)

    def play(self, *steps: Step) -> None:
        """Begin again with other steps."""
        self.steps = steps
        self.requests.clear()
        self.headers.clear()
        self.asked.clear()
        self.hung_up.clear()

    def told(self, n: int = -1) -> str:
        """Give the last message of the n-th request, without marks and the rules for acting."""
        return spoken(str(self.requests[n]["messages"][-1]["content"]))

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        step = self.steps[min(len(self.requests), len(self.steps) - 1)]
        self.requests.append(body)
        self.headers.append(dict(request.headers))
        self.asked.set()
        exchange = Exchange(request, body)
        try:
            if isinstance(step, str):
                return await exchange.say(step)
            response: web.StreamResponse = await step(exchange)
        except (asyncio.CancelledError, ConnectionError):
            self.hung_up.set()
            raise
        return response


def says(text: str, finish_reason: str = "stop") -> Step:
    """A step with a finish reason of its own."""
    return lambda exchange: exchange.say(text, finish_reason)


def status(code: int, body: str = "{}", **headers: str) -> Step:
    """A step that is an error."""
    given = {name.replace("_", "-"): value for name, value in headers.items()}

    async def fail(exchange: Exchange) -> web.Response:
        return web.Response(status=code, text=body, headers=given, content_type="application/json")

    return fail


async def silence(exchange: Exchange) -> web.StreamResponse:
    """A step that never answers."""
    return await asyncio.Event().wait()  # type: ignore[return-value]


def stalls(*words: str) -> Step:
    """A step that says some words and then nothing more; the connection stays open."""

    async def stall(exchange: Exchange) -> web.StreamResponse:
        await exchange.open(*words)
        return await silence(exchange)

    return stall


def breaks_off(*words: str) -> Step:
    """A step that says some words and closes the connection."""

    async def cut(exchange: Exchange) -> web.StreamResponse:
        stream = await exchange.open(*words)
        await stream.drain()
        assert exchange.request.transport
        exchange.request.transport.close()
        return stream

    return cut


def usage(text: str) -> dict[str, int]:
    return {"prompt_tokens": 10, "completion_tokens": len(text.split())}


def _words(text: str) -> list[str]:
    words = text.split(" ")
    return [f"{word} " for word in words[:-1]] + words[-1:]


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _data(delta: Mapping[str, str], finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return b"data: %b\n\n" % _json({"choices": [choice]})


@asynccontextmanager
async def model_server(*steps: Step) -> AsyncIterator[ModelServer]:
    server = ModelServer(steps)
    app = web.Application()
    app.router.add_post("/v1/chat/completions", server.answer)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert runner.addresses
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        yield server
    finally:
        await runner.cleanup()


def spoken(content: str) -> str:
    """Give what a message to the model says, without marks and the rules for acting."""
    return _MARKS.sub("", _RULES.sub("", content))
