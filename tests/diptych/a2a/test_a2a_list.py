"""A2A over real runs: listing tasks, messages that come twice, several replicas, refusals."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from support.doubles import EPOCH, FunctionTools
from support.face import Face, Speaker, face, replicas
from support.stack import call as call_of
from support.stack import frames, until

from diptych.ports.entries import RunPage
from diptych.runs import lease_keeper

HEADERS = {"A2A-Version": "1.0"}
ANSWER = ("one ", "two ", ..., "three")


@pytest.fixture(autouse=True)
def quickly_taken_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_keeper, "TAKEOVER_SECONDS", 0.05)


async def forever() -> None:
    await asyncio.Event().wait()


def request(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


async def post(helper: Face, method: str, **params: Any) -> dict[str, Any]:
    response = await helper.http.post("/a2a", json=request(method, **params), headers=HEADERS)
    assert response.status_code == 200
    reply: dict[str, Any] = response.json()
    return reply


def said(text: str = "hi", message_id: str = "m-1", **fields: Any) -> dict[str, Any]:
    parts = [{"text": text}]
    return {"messageId": message_id, "role": "ROLE_USER", "parts": parts, **fields}


async def send(helper: Face, message: dict[str, Any], **configuration: Any) -> dict[str, Any]:
    reply = await post(helper, "SendMessage", message=message, configuration=configuration)
    task: dict[str, Any] = reply["result"]["task"]
    return task


async def stream(helper: Face, method: str, **params: Any) -> list[dict[str, Any]]:
    response = await helper.http.post("/a2a", json=request(method, **params), headers=HEADERS)
    return [frame.json["result"] for frame in frames(response.text.replace("\r\n", "\n"))]


async def listed(helper: Face, **params: Any) -> dict[str, Any]:
    reply = await post(helper, "ListTasks", **params)
    result: dict[str, Any] = reply["result"]
    return result


async def tasks(helper: Face, count: int, context_id: str = "") -> list[str]:
    """Do some tasks one after another, a second apart; gives their ids."""
    ids = []
    for _ in range(count):
        helper.clock.seconds += 1
        message = said(message_id=f"m-{helper.clock.tokens}", contextId=context_id)
        ids.append((await send(helper, message))["id"])
    return ids


def ids_of(page: dict[str, Any]) -> list[str]:
    return [task["id"] for task in page["tasks"]]


# Listing


async def test_a_list_is_read_page_by_page_and_no_task_is_missed_or_told_twice() -> None:
    async with face() as helper:
        made = await tasks(helper, 7)
        seen, token, sizes = [], "", []
        while True:
            page = await listed(helper, pageSize=3, **({"pageToken": token} if token else {}))
            assert (page["totalSize"], page["pageSize"]) == (7, 3)
            seen += ids_of(page)
            sizes.append(len(page["tasks"]))
            if not (token := page["nextPageToken"]):
                break
        assert (seen, sizes) == (made[::-1], [3, 3, 1])


async def test_tasks_are_listed_of_one_state() -> None:
    model_replies = (call_of("forever"), "{}", "Done.")
    async with face(*model_replies, tools=FunctionTools({"forever": forever})) as helper:
        waiting = (await send(helper, said(contextId="c"), returnImmediately=True))["id"]
        queued = (await send(helper, said("2", "m-2", contextId="c"), returnImmediately=True))["id"]
        ended = (await send(helper, said("3", "m-3"), returnImmediately=True))["id"]
        await until(lambda: len(helper.house.tools.called) == 2)
        await post(helper, "CancelTask", id=ended)
        for state, ids in (
            ("SUBMITTED", [queued]),
            ("WORKING", [waiting]),
            ("CANCELED", [ended]),
            ("COMPLETED", []),
            ("INPUT_REQUIRED", []),
        ):
            page = await listed(helper, status=f"TASK_STATE_{state}")
            assert ids_of(page) == ids
            assert await listed(helper, status=state.lower().replace("_", "-")) == page
            assert {task["status"]["state"][11:] for task in page["tasks"]} <= {state}
        assert (await listed(helper, status="TASK_STATE_UNSPECIFIED"))["totalSize"] == 3


async def test_a_task_that_goes_away_meanwhile_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async with face() as helper:
        (kept,) = await tasks(helper, 1)
        gone = replace(await helper.house.runs.entry(kept), run_id=f"run-{EPOCH}-{'f' * 32}")
        entries = [gone, *await helper.house.runs.entries()]

        async def earlier(*_: Any, **__: Any) -> RunPage:
            return RunPage(entries, len(entries))

        monkeypatch.setattr(helper.house.runs, "updated_entries", earlier)
        assert ids_of(await listed(helper)) == [kept]


NO_SENSE: dict[str, dict[str, Any]] = {
    "a page too long": {"pageSize": 101},
    "a token without a time": {"pageToken": "eyJ0cyI6bnVsbCwiaWQiOiJ4In0"},
    "a token that is long and deep": {"pageToken": "W1tbW1tbW1tb" * 1_000},
    "a time in words": {"statusTimestampAfter": "yesterday"},
    "a state that is none": {"status": "BANANA"},
    "a history of less than nothing": {"historyLength": -1},
}


async def test_a_list_that_makes_no_sense_is_refused_over_both_bindings() -> None:
    async with face() as helper:
        for name, params in NO_SENSE.items():
            assert (await post(helper, "ListTasks", **params))["error"]["code"] == -32602, name
            reply = await helper.http.get("/a2a/rest/tasks", params=params, headers=HEADERS)
            error = reply.json()["error"]
            assert (reply.status_code, error["status"]) == (400, "INVALID_ARGUMENT"), name


async def test_both_bindings_give_the_same_list() -> None:
    async with face() as helper:
        made = await tasks(helper, 2, "mine")
        asked: list[tuple[dict[str, Any], int]] = [
            ({"status": "completed"}, 2),
            ({"status": 4}, 0),
            ({"includeArtifacts": True, "historyLength": 0}, 2),
            ({"pageSize": 1, "contextId": "mine", "pageToken": ""}, 1),
            ({"contextId": "nobody's"}, 0),
            ({"statusTimestampAfter": "2030-01-01T00:00:00.123456789+02:00"}, 0),
            ({"unknown": "x", "tenant": "y"}, 2),
        ]
        for params, count in asked:
            reply = await helper.http.get("/a2a/rest/tasks", params=params, headers=HEADERS)
            page = await listed(helper, **params)
            assert reply.json() == page
            assert ids_of(page) == made[::-1][:count]


# Messages that come twice


async def test_twenty_messages_at_once_at_two_replicas_are_one_task() -> None:
    async with replicas(Speaker("one"), Speaker("one")) as helpers:
        done = await asyncio.gather(*(send(helpers[n % 2], said()) for n in range(20)))
        assert all(task == done[0] for task in done)
        assert (await listed(helpers[0]))["totalSize"] == 1


# Several replicas


async def test_a_task_whose_process_leaves_is_finished_elsewhere_and_its_streams_are_renewed() -> (
    None
):
    model = Speaker(*ANSWER)
    taking_over = Speaker("one ", "two ", ..., "three")
    async with replicas(model, taking_over) as (owner, other):
        sending = asyncio.create_task(stream(owner, "SendStreamingMessage", message=said()))
        blocking = asyncio.create_task(send(owner, said()))  # the same message once more
        await model.has_stopped.wait()
        await owner.house.runs.close()
        told, unfinished = await sending, await blocking
        task_id = told[0]["task"]["id"]
        assert "artifactUpdate" in told[-1]
        assert unfinished["id"] == task_id
        assert unfinished["status"]["state"] == "TASK_STATE_WORKING"
        following = asyncio.create_task(stream(other, "SubscribeToTask", id=task_id))
        await taking_over.has_stopped.wait()
        await asyncio.sleep(0.02)
        taking_over.go.set()
        snapshot, *rest = await following
        assert snapshot["task"]["artifacts"][0]["parts"][0]["text"] == "one two "
        pieces = [e["artifactUpdate"] for e in rest if "artifactUpdate" in e]
        assert [piece["artifact"]["parts"][0].get("text", "") for piece in pieces] == ["three", ""]
        assert rest[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"


# Refusals


async def test_what_cannot_be_done_has_the_specifications_error() -> None:
    async with face() as helper:
        task = await send(helper, said(contextId="c"))
        more = said("more", "m-2", taskId=task["id"])
        pushing = {"taskPushNotificationConfig": {"url": "http://x"}}
        for method, params, code in (
            ("SendMessage", {"message": more}, -32004),
            ("SendMessage", {"message": more | {"contextId": "other"}}, -32602),
            ("SendMessage", {"message": more | {"taskId": "never-was"}}, -32001),
            ("SendMessage", {"message": said(message_id="m-3"), "configuration": pushing}, -32003),
            ("CancelTask", {"id": task["id"]}, -32002),
            ("SubscribeToTask", {"id": task["id"]}, -32004),
            ("CreateTaskPushNotificationConfig", {"taskId": task["id"], "url": "x"}, -32003),
            ("message/receive", {}, -32601),
        ):
            reply = await post(helper, method, **params)
            assert reply["error"]["code"] == code, (method, params, reply)
