"""Follow-ups, the queues of a run, and busy sessions, over HTTP."""

import asyncio
from typing import Any

from support.face import Face, face, openai_error
from support.stack import until

from diptych.runs.definition import AgentDefinition

SLOW = {"content": "{}", "delay_ms": 600}
VERY_SLOW = {"content": "{}", "delay_ms": 20_000}


async def started(helper: Face, **body: Any) -> str:
    response = await helper.http.post("/v1/runs", json={"input": "hi", **body})
    assert response.status_code == 202, response.text
    await until(lambda: helper.house.model.requests, 5)
    run_id: str = response.json()["id"]
    return run_id


async def send(helper: Face, run_id: str, how: str, message: Any) -> Any:
    return await helper.http.post(f"/v1/runs/{run_id}/{how}", json={"message": message})


async def test_a_follow_up_waits_is_shown_and_begins_the_next_turn() -> None:
    async with face(SLOW, "Hello.", "{}", "Voilà.") as helper:
        run_id = await started(helper)
        reply = await send(helper, run_id, "follow-up", "and in French")
        assert reply.status_code == 202, reply.text
        queue = (await helper.http.get(f"/v1/runs/{run_id}")).json()["queue"]
        assert queue == {"steer": [], "follow_up": [{"message": "and in French"}]}
        await helper.house.told(run_id)
        run = (await helper.http.get(f"/v1/runs/{run_id}")).json()
        assert run["answer"] == "Hello.\n\nVoilà."
        assert "queue" not in run


async def test_what_waits_is_cleared_and_given_back() -> None:
    async with face(SLOW, "Hello.") as helper:
        run_id = await started(helper)
        await send(helper, run_id, "follow-up", "later")
        await send(helper, run_id, "steer", "now")
        cleared = await helper.http.delete(f"/v1/runs/{run_id}/queue")
        assert cleared.status_code == 200, cleared.text
        queue = {"steer": [{"message": "now"}], "follow_up": [{"message": "later"}]}
        assert cleared.json() == {"queue": queue}
        again = await helper.http.delete(f"/v1/runs/{run_id}/queue")
        assert again.json() == {"queue": {"steer": [], "follow_up": []}}
        await helper.house.told(run_id)
        assert (await helper.http.get(f"/v1/runs/{run_id}")).json()["answer"] == "Hello."


async def test_a_run_that_has_ended_or_never_was_takes_none_and_has_nothing_to_clear() -> None:
    async with face() as helper:
        run_id = await started(helper)
        await helper.house.told(run_id)
        for how in ("steer", "follow-up"):
            assert openai_error(await send(helper, run_id, how, "x"), 409)["code"] == "run_over"
        over = await helper.http.delete(f"/v1/runs/{run_id}/queue")
        assert openai_error(over, 409)["code"] == "run_over"
        unknown = await helper.http.delete("/v1/runs/run-0000000a-x/queue")
        assert openai_error(unknown, 404)["code"] == "run_not_found"
        assert openai_error(await send(helper, run_id, "follow-up", " "), 400)["param"] == "message"


async def test_a_busy_session_is_refused_with_409_in_every_protocol() -> None:
    async with face(VERY_SLOW, definition=AgentDefinition(when_busy="reject")) as helper:
        await started(helper, session_id="s")
        body = {"input": "hi", "session_id": "s"}
        refused = await helper.http.post("/v1/runs", json=body)
        assert openai_error(refused, 409)["code"] == "session_busy"
        chat = {"messages": [{"role": "user", "content": "hi"}], "session_id": "s"}
        refused = await helper.http.post("/v1/chat/completions", json=chat)
        assert openai_error(refused, 409)["code"] == "session_busy"
        message = {
            "messageId": "m",
            "contextId": "s",
            "role": "ROLE_USER",
            "parts": [{"text": "hi"}],
        }
        call = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
        reply = await helper.http.post("/a2a", json=call, headers={"A2A-Version": "1.0"})
        assert "another task of this context" in reply.json()["error"]["message"]
        taken = await helper.http.post("/v1/runs", json={**body, "when_busy": "enqueue"})
        assert taken.status_code == 202


async def test_a_request_may_interrupt_the_run_that_goes_on() -> None:
    async with face(SLOW | {"delay_ms": 3_000}, "Hello.") as helper:
        first = await started(helper, session_id="s")
        chat = {
            "messages": [{"role": "user", "content": "stop, and say hi in French"}],
            "session_id": "s",
            "when_busy": "interrupt",
        }
        reply = await asyncio.wait_for(helper.http.post("/v1/chat/completions", json=chat), 20)
        assert reply.status_code == 200, reply.text
        assert (await helper.http.get(f"/v1/runs/{first}")).json()["status"] == "aborted"
        bad = await helper.http.post("/v1/runs", json={"input": "hi", "when_busy": "wait"})
        assert openai_error(bad, 400)["param"] == "when_busy"
