"""Two replicas over a real Redis: what the other tests here show over a double of the store."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from support.face import HI, Face, Speaker, openai_error, replicas
from support.redis_server import RedisServer, redis_server

from diptych.runs import lease_keeper

CHAT, RUNS = "/v1/chat/completions", "/v1/runs"
KEY = {"Idempotency-Key": "k-1"}
STREAM = {**HI, "stream": True}


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture(autouse=True)
def quickly_taken_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_keeper, "TAKEOVER_SECONDS", 0.05)


async def a2a(helper: Face, method: str, **params: Any) -> dict[str, Any]:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    response = await helper.http.post("/a2a", json=body, headers={"A2A-Version": "1.0"})
    reply: dict[str, Any] = response.json()
    return reply


@pytest.mark.parametrize("body", [pytest.param(HI, id="whole"), pytest.param(STREAM, id="stream")])
async def test_twenty_requests_with_one_key_are_one_run_and_have_equal_answers(
    redis: RedisServer, body: Any
) -> None:
    models = Speaker("one ", "two"), Speaker("one ", "two")
    async with replicas(*models, redis_url=redis.url) as helpers:
        replies = await asyncio.gather(
            *(helpers[n % 2].http.post(CHAT, json=body, headers=KEY) for n in range(20))
        )
        assert {reply.status_code for reply in replies} == {200}
        assert len({reply.content for reply in replies}) == 1
        assert len(await helpers[1].house.runs.entries()) == 1
        other = await helpers[1].http.post(CHAT, json={**body, "n": 1}, headers=KEY)
        assert openai_error(other, 422)["code"] == "idempotency_mismatch"


async def test_a_run_is_read_listed_and_cancelled_at_any_replica(redis: RedisServer) -> None:
    model = Speaker("one ", ...)
    async with replicas(model, Speaker(), redis_url=redis.url) as (owner, other):
        message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
        sent = [
            await a2a(at, "SendMessage", message=message, configuration={"returnImmediately": True})
            for at in (owner, other)
        ]
        first, again = [reply["result"]["task"]["id"] for reply in sent]
        assert first == again
        await model.has_stopped.wait()
        await asyncio.sleep(0.1)
        assert (await other.http.get(f"{RUNS}/{first}")).json()["text"] == "one "
        listed = (await a2a(other, "ListTasks", includeArtifacts=True))["result"]
        assert [task["id"] for task in listed["tasks"]] == [first]
        assert listed["tasks"][0]["artifacts"][0]["parts"][0]["text"] == "one "
        cancelled = await other.http.post(f"{RUNS}/{first}/cancel")
        assert (cancelled.status_code, cancelled.json()["status"]) == (200, "aborted")
        task = (await a2a(owner, "GetTask", id=first))["result"]
        assert task["status"]["state"] == "TASK_STATE_CANCELED"
        gone = await other.http.get(f"{RUNS}/run-ffffffff-{'0' * 32}")
        assert openai_error(gone, 410)["code"] == "run_lost"
        unknown = await other.http.get(f"{RUNS}/{first[:-1]}g")
        assert openai_error(unknown, 404)["code"] == "run_not_found"
