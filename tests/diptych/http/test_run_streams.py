"""Streams of events over several replicas: replay, live, handed over, and what breaks them."""

import asyncio
from typing import Any

import httpx
import pytest
from support.face import Face, Speaker, checked_error, face, openai_error, replicas
from support.stack import frames

from diptych.core.errors import NotAnswered, RunLost, StoreError, StoreFull
from diptych.ports import Notice
from diptych.runs import lease_keeper

ANSWER = ("one ", "two ", ..., "three")


@pytest.fixture(autouse=True)
def quickly_taken_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_keeper, "TAKEOVER_SECONDS", 0.05)


async def start(helper: Face, **body: Any) -> str:
    response = await helper.http.post("/v1/runs", json={"input": "hi", **body})
    return str(response.json()["id"])


async def events(helper: Face, run_id: str, after: str = "") -> httpx.Response:
    headers = {"Last-Event-ID": after} if after else {}
    return await helper.http.get(f"/v1/runs/{run_id}/events", headers=headers)


async def test_readers_at_any_replica_get_the_same_bytes() -> None:
    model = Speaker(*ANSWER)
    async with replicas(model, Speaker()) as (owner, other):
        run_id = await start(owner)
        reading = [asyncio.create_task(events(helper, run_id)) for helper in (owner, other)]
        await model.has_stopped.wait()
        reading.append(asyncio.create_task(events(other, run_id, "4")))
        await asyncio.sleep(0.02)
        model.go.set()
        here, there, rest = [(await each).text for each in reading]
        later = (await events(other, run_id)).text
        assert here == there == later
        assert later.endswith(rest)
        assert frames(rest)[0].id == "5"
        assert frames(later)[-1].event == "completed"


async def test_a_reader_at_a_process_that_leaves_is_handed_over_wherever_the_run_is() -> None:
    model = Speaker(*ANSWER)
    async with replicas(model, Speaker()) as (owner, other):
        run_id = await start(owner)
        reading = asyncio.create_task(events(other, run_id))
        await model.has_stopped.wait()
        await other.house.runs.close()
        last = frames((await reading).text)[-1]
        assert last.event == "handed_over"
        model.go.set()
        rest = frames((await events(owner, run_id, str(last.json["last_seq"]))).text)
        assert [f.event for f in rest] == ["text", "model_reply", "agent_response", "completed"]


async def test_nothing_is_handed_over_once_a_run_has_ended() -> None:
    async with face() as helper:
        run_id = await start(helper)
        told = frames((await events(helper, run_id)).text)
        await helper.house.runs.close()
        assert (await events(helper, run_id, told[-1].id or "")).text == ""
        assert frames((await events(helper, run_id)).text) == [f for f in told if f.id]


async def test_a_run_in_the_memory_of_its_process_ends_with_it_and_says_so() -> None:
    model = Speaker(*ANSWER)
    async with face(model=model) as helper:
        run_id = await start(helper)
        reading = asyncio.create_task(events(helper, run_id))
        await model.has_stopped.wait()
        await helper.house.runs.close()
        assert frames((await reading).text)[-1].event == "aborted"


async def test_a_run_is_cancelled_from_any_replica() -> None:
    model = Speaker(*ANSWER)
    async with replicas(model, Speaker()) as (owner, other):
        run_id = await start(owner)
        await model.has_stopped.wait()
        cancelled = await other.http.post(f"/v1/runs/{run_id}/cancel")
        assert (cancelled.status_code, cancelled.json()["status"]) == (200, "aborted")
        for helper in (owner, other):
            assert (await helper.http.get(f"/v1/runs/{run_id}")).json()["status"] == "aborted"


async def test_a_reader_who_saw_more_than_there_is_is_set_back_without_an_id() -> None:
    model = Speaker(*ANSWER)
    async with face(model=model) as helper:
        run_id = await start(helper)
        await model.has_stopped.wait()
        reading = asyncio.create_task(events(helper, run_id, "100"))
        await asyncio.sleep(0.02)
        model.go.set()
        reset, *rest = frames((await reading).text)
        assert (reset.event, reset.id) == ("reset", None)
        assert reset.json.keys() == {"type", "epoch", "last_seq"}
        assert rest[0].id == str(reset.json["last_seq"] + 1)
        assert rest[-1].event == "completed"


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        pytest.param(StoreError("redis://:secret@x"), 503, "store_away", id="a store that is away"),
        pytest.param(StoreFull("OOM secret"), 503, "store_full", id="a full store"),
        pytest.param(NotAnswered("again"), 503, "not_answered", id="an owner that is silent"),
        pytest.param(RunLost("the record of this run is gone"), 410, "run_lost", id="a lost run"),
    ],
)
async def test_a_store_that_fails_is_told_before_a_stream_and_in_it(
    error: Exception, status: int, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: Any, **__: Any) -> None:
        raise error

    async with face() as helper:
        run_id = await start(helper)
        whole = (await events(helper, run_id)).text
        store = helper.house.store
        monkeypatch.setattr(store, "read", fails)
        (told,) = frames((await events(helper, run_id)).text)  # it fails in the stream
        assert (told.event, told.id) == ("error", None)
        assert checked_error(told.json["error"])["code"] == code
        for name in ("entry", "entries", "open"):
            monkeypatch.setattr(store, name, fails)
        paths = ["/v1/runs", f"/v1/runs/{run_id}", f"/v1/runs/{run_id}/events"]
        refused = [await helper.http.get(path) for path in paths]
        refused.append(await helper.http.post("/v1/runs", json={"input": "hi"}))
        refused.append(await helper.http.post(f"/v1/runs/{run_id}/cancel"))
        for response in refused:
            assert openai_error(response, status)["code"] == code
            assert "secret" not in response.text
            assert status != 503 or int(response.headers["Retry-After"]) >= 1
        assert "secret" not in whole + str(told)


async def test_a_notice_of_a_hand_over_in_the_middle_of_a_stream_is_nobodys_end() -> None:
    model = Speaker(*ANSWER)
    async with replicas(model, Speaker()) as (owner, other):
        run_id = await start(owner)
        reading = asyncio.create_task(events(other, run_id))
        await model.has_stopped.wait()
        owner.house.store.publish_notice(run_id, Notice("handed_over", {}))  # from a third process
        model.go.set()
        told = [f.event for f in frames((await reading).text)]
        assert "handed_over" not in told
        assert told[-1] == "completed"


async def test_a_cancel_that_takes_its_time_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    async with face(model=Speaker(*ANSWER)) as helper:
        run_id = await start(helper)
        await helper.house.model.has_stopped.wait()

        async def as_it_is(run_id: str, reason: str = "") -> Any:
            return await helper.house.runs.entry(run_id)

        monkeypatch.setattr(helper.house.runs, "cancel", as_it_is)
        response = await helper.http.post(f"/v1/runs/{run_id}/cancel")
        assert (response.status_code, response.json()["status"]) == (202, "running")
        assert response.json()["text"] == "one two "
