"""`/memory/*`: the record, for people and tests."""

import asyncio
from datetime import datetime
from typing import Any

from support.face import NAME, Face, face, problem
from support.stack import call


async def echo(text: str = "") -> str:
    return text


async def forever(**_: Any) -> None:
    await asyncio.Event().wait()


async def ask(helper: Face, text: str = "hi", session_id: str | None = None) -> None:
    body = {"messages": [{"role": "user", "content": text}], "session_id": session_id}
    response = await helper.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text


async def events(helper: Face, **query: Any) -> dict[str, Any]:
    response = await helper.http.get("/memory/events", params=query)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def test_events_are_shown_with_their_metadata_and_without_machinery() -> None:
    async with face(call("echo", text="x"), "{}", "Done.", tools={"echo": echo}) as helper:
        await ask(helper, session_id="s")
        found = await events(helper)
        assert found["agent"] == NAME
        assert found["total"] == 4
        asked, called, result, answer = found["events"]
        assert (asked["event_type"], asked["content"]) == ("user_message", "hi")
        assert called["content"] == {"tool": "echo", "arguments": {"text": "x"}}
        assert result["metadata"]["call_id"] == called["metadata"]["call_id"]
        assert result["content"] == "x"
        assert answer["content"] == "Done."
        for event in found["events"]:
            assert event["session_id"] == "s"
            assert datetime.fromisoformat(event["timestamp"]).tzinfo is not None


async def test_events_of_one_session_are_its_own_and_of_an_unknown_one_none() -> None:
    async with face() as helper:
        await ask(helper, "one", "a")
        await ask(helper, "two", "b")
        found = await events(helper, session_id="b")
        assert [event["content"] for event in found["events"]] == ["two", "Hello!"]
        assert await events(helper, session_id="c") == {
            "agent": NAME,
            "events": [],
            "total": 0,
            "next_before": None,
        }


async def test_a_limit_of_sessions_keeps_those_that_were_used_last_and_the_total() -> None:
    async with face() as helper:
        for session_id in "abca":
            helper.clock.seconds += 1
            await ask(helper, session_id=session_id)
        found = (await helper.http.get("/memory/sessions?limit=2")).json()
        assert [session["session_id"] for session in found["sessions"]] == ["a", "c"]
        assert found["total"] == 3
        problem(await helper.http.get("/memory/sessions?limit=0"), 400)


async def test_a_deleted_session_is_gone_with_its_runs_and_begins_anew() -> None:
    async with face() as helper:
        await ask(helper, "first question", "s")
        assert (await helper.http.delete("/memory/sessions/s")).status_code == 204
        assert (await events(helper))["total"] == 0
        assert problem(await helper.http.delete("/memory/sessions/s"), 404)
        await ask(helper, "two", "s")
        assert "first question" not in str(helper.house.model.requests[-1])


async def test_a_session_at_work_is_not_deleted() -> None:
    async with face(call("forever"), tools={"forever": forever}) as helper:
        await helper.http.post("/v1/runs", json={"input": "hi", "session_id": "s"})
        body = problem(await helper.http.delete("/memory/sessions/s"), 409)
        assert body["code"] == "session_busy"
        assert (await events(helper, session_id="s"))["total"] >= 1
