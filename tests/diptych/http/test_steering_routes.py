"""`/v1/runs/{id}/steer`: a message to a run that is there, and what a chat tells of it."""

import asyncio
from typing import Any

import pytest
from support.face import HI, Face, Speaker, face, openai_error
from support.stack import frames, text_of, until

SLOW = {"content": "{}", "delay_ms": 400}
MORE = {"message": "and in French"}


async def started(helper: Face) -> str:
    response = await helper.http.post("/v1/runs", json={"input": "hi"})
    run_id: str = response.json()["id"]
    return run_id


async def steered(helper: Face, run_id: str, body: Any = MORE, **headers: str) -> Any:
    return await helper.http.post(f"/v1/runs/{run_id}/steer", json=body, headers=headers)


async def facts(helper: Face) -> list[str]:
    events = (await helper.http.get("/memory/events")).json()["events"]
    return [event["event_type"] for event in events]


async def test_a_message_joins_a_run_and_is_part_of_its_record() -> None:
    async with face(SLOW, "{}", "Voilà.") as helper:
        run_id = await started(helper)
        await until(lambda: helper.house.model.requests, 5)
        reply = await steered(helper, run_id)
        assert reply.status_code == 202, reply.text
        assert (reply.json()["id"], reply.json()["status"]) == (run_id, "running")
        await helper.house.told(run_id)
        assert await facts(helper) == ["user_message", "user_message", "agent_response"]
        assert "and in French" in helper.house.model.requests[1][-1].content


async def test_a_message_under_one_key_joins_once_and_another_one_under_it_is_refused() -> None:
    async with face(SLOW, "{}", "Voilà.") as helper:
        run_id = await started(helper)
        key = {"Idempotency-Key": "k-1"}
        replies = await asyncio.gather(*(steered(helper, run_id, **key) for _ in range(5)))
        assert {reply.status_code for reply in replies} == {202}
        other = await steered(helper, run_id, {"message": "in German"}, **key)
        assert openai_error(other, 422)["code"] == "idempotency_mismatch"
        await helper.house.told(run_id)
        assert (await facts(helper)).count("user_message") == 2


@pytest.mark.parametrize(
    ("body", "param"),
    [
        pytest.param({"message": ""}, "message", id="an empty message"),
        pytest.param({"message": "a", "role": "user"}, "role", id="a field that is not known"),
    ],
)
async def test_what_is_no_message_is_refused(body: Any, param: str) -> None:
    async with face(SLOW, "Hello.") as helper:
        refused = openai_error(await steered(helper, await started(helper), body), 400)
        assert refused["param"] == param


async def test_a_chat_tells_the_answers_of_all_turns_streamed_or_not() -> None:
    speaker = Speaker("One.", ...)
    async with face(model=speaker) as helper:
        chats = [
            asyncio.create_task(
                helper.http.post("/v1/chat/completions", json={**HI, "stream": streams})
            )
            for streams in (True, False)
        ]
        await speaker.has_stopped.wait()
        await asyncio.sleep(0.2)
        for entry in await helper.house.runs.entries():
            assert (await steered(helper, entry.run_id)).status_code == 202
        speaker.go.set()
        streamed, whole = await asyncio.gather(*chats)
        content = whole.json()["choices"][0]["message"]["content"]
        assert content == text_of(frames(streamed.text)) == "One.\n\nOne."
