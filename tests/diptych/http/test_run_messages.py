"""Messages to a run over HTTP: steering, follow-ups, its queues, busy sessions, and resuming."""

import asyncio
from typing import Any

from support.doubles import ListeningModel
from support.face import HI, Face, Speaker, face, openai_error
from support.stack import call, frames, text_of, until

from diptych.models.scripted import ScriptedModel
from diptych.runs.definition import AgentDefinition

MORE = "and in French"
VERY_SLOW = {"content": "{}", "delay_ms": 20_000}


class Held(ListeningModel):
    """A scripted model that replies from `go` on."""

    def __init__(self, *replies: Any) -> None:
        super().__init__(*replies)
        self.go = asyncio.Event()

    async def complete(self, request: Any) -> Any:
        self.requests.append(request.messages)
        await self.go.wait()
        return await ScriptedModel.complete(self, request)


async def started(helper: Face, **body: Any) -> str:
    response = await helper.http.post("/v1/runs", json={"input": "hi", **body})
    assert response.status_code == 202, response.text
    await until(lambda: helper.house.model.requests, 5)
    run_id: str = response.json()["id"]
    return run_id


async def send(helper: Face, run_id: str, how: str, message: Any, **headers: str) -> Any:
    path = f"/v1/runs/{run_id}/{how}"
    return await helper.http.post(path, json={"message": message}, headers=headers)


async def facts(helper: Face) -> list[str]:
    events = (await helper.http.get("/memory/events")).json()["events"]
    return [event["event_type"] for event in events]


async def echo(text: str = "") -> str:
    return text


async def test_a_message_joins_a_run_and_is_part_of_its_record() -> None:
    async with face(model=Held("{}", "{}", "Voilà.")) as helper:
        run_id = await started(helper)
        reply = await send(helper, run_id, "steer", MORE)
        assert reply.status_code == 202, reply.text
        assert (reply.json()["id"], reply.json()["status"]) == (run_id, "running")
        helper.house.model.go.set()
        await helper.house.told(run_id)
        assert await facts(helper) == ["user_message", "user_message", "agent_response"]
        assert "and in French" in helper.house.model.requests[1][-1].content


async def test_a_message_under_one_key_joins_once_and_another_one_under_it_is_refused() -> None:
    async with face(model=Held("{}", "{}", "Voilà.")) as helper:
        run_id = await started(helper)
        key = {"Idempotency-Key": "k-1"}
        replies = await asyncio.gather(
            *(send(helper, run_id, "steer", MORE, **key) for _ in range(5))
        )
        assert {reply.status_code for reply in replies} == {202}
        other = await send(helper, run_id, "steer", "in German", **key)
        assert openai_error(other, 422)["code"] == "idempotency_mismatch"
        helper.house.model.go.set()
        await helper.house.told(run_id)
        assert (await facts(helper)).count("user_message") == 2


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
            assert (await send(helper, entry.run_id, "steer", MORE)).status_code == 202
        speaker.go.set()
        streamed, whole = await asyncio.gather(*chats)
        content = whole.json()["choices"][0]["message"]["content"]
        assert content == text_of(frames(streamed.text)) == "One.\n\nOne."


async def test_what_waits_is_cleared_and_given_back() -> None:
    async with face(model=Held("{}", "Hello.")) as helper:
        run_id = await started(helper)
        await send(helper, run_id, "follow-up", "later")
        await send(helper, run_id, "steer", "now")
        cleared = await helper.http.delete(f"/v1/runs/{run_id}/queue")
        assert cleared.status_code == 200, cleared.text
        queue = {"steer": [{"message": "now"}], "follow_up": [{"message": "later"}]}
        assert cleared.json() == {"queue": queue}
        again = await helper.http.delete(f"/v1/runs/{run_id}/queue")
        assert again.json() == {"queue": {"steer": [], "follow_up": []}}
        helper.house.model.go.set()
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
    async with face({"content": "{}", "delay_ms": 1_000}, "Hello.") as helper:
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


async def test_a_failed_run_is_taken_up_by_a_new_one() -> None:
    async with face(
        call("echo", text="hello"), "{}", {"error": "it is ill"}, tools={"echo": echo}
    ) as helper:
        run = (await helper.http.post("/v1/runs", json={"input": "hi", "session_id": "s"})).json()
        await helper.http.get(f"/v1/runs/{run['id']}/events")
        response = await helper.http.post(f"/v1/runs/{run['id']}/resume")
        assert response.status_code == 202, response.text
        new = response.json()
        assert (new["session_id"], new["resumes"], new["object"]) == ("s", run["id"], "run")
        await helper.http.get(f"/v1/runs/{new['id']}/events")
        read = (await helper.http.get(f"/v1/runs/{new['id']}")).json()
        assert read["resumes"] == run["id"]
        again = await helper.http.post(
            f"/v1/runs/{run['id']}/resume", json={}, headers={"Idempotency-Key": "k"}
        )
        assert again.json()["id"] == new["id"]


async def test_what_cannot_be_resumed_is_refused_with_a_sentence() -> None:
    async with face("{}", "Hello.") as helper:
        run = (await helper.http.post("/v1/runs", json={"input": "hi"})).json()
        await helper.http.get(f"/v1/runs/{run['id']}/events")
        path = f"/v1/runs/{run['id']}/resume"
        done = await helper.http.post(path, json={})
        assert openai_error(done, 409)["code"] == "not_resumable"
        many = await helper.http.post(path, json={"max_steps": 99})
        assert openai_error(many, 400)["param"] == "max_steps"
        assert "at most 5" in openai_error(many, 400)["message"]
        for body in ({"max_steps": 0}, {"message": "hi"}, {"max_steps": "3"}):
            assert (await helper.http.post(path, json=body)).status_code == 400
        assert (await helper.http.post("/v1/runs/run-x/resume", json={})).status_code == 404
        lost = "/v1/runs/run-ffffffff-00000000000000000000000000000001/resume"
        assert (await helper.http.post(lost, json={})).status_code == 410
