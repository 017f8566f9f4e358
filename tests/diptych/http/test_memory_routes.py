"""`/memory/*`: the record, for people and tests."""

import asyncio
from datetime import datetime
from typing import Any

import pytest
from support.face import NAME, Face, Speaker, face, problem
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


async def test_a_limit_keeps_the_last_events_and_the_total() -> None:
    async with face() as helper:
        for text in "abc":
            await ask(helper, text, "s")
        found = await events(helper, limit=3)
        assert found["total"] == 6
        assert [event["content"] for event in found["events"]] == ["Hello!", "c", "Hello!"]
        assert len((await events(helper, limit=10_000))["events"]) == 6


async def test_a_limit_reads_no_more_runs_and_records_than_it_shows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with face() as helper:
        for number in range(30):
            await ask(helper, str(number), str(number))
        store, records = helper.house.store, 0
        read, entries = store.read, store.entries

        async def counted_read(*arguments: Any) -> Any:
            nonlocal records
            found = await read(*arguments)
            records += len(found)
            return found

        async def bounded_entries(*arguments: Any, **rest: Any) -> Any:
            assert rest["limit"] <= 3
            return await entries(*arguments, **rest)

        monkeypatch.setattr(store, "read", counted_read)
        monkeypatch.setattr(store, "entries", bounded_entries)
        found = await events(helper, limit=3)
        assert [event["content"] for event in found["events"]] == ["Hello!", "29", "Hello!"]
        assert found["total"] == 60
        assert records < 3 * 10  # of three runs at most, and not of thirty
        page = (await helper.http.get("/v1/runs?limit=2")).json()
        assert (len(page["data"]), page["has_more"]) == (2, True)


async def test_the_last_events_of_a_long_run_are_found_among_what_is_not_shown() -> None:
    pieces: list[Any] = [f"{number} " for number in range(20)]
    async with face(model=Speaker(*pieces)) as helper:
        await ask(helper, "long", "s")
        assert [e["event_type"] for e in (await events(helper, limit=2))["events"]] == [
            "user_message",
            "agent_response",
        ]
        assert [e["event_type"] for e in (await events(helper, limit=1))["events"]] == [
            "agent_response"
        ]


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


@pytest.mark.parametrize("session_id", ["a/b", "%2e%2e", "x" * 1000])
async def test_a_session_id_that_cannot_be_is_not_found(session_id: str) -> None:
    async with face() as helper:
        problem(await helper.http.delete(f"/memory/sessions/{session_id}"), 404)
