"""`/v1/runs`: starting, reading, following and cancelling, without a socket."""

import asyncio
from typing import Any

import pytest
from support.doubles import EPOCH, FunctionTools
from support.face import Face, Speaker, face, openai_error
from support.stack import call, frames, until

from diptych.core.run_settings import RunSettings
from diptych.runs.definition import AgentDefinition
from diptych.stores.memory.store import Bounds

ECHO = call("echo", text="hello")


async def echo(text: str = "") -> str:
    return text


async def forever(**_: Any) -> None:
    await asyncio.Event().wait()


async def start(helper: Face, **body: Any) -> dict[str, Any]:
    response = await helper.http.post("/v1/runs", json=body or {"input": "hi"})
    assert response.status_code == 202, response.text
    started: dict[str, Any] = response.json()
    return started


async def events(helper: Face, run_id: str, **query: Any) -> str:
    response = await helper.http.get(f"/v1/runs/{run_id}/events", params=query)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["X-Run-ID"] == run_id
    return response.text


async def read(helper: Face, run_id: str) -> dict[str, Any]:
    found: dict[str, Any] = (await helper.http.get(f"/v1/runs/{run_id}")).json()
    return found


async def test_the_events_of_a_run_have_their_type_their_seq_and_the_form_of_memory() -> None:
    async with face(ECHO, "{}", "Hello!", tools={"echo": echo}) as helper:
        run_id = (await start(helper))["id"]
        told = [f for f in frames(await events(helper, run_id)) if f.id]
        assert [f.event for f in told] == [
            "user_message",
            "offered",
            "model_reply",
            "tool_call",
            "tool_result",
            "model_reply",
            "text",
            "model_reply",
            "agent_response",
            "completed",
        ]
        assert [f.id for f in told] == [str(n) for n in range(1, len(told) + 1)]
        for frame in told:
            assert frame.json.keys() == {
                "event_type",
                "seq",
                "run_id",
                "session_id",
                "timestamp",
                "content",
                "metadata",
            }
        assert told[6].json["content"] == "Hello!"
        shown = (await helper.http.get("/memory/events")).json()["events"]
        assert shown == [f.json for f in told if f.json in shown]


async def test_a_reader_goes_on_after_any_position_named_in_any_way() -> None:
    async with face(ECHO, "{}", "one two three", tools={"echo": echo}) as helper:
        run_id = (await start(helper))["id"]
        await events(helper, run_id)
        whole = await events(helper, run_id)
        told = frames(whole)
        for after in range(len(told) + 1):
            rest = await events(helper, run_id, starting_after=after)
            headers = {"Last-Event-ID": str(after)}
            path = f"/v1/runs/{run_id}/events"
            assert (await helper.http.get(path, headers=headers)).text == rest
            assert frames(rest) == told[after:]
            assert whole.endswith(rest)
        gone = await events(helper, run_id, starting_after=10_000)
        assert gone.startswith("event: reset\ndata: ")
        assert f'"last_seq":{len(told) - 1}' in gone
        assert frames(gone)[1:] == told[-1:]  # whoever has seen more has not seen the end


@pytest.mark.parametrize(
    ("replies", "status", "shown"),
    [
        pytest.param(["{}", "Hello!"], "completed", {"answer": "Hello!"}, id="an answer"),
        pytest.param(
            [{"error": "broke"}],
            "failed",
            {"error": {"code": "model_failed", "message": "broke"}},
            id="a failure",
        ),
    ],
)
async def test_what_became_of_a_run_is_shown(
    replies: list[Any], status: str, shown: dict[str, Any]
) -> None:
    definition = AgentDefinition(settings=RunSettings(max_steps=1))
    async with face(*replies, tools={"echo": echo}, definition=definition) as helper:
        run_id = (await start(helper))["id"]
        assert frames(await events(helper, run_id))[-1].event == status
        run = await read(helper, run_id)
        assert run["status"] == status
        assert shown.items() <= run.items()


async def test_a_run_is_cancelled_and_its_call_too() -> None:
    tools = FunctionTools({"forever": forever})
    async with face(call("forever"), tools=tools) as helper:
        run_id = (await start(helper))["id"]
        await until(lambda: tools.called)
        cancelled = await helper.http.post(f"/v1/runs/{run_id}/cancel")
        assert cancelled.status_code == 200
        assert cancelled.json()["status"] == "aborted"
        assert cancelled.json()["error"]["code"] == "aborted"
        assert tools.cancelled == ["forever"]
        told = [f.event for f in frames(await events(helper, run_id))]
        assert told[-2:] == ["tool_error", "aborted"]


async def test_a_chat_whose_run_is_cancelled_is_told_so_and_not_to_try_again() -> None:
    async with face(call("forever"), tools={"forever": forever}) as helper:
        body = {"messages": [{"role": "user", "content": "hi"}]}
        chat = asyncio.create_task(helper.http.post("/v1/chat/completions", json=body))
        await until(lambda: helper.house.tools.called)
        (entry,) = await helper.house.runs.entries()
        await helper.http.post(f"/v1/runs/{entry.run_id}/cancel")
        response = await chat
        error = openai_error(response, 409)
        assert (error["type"], error["code"]) == ("aborted", "aborted")
        assert response.headers["x-should-retry"] == "false"


async def test_a_run_that_never_was_and_one_that_is_gone_are_told_apart() -> None:
    async with face(bounds=Bounds(sessions=1)) as helper:
        for route in ("", "/cancel"):
            dropped = (await start(helper))["id"]
            await events(helper, dropped)
            await events(helper, (await start(helper))["id"])
            method = "POST" if route == "/cancel" else "GET"
            for run_id, status, code in (
                ("run-1", 404, "run_not_found"),
                (f"run-{EPOCH}-{'0' * 32}", 404, "run_not_found"),
                (f"run-{'b' * 8}-{'0' * 32}", 410, "run_lost"),
                (dropped, 410, "run_lost"),
            ):
                response = await helper.http.request(method, f"/v1/runs/{run_id}{route}")
                assert openai_error(response, status)["code"] == code


async def test_a_list_shows_the_newest_runs_and_is_read_backwards() -> None:
    async with face() as helper:
        ids = [(await start(helper))["id"] for _ in range(5)]
        pages, before = [], {}
        while True:
            page = (await helper.http.get("/v1/runs", params={"limit": 2, **before})).json()
            pages.append([run["id"] for run in page["data"]])
            if not page["has_more"]:
                break
            before = {"before": pages[-1][0]}
        assert pages == [ids[3:], ids[1:3], ids[:1]]


async def test_runs_are_listed_of_one_status() -> None:
    tools = FunctionTools({"forever": forever})
    async with face(call("forever"), tools=tools) as helper:
        running, queued, ended = [
            (await start(helper, input="hi", session_id=session))["id"] for session in "aab"
        ]
        await until(lambda: len(tools.called) == 2)
        await helper.http.post(f"/v1/runs/{ended}/cancel")
        for status, ids in (
            ("running", [running]),
            ("queued", [queued]),
            ("aborted", [ended]),
            ("completed", []),
        ):
            page = (await helper.http.get("/v1/runs", params={"status": status})).json()
            assert [run["id"] for run in page["data"]] == ids
        earlier = {"status": "running", "before": ended}  # which is of another status itself
        page = (await helper.http.get("/v1/runs", params=earlier)).json()
        assert [run["id"] for run in page["data"]] == [running]


async def test_a_list_that_makes_no_sense_is_refused() -> None:
    async with face() as helper:
        for query, param in (
            ({"limit": 0}, "limit"),
            ({"status": "happy"}, "status"),
            ({"before": "run-1"}, "before"),
        ):
            response = await helper.http.get("/v1/runs", params=query)
            assert openai_error(response, 400)["param"] == param


async def test_a_run_shows_how_far_it_is_and_its_answer_so_far() -> None:
    model = Speaker("one ", ..., "two")
    async with face(model=model) as helper:
        started = await start(helper)
        assert (started["status"], started["last_seq"]) == ("queued", 1)
        await model.has_stopped.wait()
        await asyncio.sleep(0.02)
        run = await read(helper, started["id"])
        assert (run["status"], run["text"], run["last_seq"]) == ("running", "one ", 4)
        assert "answer" not in run
        reading = asyncio.create_task(events(helper, started["id"]))
        model.go.set()
        last = frames(await reading)[-1]
        run = await read(helper, started["id"])
        assert (run["status"], run["answer"]) == ("completed", "one two")
        assert str(run["last_seq"]) == last.id
        assert "text" not in run
        (entry,) = (await helper.http.get("/v1/runs")).json()["data"]
        assert entry["last_seq"] == run["last_seq"]
        assert entry["updated_at"] == run["updated_at"] == last.json["timestamp"]
