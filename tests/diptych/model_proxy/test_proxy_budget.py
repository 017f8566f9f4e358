"""A ModelAPI's budget of a day, over all replicas of its proxy, in a real Redis."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.model_proxies import (
    USAGE,
    Answer,
    Asked,
    Endpoint,
    Files,
    Served,
    endpoint,
    proxy,
    replying,
    until_true,
    write,
)
from support.redis_server import RedisServer, redis_server
from support.stack import until

from diptych.core.messages import Usage
from diptych.model_proxy.usage import TAIL, expected_usage, reported_usage

SSE = "Content-Type: text/event-stream\r\n"
COUNTED = USAGE["prompt_tokens"] + USAGE["completion_tokens"]
SMALL = {"model": "small", "max_tokens": 120}


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture
def redis(server: RedisServer) -> RedisServer:
    server.ask("FLUSHALL")
    return server


@asynccontextmanager
async def replicas(
    folder: Path, redis: RedisServer, behind: Endpoint, count: int = 2, **day: Any
) -> AsyncIterator[list[Served]]:
    (folder / "redis").write_text(redis.url)
    store = {"urlFrom": {"file": str(folder / "redis")}}
    prices = {"small": {"input": "10000", "output": "20000"}}
    files = Files(folder, behind.url, budget={"perDay": day}, redis=store, prices=prices)
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(proxy(files)) for _ in range(count)]


async def used(served: Served) -> float:
    """How much of the day's tokens is used, once everything is settled there."""
    inside = served.proxy
    await until(lambda: not (inside.relay.live or inside._budget._settling))
    lines = (await served.metrics()).splitlines()
    return float(next(x for x in lines if "budget_used_ratio{" in x).split()[-1])


async def test_replicas_together_go_over_the_day_by_one_request_at_most(
    tmp_path: Path, redis: RedisServer
) -> None:
    async with (
        endpoint() as behind,
        replicas(tmp_path, redis, behind, tokens=20 * COUNTED) as both,
    ):
        statuses: list[int] = []

        async def ask_until_gone(served: Served) -> None:
            while True:
                status, body = await served.ask(**SMALL)
                statuses.append(status)
                if status == 429 and body["error"]["code"] == "budget_exhausted":
                    assert body["error"]["type"] == "insufficient_quota"
                    return

        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            for n in range(8):
                group.create_task(ask_until_gone(both[n % 2]))
        assert statuses.count(200) in {20, 21}
        assert len(behind.chats) == statuses.count(200)
        async with both[0].post(SMALL) as reply:
            assert 0 < int(reply.headers["Retry-After"]) <= 24 * 3600
            assert reply.headers["x-should-retry"] == "false"


async def test_money_is_counted_by_the_model_s_prices_and_a_model_without_one_is_refused(
    tmp_path: Path, redis: RedisServer
) -> None:
    async with endpoint() as behind, replicas(tmp_path, redis, behind, 1, cost="2.6") as (served,):
        assert (await served.ask(**SMALL))[0] == 200
        assert await used(served) == pytest.approx((0.7 + 0.6) / 2.6)
        assert (await served.ask(**SMALL))[0] == 200
        await used(served)
        assert (await served.ask(**SMALL))[0] == 429
        status, body = await served.ask(model="large")
        assert (status, body["error"]["code"]) == (403, "model_without_price")
    assert len(behind.chats) == 2


async def test_what_cannot_be_counted_is_refused(tmp_path: Path, redis: RedisServer) -> None:
    async with (
        endpoint() as behind,
        replicas(tmp_path, redis, behind, 1, tokens=10**6) as (served,),
    ):
        assert (await served.ask(**SMALL))[0] == 200
        redis.kill()
        async with asyncio.timeout(20):
            while (answer := await served.ask(**SMALL))[0] == 200:  # until it has noticed
                pass
        assert (answer[0], answer[1]["error"]["code"]) == (503, "budget_unavailable")
        assert len(behind.chats) == 1
        _, ready = await served.get("/ready")
        assert ready["notes"]
        redis.start()

        async def counts_again() -> bool:
            return (await served.ask(**SMALL))[0] == 200

        await until_true(counts_again)


def streaming(*pieces: bytes, hangs: bool = False) -> Answer:
    async def answer(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await write(writer, *pieces, headers=SSE)
        if hangs:
            await asked.hung_up.wait()

    return answer


REPORTED = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2}}\n\n'


async def hanging_up(_: Asked, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


EXPECTED = asyncio.run(expected_usage(json.dumps({"messages": [], **SMALL}).encode(), SMALL))
RESERVED = EXPECTED.prompt_tokens + EXPECTED.completion_tokens


@pytest.mark.parametrize(
    ("answer", "tokens"),
    [
        pytest.param(streaming(b"data: {}\n\n" * 3 + REPORTED), 9, id="a stream with usage"),
        pytest.param(streaming(b"data: {}\n\n"), RESERVED, id="a stream without"),
        pytest.param(streaming(b"data: {}\n\n", hangs=True), RESERVED, id="one that is cut"),
        pytest.param(replying(b'{"a":123}'), RESERVED, id="a whole one without"),
        pytest.param(replying(b"{}", status="400 Bad Request"), 0, id="an error"),
        pytest.param(hanging_up, 0, id="no reply"),
    ],
)
async def test_a_request_is_charged_what_it_used_and_nothing_stays_reserved(
    tmp_path: Path, redis: RedisServer, answer: Answer, tokens: int
) -> None:
    async with (
        endpoint(answer) as behind,
        replicas(tmp_path, redis, behind, 1, tokens=1000) as (served,),
    ):
        async with served.post({"messages": [], **SMALL}) as reply:
            if "stream" in reply.headers.get("Content-Type", ""):
                assert b"stream_options" not in behind.chats[0].body
            await reply.content.readany()
        assert await used(served) == tokens / 1000
        (account,) = redis.ask("KEYS", "diptych:platform:modelapi/house:budget:*")
        assert any(b'"reserved": {}' in value for value in redis.ask("HVALS", account))


@pytest.mark.parametrize(
    ("reply", "usage"),
    [
        (b'{"usage": {"prompt_tokens": 3, "completion_tokens": 4}}', Usage(3, 4)),
        (b'{"choices":["' + b"x" * 10**6 + b'"],"usage":{"prompt_tokens":5}}', Usage(5)),
        (
            b'data: {"usage":null}\n\ndata: {"usage":{"prompt_tokens":1}}\n\ndata: {"usage":null}',
            Usage(1),
        ),
        (b'data: {"usage":{"prompt_tokens":1}}\n\ndata: {"usage":{"prompt_tokens":2}}', Usage(2)),
        (b'{"text":"\\"usage\\":{\\"prompt_tokens\\":9}"}', None),
        (b'{"usage":{"prompt_tokens":-1}}', None),
        (b'{"usage":{"prompt_tokens":true,"completion_tokens":"7"}}', None),
        (b'{"usage":{"prompt_tokens":1e400}}', None),
        (b'{"usage":' + b'{"a":' * 30_000, None),
        (b"\xff\x00", None),
    ],
)
def test_usage_is_found_at_the_end_of_a_reply(reply: bytes, usage: Usage | None) -> None:
    assert reported_usage(reply[-TAIL:]) == usage


async def test_an_image_does_not_count_by_its_bytes() -> None:
    url = "data:image/png;base64," + "A" * 10**6
    body = json.dumps({"messages": [{"content": [{"image_url": {"url": url}}]}]}).encode()
    assert (await expected_usage(body, {})).prompt_tokens < 1100
    bounded = {"max_completion_tokens": 50, "n": 3}
    assert (await expected_usage(body, bounded)).completion_tokens == 150
