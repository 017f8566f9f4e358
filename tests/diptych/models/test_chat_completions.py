"""The model client against a real server on a raw socket: whole and streamed replies, and faults.

Each test scripts its server: the n-th request gets the n-th step, which is bytes to write, or a
function that gets the writer.
"""

import asyncio
import gc
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson
import pytest

from diptych.core.errors import ConfigError, ModelError
from diptych.core.messages import Message, Usage
from diptych.core.model_request import ModelRequest
from diptych.manifest.settings import ModelConfig, TimeoutConfig
from diptych.models.chat_model import ChatModel
from diptych.ports import Delta, Reply

Step = bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]
ASKED = (Message("system", "Be brief."), Message("user", "Hello"))
REQUEST = ModelRequest(ASKED)
KEY = "sk-canary-0123456789"
SHORT = TimeoutConfig(connect=0.1, first_byte=0.1, idle=0.1, total=0.3)
SOON_SILENT = TimeoutConfig(idle=0.3)  # else with a usual model's patience: the machine may be busy


@dataclass
class Upstream:
    """A model server that is scripted, and remembers what it was asked."""

    steps: list[Step]
    url: str = ""
    requests: list[tuple[str, dict[str, str], dict[str, Any]]] = field(default_factory=list)
    connections: int = 0
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await self._answer(reader, writer):
                pass
            await reader.read()
            self.hung_up.set()
        except ConnectionError:
            self.hung_up.set()
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        except asyncio.IncompleteReadError:
            self.hung_up.set()
            return False
        fields = (line.split(": ", 1) for line in head[1:] if line)
        headers = {name.lower(): value for name, value in fields}
        body = orjson.loads(await reader.readexactly(int(headers["content-length"])))
        self.requests.append((head[0], headers, body))
        self.asked.set()
        step = self.steps[len(self.requests) - 1]
        if isinstance(step, bytes):
            writer.write(step)
            await writer.drain()
            return True
        await step(writer)
        return not writer.is_closing()


@asynccontextmanager
async def upstream(*steps: Step) -> AsyncIterator[Upstream]:
    there = Upstream(list(steps))
    tasks: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.create_task(there.serve(reader, writer)))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    there.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield there
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Pauses:
    """Stands in for sleep; remembers how long it was asked to wait."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


def model(
    session: aiohttp.ClientSession,
    url: str,
    *,
    pauses: Pauses | None = None,
    chance: float = 0.5,
    **settings: Any,
) -> ChatModel:
    chosen = ModelConfig("gpt-x", url, **settings)
    return ChatModel(session, chosen, sleep=pauses or Pauses(), random=lambda: chance)


def http(status: int, body: bytes = b"{}", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Word", f"Content-Length: {len(body)}"]
    headers.setdefault("content_type", "application/json")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def reply(content: str, **more: object) -> bytes:
    message = {"role": "assistant", "content": content}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return http(200, orjson.dumps({"choices": [choice], **more}))


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
STREAM_END = b"0\r\n\r\n"


def framed(text: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(text), text)


def said(text: str, finish_reason: str | None = None) -> bytes:
    delta = {"content": text} if text else {}
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return b"data: " + orjson.dumps({"choices": [choice]}) + b"\n\n"


USED = b'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}\n\n'
DONE = b"data: [DONE]\n\n"
TOKENS = {"prompt_tokens": 3, "completion_tokens": 2}
HELLO = STREAM_HEAD + framed(said("Hel") + said("lo") + said("", "stop") + DONE) + STREAM_END


def slowly(*pieces: bytes, wait: float = 0.02) -> Step:
    """Write pieces one by one, so that each is a network read; then keep the connection."""

    async def write(writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(wait)

    return write


def then_closes(*pieces: bytes) -> Step:
    async def write(writer: asyncio.StreamWriter) -> None:
        await slowly(*pieces)(writer)  # type: ignore[operator]
        writer.close()

    return write


def then_resets(*pieces: bytes) -> Step:
    async def write(writer: asyncio.StreamWriter) -> None:
        await slowly(*pieces)(writer)  # type: ignore[operator]
        writer.transport.abort()

    return write


async def streamed(asked: ChatModel, messages: Sequence[Message] = ASKED) -> list[Delta]:
    return [delta async for delta in asked.stream(ModelRequest(tuple(messages), 0))]


async def completed(asked: ChatModel) -> Reply:
    return await asked.complete(REQUEST)


# Requests and replies


async def test_a_whole_reply_is_read(session: aiohttp.ClientSession) -> None:
    usage = {"prompt_tokens": 11, "completion_tokens": 2}
    async with upstream(reply("Hello!", usage=usage)) as there:
        asked = model(session, there.url, temperature=0.2, max_tokens=9, reasoning_effort="low")
        assert await asked.complete(REQUEST) == Reply("Hello!", Usage(11, 2), "stop")
        line, headers, body = there.requests[0]
    assert line == "POST /v1/chat/completions HTTP/1.1"
    assert headers["content-type"] == "application/json"
    assert "authorization" not in headers
    assert body == {
        "model": "gpt-x",
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.2,
        "max_tokens": 9,
        "reasoning_effort": "low",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hello"},
        ],
    }


async def test_what_arrives_later_is_another_piece(session: aiohttp.ClientSession) -> None:
    emoji = said("😀")
    step = slowly(
        STREAM_HEAD,
        framed(b": ping\n\n"),
        framed(said("Hel") + said("lo") + emoji[:-12]),
        framed(emoji[-12:] + said("", "stop")),
        framed(USED),
        framed(DONE) + STREAM_END,
    )
    async with upstream(step) as there:
        deltas = await streamed(model(session, there.url))
    assert deltas == [Delta("Hello"), Delta("😀"), Delta("", "", Usage(3, 2), "stop")]


@pytest.mark.parametrize("endpoint", ["models.example.com/v1", "ftp://x/v1"])
async def test_an_endpoint_that_is_no_url_is_refused(
    session: aiohttp.ClientSession, endpoint: str
) -> None:
    with pytest.raises(ConfigError, match="http://"):
        model(session, endpoint)


async def test_the_key_is_read_at_each_call(session: aiohttp.ClientSession) -> None:
    keys = iter(["first", "second\n"])
    async with upstream(reply(""), reply("")) as there:
        asked = model(session, there.url, api_key=lambda: next(keys))
        await asked.complete(REQUEST)
        await asked.complete(ModelRequest(ASKED, 1))
        sent = [headers["authorization"] for _, headers, _ in there.requests]
    assert sent == ["Bearer first", "Bearer second"]


@pytest.mark.parametrize("key", [None, "a\nb", "grün"])
async def test_a_key_that_is_missing_or_broken_is_not_sent(
    session: aiohttp.ClientSession, key: str | None
) -> None:
    async with upstream() as there:
        with pytest.raises(ModelError, match="secret") as caught:
            await model(session, there.url, api_key=lambda: key).complete(REQUEST)
        assert caught.value.code == "model_unauthorized"
        assert there.requests == []


async def test_connections_are_used_again(session: aiohttp.ClientSession) -> None:
    async with upstream(reply("a"), HELLO, reply("b"), http(400), reply("c")) as there:
        asked = model(session, there.url)
        await asked.complete(REQUEST)
        await streamed(asked)
        await asked.complete(REQUEST)
        with pytest.raises(ModelError):
            await asked.complete(REQUEST)
        await asked.complete(REQUEST)
        assert there.connections == 1


# Retries


@pytest.mark.parametrize(("value", "seconds"), [("2", 2.1), ("3600", 31.5)])
async def test_retry_after_is_honoured(
    session: aiohttp.ClientSession, value: str, seconds: float
) -> None:
    pauses = Pauses()
    async with upstream(http(429, retry_after=value), reply("")) as there:
        await model(session, there.url, pauses=pauses).complete(REQUEST)
    assert pauses.seconds == [pytest.approx(seconds)]


async def test_a_kept_connection_that_is_closed_says_nothing_of_its_server(
    session: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    """llama.cpp closes some of them after a stream, though it says that it keeps them."""
    end = then_closes(b"")
    pauses = Pauses()
    one, two, three = (reply(text, usage=TOKENS) for text in ("one", "two", "three"))
    async with upstream(one, end, two, end, three) as there:
        asked = model(session, there.url, pauses=pauses)
        texts = [(await asked.complete(REQUEST)).text for _ in range(3)]
        assert texts == ["one", "two", "three"]
        assert there.connections == 3
    assert not pauses.seconds
    assert not caplog.records


async def test_a_failed_handshake_is_not_tried_again(session: aiohttp.ClientSession) -> None:
    def speak_plainly(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    pauses = Pauses()
    async with await asyncio.start_server(speak_plainly, "127.0.0.1", 0) as server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        with pytest.raises(ModelError, match="TLS") as caught:
            await model(session, url, pauses=pauses).complete(REQUEST)
    assert (caught.value.code, pauses.seconds) == ("model_unreachable", [])


async def test_a_proxy_that_is_away_is_not_tried_again(session: aiohttp.ClientSession) -> None:
    async with upstream() as proxy, upstream() as there:
        pass
    pauses = Pauses()
    with pytest.raises(ModelError, match="proxy") as caught:
        await model(session, there.url, pauses=pauses, proxy=proxy.url).complete(REQUEST)
    assert (caught.value.code, pauses.seconds) == ("model_unreachable", [])


# Replies that end early, or make no sense


@pytest.mark.parametrize(
    ("piece", "code"),
    [
        pytest.param([b"nonsense\r\n"], "model_timeout", id="broken framing"),
        pytest.param([framed(b"data: " + b"x" * 1_100_000)], "model_garbage", id="an endless line"),
    ],
)
async def test_a_stream_that_breaks_is_an_error_after_what_came(
    session: aiohttp.ClientSession, piece: list[bytes], code: str
) -> None:
    timeouts = SOON_SILENT if code == "model_timeout" else TimeoutConfig()
    async with upstream(slowly(STREAM_HEAD, framed(said("Hel")), *piece)) as there:
        stream = model(session, there.url, timeouts=timeouts).stream(REQUEST)
        assert await anext(stream) == Delta("Hel")
        with pytest.raises(ModelError) as caught:
            await anext(stream)
        await asyncio.wait_for(there.hung_up.wait(), 1)
        assert len(there.requests) == 1
    assert caught.value.code == code


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(http(200, b"x" * 9_000_000), id="too much"),
        pytest.param(reply("Hi", x=[{}] * 400_000), id="too much when parsed"),
        pytest.param(http(200, gzip.compress(b"{}"), content_encoding="gzip"), id="compressed"),
    ],
)
async def test_a_success_that_cannot_be_read_is_an_error(
    session: aiohttp.ClientSession, step: Step
) -> None:
    async with upstream(step, step) as there:
        asked = model(session, there.url)
        for ask in (asked.complete(REQUEST), streamed(asked)):
            with pytest.raises(ModelError) as caught:
                await ask
            assert caught.value.code == "model_garbage"
        assert len(there.requests) == 2


# Time


@pytest.mark.parametrize(
    ("step", "ask"),
    [
        pytest.param(slowly(), completed, id="no headers"),
        pytest.param(slowly(STREAM_HEAD, *[framed(b"x")] * 20), streamed, id="a drip"),
    ],
)
async def test_a_reply_that_does_not_begin_is_asked_for_once(
    session: aiohttp.ClientSession, step: Step, ask: Callable[[ChatModel], Awaitable[Any]]
) -> None:
    """A slow server would begin anew, as slowly; the error says which limit to raise."""
    async with upstream(step, HELLO) as there:
        with pytest.raises(ModelError) as caught:
            await ask(model(session, there.url, timeouts=TimeoutConfig(first_byte=0.3)))
        assert len(there.requests) == 1
    assert caught.value.code == "model_timeout"
    assert "within 0.3 s" in caught.value.message
    assert "spec.model.timeouts.firstByte" in caught.value.message


async def test_a_reply_that_takes_longer_than_its_first_byte_may_is_read(
    session: aiohttp.ClientSession,
) -> None:
    words = [framed(said(f"{n} ")) for n in range(12)]
    step = slowly(STREAM_HEAD, *words, framed(said("", "stop") + USED + DONE), STREAM_END, wait=0.1)
    async with upstream(step) as there:
        slow = model(session, there.url, timeouts=TimeoutConfig(first_byte=0.5, idle=0.5))
        reply = await slow.complete(REQUEST)
        assert len(there.requests) == 1
    assert reply == Reply("0 1 2 3 4 5 6 7 8 9 10 11 ", Usage(3, 2))


async def test_keep_alives_before_a_reply_are_given_the_time_of_its_first_byte(
    session: aiohttp.ClientSession,
) -> None:
    """llama.cpp sends one every 30 s while it reads a prompt: as long as it may be silent later."""
    timeouts = TimeoutConfig(first_byte=1, idle=0.2)
    step = slowly(STREAM_HEAD, *[framed(b": ping\n\n")] * 3, HELLO[len(STREAM_HEAD) :], wait=0.5)
    async with upstream(step) as there:
        reply = await model(session, there.url, timeouts=timeouts).complete(REQUEST)
        assert len(there.requests) == 1
    assert reply.text == "Hello"


async def test_a_slow_consumer_is_not_a_slow_model(session: aiohttp.ClientSession) -> None:
    step = slowly(STREAM_HEAD, framed(said("Hel")), framed(said("lo", "stop") + DONE), STREAM_END)
    deltas = []
    async with upstream(step) as there:
        async for delta in model(session, there.url, timeouts=SOON_SILENT).stream(REQUEST):
            deltas.append(delta)
            await asyncio.sleep(0.5)
    assert deltas == [Delta("Hel"), Delta("lo", "", None, "stop")]


# Ends that the caller makes


@pytest.mark.parametrize("closes", [True, False], ids=["closed", "left to the collector"])
async def test_a_stream_that_is_dropped_hangs_up(
    session: aiohttp.ClientSession, closes: bool
) -> None:
    async with upstream(slowly(STREAM_HEAD, framed(said("Hel")))) as there:
        stream = model(session, there.url).stream(REQUEST)
        assert await anext(stream) == Delta("Hel")
        if closes:
            async with aclosing(stream):
                pass
        del stream
        gc.collect()
        await asyncio.wait_for(there.hung_up.wait(), 1)


# Secrets and the environment


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(then_resets(), id="no response"),
        pytest.param(http(400, b'{"error": "bad key ' + KEY.encode() + b'"}'), id="400"),
        pytest.param(http(200, b'{"error": "' + KEY.encode() + b'"}'), id="error in a success"),
        pytest.param(then_closes(STREAM_HEAD, KEY.encode()), id="cut"),
    ],
)
async def test_no_error_tells_a_secret(session: aiohttp.ClientSession, step: Step) -> None:
    async with upstream(*[step] * 3) as there:
        url = there.url.replace("//", f"//user:{KEY}@") + f"?key={KEY}"
        asked = model(session, url, api_key=lambda: KEY, timeouts=SHORT)
        with pytest.raises(ModelError) as caught:
            await streamed(asked)
    shown = f"{caught.value} {caught.value!r} {caught.value.__cause__!r}"
    assert "canary" not in shown
    assert "canary" not in repr(ModelConfig("m", url, lambda: KEY))
