"""A response whose owner is killed under its stream is taken up at another pod, byte for byte."""

import asyncio
import json

import pytest
from support.callers import client
from support.one_text import MOCK, TEXT
from support.pods import all_ready, pod_processes
from support.redis_server import redis_server
from support.stack import Frame, frames

pytestmark = pytest.mark.timeout(120)
PATH = "/v1/responses"
DELTA = "response.output_text.delta"


def joined(told: list[Frame]) -> str:
    return "".join(f.json["delta"] for f in told if f.event == DELTA)


async def test_a_stream_whose_owner_is_killed_is_taken_up_after_its_last_event() -> None:
    with redis_server() as redis, pod_processes(redis.url, DEBUG_MOCK_RESPONSES=MOCK) as pods:
        await all_ready(pods)
        owner, other = pods[:2]
        async with asyncio.timeout(60), client() as http:
            body = {"input": "hi", "stream": True, "background": True}
            heard = b""
            async with http.post(f"{owner.url}{PATH}", json=body) as reply:
                assert reply.status == 200
                run_id = reply.headers["X-Run-ID"]
                while heard.count(DELTA.encode()) < 20:
                    heard += await reply.content.readany()
                owner.kill()
            heard = heard[: heard.rindex(b"\n\n") + 2]
            told = frames(heard.decode())
            last = json.loads(told[-1].data)["sequence_number"]
            path = f"{other.url}{PATH}/{run_id}?stream=true"
            async with http.get(f"{path}&starting_after={last}") as reply:
                rest = await reply.read()
            async with http.get(path) as reply:
                whole = await reply.read()
            assert heard + rest == whole
            ended = frames(whole.decode())
            assert ended[-1].event == "response.completed"
            assert [f.json["sequence_number"] for f in ended] == list(range(len(ended)))
            assert joined(told) != TEXT == joined(ended)
            async with http.get(f"{other.url}{PATH}/{run_id}") as reply:
                assert await reply.json() == ended[-1].json["response"]
