"""Streams of events and chats over several replicas: replayed, handed over, started over, lost."""

import asyncio
from typing import Any

import httpx
import pytest
from support.face import HI, Face, Speaker, checked_error, face, openai_error, replicas
from support.stack import Frame, frames, text_of, until

from diptych.core.errors import NotAnswered, RunLost, StoreError, StoreFull
from diptych.ports import Notice
from diptych.runs import lease_keeper

CHAT = "/v1/chat/completions"
STREAM = {**HI, "stream": True}
KEY = {"Idempotency-Key": "k"}
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


def chat(helper: Face, body: Any = HI, **headers: str) -> "asyncio.Task[httpx.Response]":
    return asyncio.create_task(helper.http.post(CHAT, json=body, headers=headers))


def error_at_the_end(told: list[Frame]) -> Any:
    """Check that a stream ends with an error and no [DONE], and give the error."""
    assert all(frame.data != "[DONE]" for frame in told)
    assert told[-1].id is None
    return checked_error(told[-1].json["error"])


async def run_of(helper: Face) -> str:
    (entry,) = await helper.house.runs.entries()
    return entry.run_id


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


# Chats


@pytest.mark.parametrize("body", [pytest.param(HI, id="whole"), pytest.param(STREAM, id="stream")])
async def test_a_chat_that_was_told_nothing_when_its_process_left_is_a_503(body: Any) -> None:
    first, second = Speaker(..., "one"), Speaker("one")
    async with replicas(first, second) as (leaving, staying):
        asking = chat(leaving, body, **KEY)
        await first.has_stopped.wait()
        await leaving.house.runs.close()
        response = await asking
        assert openai_error(response, 503)["code"] == "handed_over"
        assert response.headers["x-should-retry"] == "false"
        assert int(response.headers["Retry-After"]) >= 1
        run_id = response.headers["X-Run-ID"]
        again = await staying.http.post(CHAT, json=body, headers=KEY)
        assert again.headers["X-Run-ID"] == run_id  # the key makes a retry safe
        assert _answer(again) == "one"


async def test_a_reader_who_was_told_void_text_gets_an_error_and_the_answer_is_elsewhere() -> None:
    first, second = Speaker("one ", "two ", ...), Speaker("eins ", "zwei")
    async with replicas(first, second) as (leaving, staying):
        asking = [chat(leaving, STREAM, **KEY), chat(staying, STREAM, **KEY)]
        await first.has_stopped.wait()
        await asyncio.sleep(0.02)
        await leaving.house.runs.close()
        _, there = [await each for each in asking]
        told = frames(there.text)
        error = error_at_the_end(told)
        run_id = there.headers["X-Run-ID"]
        assert error["code"] == "answer_reset"
        assert f"/v1/runs/{run_id}" in error["message"]
        assert text_of(told[:-1]) == "one two "
        await until(lambda: _is_over(staying, run_id))
        run = (await staying.http.get(f"/v1/runs/{run_id}")).json()
        assert run["answer"] == "eins zwei"
        rest = frames((await events(staying, run_id, [f.id for f in told if f.id][-1] or "")).text)
        assert [f.event for f in rest][:2] == ["owner_changed", "answer_reset"]
        assert "".join(f.json["content"] for f in rest if f.event == "text") == "eins zwei"


async def test_a_reader_who_was_told_what_the_store_then_lost_is_told_so() -> None:
    model = Speaker("one ", "two ", ..., "three")
    async with face(model=model) as helper:
        asking = chat(helper, STREAM)
        await model.has_stopped.wait()
        live = helper.house.runs._scheduler.find(await run_of(helper))
        assert live is not None
        live.log.notify(Notice("reset", {"epoch": "x", "last_seq": 4}))
        model.go.set()
        error = error_at_the_end(frames((await asking).text))
        assert error["code"] == "answer_reset"


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        pytest.param(StoreError("redis://:secret@x"), 503, "store_away", id="a store that is away"),
        pytest.param(RunLost("the record is gone"), 410, "run_lost", id="a run that was lost"),
    ],
)
async def test_a_chat_whose_run_cannot_be_followed_names_it_and_forbids_a_retry(
    error: Exception, status: int, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: Any) -> Any:
        raise error
        yield

    async with face() as helper:
        monkeypatch.setattr(helper.house.runs, "subscribe", fails)
        for body in (HI, STREAM):
            response = await helper.http.post(CHAT, json=body)
            assert openai_error(response, status)["code"] == code
            assert response.headers["x-should-retry"] == "false"
            newest, *_ = await helper.house.runs.entries()
            assert response.headers["X-Run-ID"] == newest.run_id
            assert ("Retry-After" in response.headers) == (status == 503)
            assert "secret" not in response.text


def _answer(response: httpx.Response) -> str:
    if response.headers["content-type"] == "application/json":
        return str(response.json()["choices"][0]["message"]["content"])
    return text_of(frames(response.text))


async def _is_over(helper: Face, run_id: str) -> bool:
    return (await helper.house.runs.entry(run_id)).status == "completed"
