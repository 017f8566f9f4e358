"""Chats whose run goes on without them: handed over, started over, picked up by their X-Run-ID."""

import asyncio
from typing import Any

import httpx
import httpx2
import openai
import pytest
from support.face import HI, LOCAL, NAME, Face, Speaker, checked_error, face, openai_error, replicas
from support.stack import Frame, frames, text_of, until

from diptych.core.errors import RunLost, StoreError
from diptych.http import chat as chat_module
from diptych.ports import Notice
from diptych.runs import lease_keeper

CHAT = "/v1/chat/completions"
STREAM = {**HI, "stream": True}
KEY = {"Idempotency-Key": "k"}


@pytest.fixture(autouse=True)
def quickly_taken_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_keeper, "TAKEOVER_SECONDS", 0.05)


async def events(helper: Face, run_id: str, after: str = "") -> str:
    headers = {"Last-Event-ID": after} if after else {}
    return (await helper.http.get(f"/v1/runs/{run_id}/events", headers=headers)).text


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


# Handed over


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


async def test_a_stream_that_was_opened_with_nothing_to_tell_is_handed_over_by_a_frame(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chat_module, "FIRST_FRAME_SECONDS", 0.02)
    model = Speaker(...)
    async with replicas(model) as (leaving,):
        asking = chat(leaving, STREAM)
        await model.has_stopped.wait()
        await asyncio.sleep(0.05)  # the headers are out
        await leaving.house.runs.close()
        response = await asking
        assert response.status_code == 200
        assert error_at_the_end(frames(response.text))["code"] == "handed_over"


async def test_openais_client_sees_a_hand_over_as_an_error_and_does_not_ask_again() -> None:
    model = Speaker("one ", ...)
    async with replicas(model) as (leaving,):
        transport = httpx2.ASGITransport(leaving.app)
        async with (
            httpx2.AsyncClient(transport=transport) as http,
            openai.AsyncOpenAI(api_key="x", base_url=f"{LOCAL}/v1", http_client=http) as client,
        ):
            asking = asyncio.create_task(_read(client))
            await model.has_stopped.wait()
            await leaving.house.runs.close()
            with pytest.raises(openai.APIError, match="the run goes on"):
                await asking
        assert len(await leaving.house.runs.entries()) == 1


# Started over


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
        rest = frames(await events(staying, run_id, [f.id for f in told if f.id][-1] or ""))
        assert [f.event for f in rest][:2] == ["owner_changed", "answer_reset"]
        assert "".join(f.json["content"] for f in rest if f.event == "text") == "eins zwei"


async def test_who_asks_again_after_an_answer_started_over_is_told_the_valid_one_only() -> None:
    first, second = Speaker("one ", "two ", ...), Speaker("eins ", "zwei")
    async with replicas(first, second) as (leaving, staying):
        asking = [chat(leaving, body, **{"Idempotency-Key": k}) for k, body in _both()]
        await until(lambda: _said(leaving, 2 * ["two "]))
        await leaving.house.runs.close()
        for each in asking:
            await each
        answers = [await chat(staying, body, **{"Idempotency-Key": k}) for k, body in _both()]
        whole, stream = answers
        assert _answer(whole) == _answer(stream) == "eins zwei"
        assert frames(stream.text)[-1].data == "[DONE]"
        types = [f.event for f in frames(await events(staying, stream.headers["X-Run-ID"]))]
        assert types.count("answer_reset") == 1


async def test_a_run_in_which_the_answer_started_over_shows_only_what_is_valid() -> None:
    first, second = Speaker("one ", ...), Speaker("eins ", ..., "zwei")
    async with replicas(first, second) as (leaving, staying):
        asking = chat(leaving, STREAM)
        await first.has_stopped.wait()
        run_id = await run_of(leaving)
        path = f"/v1/runs/{run_id}"
        assert (await leaving.http.get(path)).json()["text"] == "one "
        await leaving.house.runs.close()
        await asking
        await second.has_stopped.wait()
        await until(lambda: _text_is(staying, path, "eins "))
        second.go.set()
        await events(staying, run_id)
        run = (await staying.http.get(path)).json()
        assert (run["answer"], "text" in run) == ("eins zwei", False)


# What the store does


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


async def test_a_reader_who_was_told_nothing_that_the_store_lost_reads_on() -> None:
    model = Speaker("one ", "two ", ..., "three")
    async with face(model=model) as helper:
        asking = chat(helper, STREAM)
        await model.has_stopped.wait()
        live = helper.house.runs._scheduler.find(await run_of(helper))
        assert live is not None
        live.log.notify(Notice("reset", {"epoch": "x", "last_seq": len(live.log.records)}))
        model.go.set()
        assert text_of(frames((await asking).text)) == "one two three"


@pytest.mark.parametrize("body", [pytest.param(HI, id="whole"), pytest.param(STREAM, id="stream")])
@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        pytest.param(StoreError("redis://:secret@x"), 503, "store_away", id="a store that is away"),
        pytest.param(RunLost("the record is gone"), 410, "run_lost", id="a run that was lost"),
    ],
)
async def test_a_chat_whose_run_cannot_be_followed_names_it_and_forbids_a_retry(
    body: Any, error: Exception, status: int, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: Any) -> Any:
        raise error
        yield

    async with face() as helper:
        monkeypatch.setattr(helper.house.runs, "subscribe", fails)
        response = await helper.http.post(CHAT, json=body)
        assert openai_error(response, status)["code"] == code
        assert response.headers["x-should-retry"] == "false"
        assert response.headers["X-Run-ID"] == await run_of(helper)
        assert ("Retry-After" in response.headers) == (status == 503)
        assert "secret" not in response.text


def _both() -> list[tuple[str, Any]]:
    return [("whole", HI), ("stream", STREAM)]


async def _read(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model=NAME, messages=[{"role": "user", "content": "hi"}], stream=True
    )
    async for _ in stream:
        pass


def _answer(response: httpx.Response) -> str:
    if response.headers["content-type"] == "application/json":
        return str(response.json()["choices"][0]["message"]["content"])
    return text_of(frames(response.text))


async def _is_over(helper: Face, run_id: str) -> bool:
    return (await helper.house.runs.entry(run_id)).status == "completed"


async def _said(helper: Face, pieces: list[str]) -> bool:
    """Say whether each run has said its piece last."""
    entries = await helper.house.runs.entries()
    records = [await helper.house.runs.records(entry.run_id) for entry in entries]
    return [r[-1].content for r in records] == pieces


async def _text_is(helper: Face, path: str, text: str) -> bool:
    return bool((await helper.http.get(path)).json().get("text") == text)
