"""Requests, answers and runs for which there is no room, and what is counted of the others."""

from typing import Any

import pytest
from support.face import HI, Face, Speaker, error_of, face
from support.stack import until

from diptych.http import session_memory
from diptych.http.guards import LARGE_ANSWER, BodyGuard
from diptych.net.memory_budget import MemoryBudget

MI = 2**20
CHAT = "/v1/chat/completions"


async def send(helper: Face, size: int, path: str = "/v1/runs") -> Any:
    return await helper.http.post(path, json={"input": "x" * size})


async def test_what_a_request_held_is_given_back_when_it_has_ended() -> None:
    budget = MemoryBudget(64 * MI)
    async with face(memory_budget=budget) as helper:
        assert (await helper.http.post(CHAT, json=HI)).status_code == 200
        assert (await send(helper, 100_000)).status_code == 202
        assert (await helper.http.post("/v1/runs", content=b"{")).status_code in (400, 415)
        await until(lambda: helper.house.runs.active_count == 0)
        assert (await helper.http.get("/memory/events")).status_code == 200
        assert budget.used == 0


@pytest.mark.parametrize("path", [CHAT, "/a2a"])
async def test_without_room_a_body_is_refused_at_once_with_when_to_try_again(path: str) -> None:
    budget = MemoryBudget(8 * MI)
    async with face(memory_budget=budget) as helper:
        await helper.http.get("/health")
        held = budget.share()
        held.admit(int(5.9 * MI))
        reply = await helper.http.post(path, json={"input": "x" * 900_000 + "\N{GRINNING FACE}"})
        assert error_of(reply, 503)["message"]
        assert reply.headers["Retry-After"] == "1"
        assert "overloaded" in reply.text.lower()
        assert budget.used == held.size
        assert (await helper.http.get("/health")).status_code == 200


async def test_a_run_that_fits_as_a_body_and_not_as_a_run_is_refused_too() -> None:
    budget = MemoryBudget(8 * MI)
    async with face(memory_budget=budget, model=Speaker("begun", ...)) as helper:
        statuses = [(await send(helper, 300_000)).status_code for _ in range(9)]
        admitted = statuses.count(202)
        assert 2 < admitted < 9
        assert statuses == [202] * admitted + [503] * (9 - admitted)
        assert helper.house.runs.active_count == admitted
        helper.house.model.go.set()
        await until(lambda: helper.house.runs.active_count == 0)
        assert (await send(helper, 300_000)).status_code == 202


async def test_an_answer_for_which_there_is_no_room_is_refused() -> None:
    budget = MemoryBudget(16 * MI)
    async with face(
        "{}", "".join(map("{:09d}".format, range(150_000))), memory_budget=budget
    ) as helper:
        run_id = (await helper.http.post("/v1/runs", json={"input": "hi"})).json()["id"]
        await until(lambda: helper.house.runs.active_count == 0)
        whole = await helper.http.get(f"/v1/runs/{run_id}")
        assert whole.status_code == 200
        assert len(whole.content) > MI
        held = budget.share()
        held.admit(9 * MI)
        reply = await helper.http.get(f"/v1/runs/{run_id}")
        assert reply.status_code == 503
        assert reply.headers["Retry-After"] == "1"
        held.release()
        assert (await helper.http.get(f"/v1/runs/{run_id}")).content == whole.content
        assert budget.used == 0


async def test_a_large_answer_is_held_until_the_server_has_sent_it() -> None:
    """uvicorn waits for the peer before it takes another part, and never after the last one."""
    body = b"x" * (LARGE_ANSWER + 1)

    async def large(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def take(message: Any) -> None:
        told.append((message.get("body"), message.get("more_body", False), budget.used))

    told: list[Any] = []
    budget = MemoryBudget()
    scope: Any = {"type": "http", "path": "/", "headers": []}
    await BodyGuard(large, budget)(scope, None, take)  # type: ignore[arg-type] - nothing is read
    assert told[1:] == [(body, True, 2 * len(body)), (b"", False, 2 * len(body))]
    assert budget.used == 0


async def test_events_come_in_pages_that_hold_little_and_miss_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with face(*["{}", "y" * 5_000] * 6) as helper:
        for n in range(6):
            await helper.http.post("/v1/runs", json={"input": f"Q{n}", "session_id": f"s{n % 2}"})
            await until(lambda: helper.house.runs.active_count == 0)
        everything = (await helper.http.get("/memory/events")).json()
        assert everything["next_before"] is None
        monkeypatch.setattr(session_memory, "MAX_PAGE_SIZE", 2_000)
        for query in ({}, {"session_id": "s1"}, {"limit": 1}):
            whole = [
                event
                for event in everything["events"]
                if query.get("session_id") in (None, event["session_id"])
            ]
            pages, before = [], None
            while True:
                asked = {**query, **({"before": before} if before else {})}
                page = (await helper.http.get("/memory/events", params=asked)).json()
                assert page["events"]
                assert page["total"] == len(whole)
                pages.insert(0, page["events"])
                before = page["next_before"]
                if before is None:
                    break
            assert len(pages) >= 2
            assert [event for page in pages for event in page] == whole


async def test_a_page_before_what_is_not_there_is_refused() -> None:
    async with face() as helper:
        await helper.http.post("/v1/runs", json={"input": "Q", "session_id": "s"})
        await until(lambda: helper.house.runs.active_count == 0)
        (first, *_) = (await helper.http.get("/memory/events")).json()["events"]
        before = f"{first['run_id']}:{first['seq']}"
        for wrong in ("", "run-x", "run-x:1", ":", f"{first['run_id']}:", ":3"):
            reply = await helper.http.get("/memory/events", params={"before": wrong})
            assert (reply.status_code, "before" in reply.text) == (400, True), wrong
        asked = {"before": before, "session_id": "other"}
        assert (await helper.http.get("/memory/events", params=asked)).status_code == 400
        asked = {"before": before, "session_id": "s"}
        assert (await helper.http.get("/memory/events", params=asked)).json()["events"] == []


async def test_pages_for_people_are_there_on_demand_only() -> None:
    for has_docs, status in ((False, 404), (True, 200)):
        async with face(has_docs=has_docs) as helper:
            for path in ("/docs", "/redoc"):
                assert (await helper.http.get(path)).status_code == status
            assert (await helper.http.get("/openapi.json")).status_code == 200
