"""Approvals over HTTP and A2A: what waits is shown everywhere, and who may decide it."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from a2a.types import (
    Message,
    Part,
    Role,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskState,
)
from support.a2a_wires import USUAL, client_over
from support.face import LOCAL, Face, access_of, as_, face, openai_error
from support.stack import until

from diptych.a2a.extension import URI
from diptych.access.grants import Right
from diptych.core.reading.strict_json import MAX_DEPTH
from diptych.policy.rules import Policy, Rule

ASK = Policy((Rule("tool", "pay", "ask", reason="money"),))
PAY = '{"tool": "pay", "arguments": {"amount": 5}}'
CALL = "call_1_1"
RIGHTS = {
    "ada": {Right.ASK},
    "bob": {Right.ASK},
    "eve": {Right.APPROVE, Right.ASK},
    "lead": {Right.APPROVE},
    "reader": {Right.READ},
}


async def pay(amount: int) -> str:
    return f"paid {amount}"


@asynccontextmanager
async def asked(who: str = "", **more: Any) -> AsyncIterator[tuple[Face, str]]:
    """Give an agent of which a call waits, and the run's id; `who` has asked."""
    async with face(PAY, "{}", "Paid.", tools={"pay": pay}, policy=ASK, **more) as helper:
        reply = await helper.http.post("/v1/runs", json={"input": "hi"}, headers=as_(who))
        run_id = reply.json()["id"]
        await until(lambda: helper.house.store._runs[run_id].awaits_input, 5)
        yield helper, run_id


async def decide(helper: Face, run_id: str, body: Any, who: str = "", call: str = CALL) -> Any:
    path = f"/v1/runs/{run_id}/approvals/{call}"
    return await helper.http.post(path, json=body, headers=as_(who))


async def run_of(helper: Face, run_id: str, who: str = "") -> Any:
    return (await helper.http.get(f"/v1/runs/{run_id}", headers=as_(who))).json()


async def test_what_waits_is_listed_and_shown_with_its_run() -> None:
    async with asked() as (helper, run_id):
        run = await run_of(helper, run_id)
        assert run["status"] == "input-required"
        [approval] = run["approvals"]
        assert approval["call"] == {"tool": "pay", "arguments": {"amount": 5}}
        assert (approval["status"], approval["reason"]) == ("waiting", "money")
        assert approval["expires_at"].endswith("Z")
        listed = (await helper.http.get("/v1/approvals")).json()
        assert listed == {"object": "list", "data": [approval]}
        runs = (await helper.http.get("/v1/runs", params={"status": "input-required"})).json()
        assert [each["id"] for each in runs["data"]] == [run_id]


async def test_a_decision_is_on_record_with_its_reply_and_counts_once() -> None:
    async with asked() as (helper, run_id):
        reply = await decide(helper, run_id, {"decision": "edit", "arguments": {"amount": 1}})
        assert reply.status_code == 200, reply.text
        body = reply.json()
        assert (body["status"], body["decision"]) == ("decided", "edit")
        assert body["made_as"] == {"tool": "pay", "arguments": {"amount": 1}}
        await helper.house.told(run_id)
        assert helper.house.tools.called == [("pay", {"amount": 1})]
        refused = openai_error(await decide(helper, run_id, {"decision": "reject"}), 409)
        assert refused["code"] == "already_decided"  # also when the run has ended
        assert refused["message"] == "already decided: edit by somebody"
        assert (await helper.http.get("/v1/approvals")).json()["data"] == []


async def test_what_others_wait_for_takes_no_place_in_a_callers_list() -> None:
    async with asked("ada", access=access_of(RIGHTS)) as (helper, run_id):
        for _ in range(3):
            reply = await helper.http.post("/v1/runs", json={"input": "hi"}, headers=as_("bob"))
            other = reply.json()["id"]
            await until(lambda other=other: helper.house.store._runs[other].awaits_input, 5)
        for who, limit, listed in (("ada", 1, 1), ("ada", 9, 1), ("bob", 2, 2), ("lead", 9, 4)):
            path = f"/v1/approvals?limit={limit}"
            found = (await helper.http.get(path, headers=as_(who))).json()["data"]
            assert len(found) == listed, (who, limit)
            if who == "ada":
                assert found[0]["run_id"] == run_id


async def test_what_makes_no_sense_is_refused_by_its_path():
    async with asked() as (helper, run_id):
        for body, status, param in (
            ({"decision": "perhaps"}, 400, "decision"),
            ({"decision": "edit", "arguments": 5}, 400, "arguments"),
            ({"decision": "edit"}, 400, "arguments"),
            ({"decision": "replace", "call": {"tool": "nope"}}, 422, "call.tool"),
            ({}, 400, "decision"),
            ({"decision": "approve", "who": "me"}, 400, "who"),
        ):
            assert openai_error(await decide(helper, run_id, body), status)["param"] == param


def nested(levels: int) -> Any:
    """Arguments of so many levels, the outermost one among them."""
    value: Any = 1
    for _ in range(levels - 1):
        value = {"a": value}
    return {"amount": value}


async def test_arguments_that_are_too_deep_are_refused_and_the_run_goes_on_waiting():
    levels = MAX_DEPTH + 1
    async with asked() as (helper, run_id):
        replaced = {"tool": "pay", "arguments": nested(levels)}
        for body, param in (
            ({"decision": "edit", "arguments": nested(levels)}, "arguments"),
            ({"decision": "replace", "call": replaced}, "call.arguments"),
        ):
            error = openai_error(await decide(helper, run_id, body), 422)
            assert (error["code"], error["param"]) == ("invalid_arguments", param)
            assert f"at most {MAX_DEPTH} levels" in error["message"]
            assert (await run_of(helper, run_id))["status"] == "input-required"
        body = {"decision": "edit", "arguments": nested(MAX_DEPTH)}
        assert (await decide(helper, run_id, body)).status_code == 200
        await helper.house.told(run_id)
        assert helper.house.tools.called == [("pay", nested(MAX_DEPTH))]


async def test_unknown_runs_and_calls_are_not_found() -> None:
    async with asked() as (helper, run_id):
        approve = {"decision": "approve"}
        error = openai_error(await decide(helper, run_id, approve, call="call_9_9"), 404)
        assert error["code"] == "approval_not_found"
        assert openai_error(await decide(helper, "nope", approve), 404)["code"] == "run_not_found"


async def test_only_who_may_approve_decides_and_foreign_runs_are_unknown() -> None:
    async with asked("ada", access=access_of(RIGHTS)) as (helper, run_id):
        approve = {"decision": "approve"}
        assert (await decide(helper, run_id, approve)).status_code == 401
        error = openai_error(await decide(helper, run_id, approve, "ada"), 403)
        assert error["message"] == "this needs the right 'approve'"
        assert (await decide(helper, run_id, approve, "reader")).status_code == 403
        assert (await decide(helper, run_id, approve, "bob")).status_code == 404
        seen = {}
        for who in ("ada", "bob", "lead", "reader"):
            listed = await helper.http.get("/v1/approvals", headers=as_(who))
            seen[who] = len(listed.json()["data"])
        assert seen == {"ada": 1, "bob": 0, "lead": 1, "reader": 1}
        reply = await decide(helper, run_id, approve, "lead")
        assert reply.json()["decided_by"] == "key:lead"


async def test_nobody_approves_its_own_run_unless_the_manifest_says_so() -> None:
    approve = {"decision": "approve"}
    async with asked("eve", access=access_of(RIGHTS)) as (helper, run_id):
        error = openai_error(await decide(helper, run_id, approve, "eve"), 403)
        assert "somebody else must" in error["message"]
        assert (await run_of(helper, run_id, "eve"))["status"] == "input-required"
    async with asked("eve", access=access_of(RIGHTS, approves_own=True)) as (helper, run_id):
        assert (await decide(helper, run_id, approve, "eve")).status_code == 200


async def test_who_says_to_work_for_another_does_not_approve_its_own_run_either(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "diptych.audit")
    approve = {"decision": "approve"}
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
    message |= {"extensions": [URI], "metadata": {URI: {"path": [], "subject": "key:lead"}}}
    params = {"message": message, "configuration": {"returnImmediately": True}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params}
    tools = {"pay": pay}
    async with face(
        PAY, "{}", "Paid.", tools=tools, policy=ASK, access=access_of(RIGHTS)
    ) as helper:
        headers = as_("eve") | {"A2A-Version": "1.0"}
        task = (await helper.http.post("/a2a", json=body, headers=headers)).json()["result"]
        run_id = task["task"]["id"]
        await until(lambda: helper.house.store._runs[run_id].awaits_input, 5)
        error = openai_error(await decide(helper, run_id, approve, "eve"), 403)
        assert error["message"].startswith("you may not decide approvals in a run of your own")
        error = openai_error(await decide(helper, run_id, approve, "lead"), 403)
        assert error["message"].startswith(
            "you may not decide approvals in a run started on your behalf"
        )
    lines = [json.loads(r.message) for r in caplog.records if r.name == "diptych.audit"]
    refused = [(line["subject"], line["why"]) for line in lines if line.get("what") == "decide"]
    assert refused == [
        ("key:eve", "its own run"),
        ("key:lead", "run started on its behalf"),
    ]


async def test_who_may_not_decide_is_audited(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "diptych.audit")
    approve = {"decision": "approve"}
    async with asked("eve", access=access_of(RIGHTS)) as (helper, run_id):
        for who in ("eve", "reader", "bob"):
            await decide(helper, run_id, approve, who)
        await decide(helper, run_id, {"decision": "edit"}, "reader")
    lines = [json.loads(r.message) for r in caplog.records if r.name == "diptych.audit"]
    refused = [line for line in lines if line.get("what") == "decide"]
    assert [(line.pop("subject"), line.pop("why")) for line in refused] == [
        ("key:eve", "its own run"),
        ("key:reader", "it lacks the right approve"),
        ("key:bob", "not found, or it belongs to another subject"),
        ("key:reader", "it lacks the right approve"),
    ]
    about = {"right": "approve", "what": "decide", "run": run_id, "call": CALL}
    assert refused == [about | {"outcome": "refused"}] * 4


@pytest.mark.parametrize("end", ["the server cancels", "the agent closes"])
async def test_a_decision_of_which_nobody_knows_is_audited_when_the_agent_ends(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    async with asked("ada", access=access_of(RIGHTS)) as (helper, run_id):
        sent = asyncio.Event()

        async def lose(*_: Any) -> None:
            sent.set()
            await asyncio.sleep(0.01)

        monkeypatch.setattr(helper.house.runs._signals, "_send", lose)
        body = {"decision": "approve", "reason": "fine"}
        deciding = asyncio.create_task(decide(helper, run_id, body, "eve"))
        await sent.wait()
        if end == "the server cancels":
            deciding.cancel()
            with pytest.raises(asyncio.CancelledError):
                await deciding
        else:
            helper.house.runs._signals.close()
            assert (await deciding).status_code == 503
    lines = [json.loads(r.message) for r in caplog.records if r.name == "diptych.audit"]
    assert {
        "subject": "key:eve",
        "right": "approve",
        "what": "decide",
        "outcome": "unconfirmed",
        "decision": "approve",
        "run": run_id,
        "call": CALL,
        "why": "fine",
    } in lines


async def test_a_chat_is_told_that_a_call_waits_in_a_valid_chunk() -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
    async with face(PAY, "{}", "Paid.", tools={"pay": pay}, policy=ASK) as helper:
        asking = asyncio.create_task(helper.http.post("/v1/chat/completions", json=chat))
        found: list[Any] = []
        while not found:
            await asyncio.sleep(0.02)
            found = (await helper.http.get("/v1/approvals")).json()["data"]
        await decide(helper, found[0]["run_id"], {"decision": "approve"})
        text = (await asking).text
        [notice] = [
            json.loads(line.removeprefix("data: "))
            for line in text.splitlines()
            if '"approval_requested"' in line
        ]
        assert notice["choices"] == [{"index": 0, "delta": {}, "finish_reason": None}]
        assert notice["call"] == {"tool": "pay", "arguments": {"amount": 5}}
        assert "Paid" in text


async def test_a_task_is_input_required_while_a_call_waits() -> None:
    message = Message(message_id="m", role=Role.ROLE_USER, parts=[Part(text="hi")])
    async with face(PAY, "{}", "Paid.", tools={"pay": pay}, policy=ASK) as helper:
        http = httpx.AsyncClient(transport=httpx.ASGITransport(helper.app), base_url=LOCAL)
        client = await client_over(USUAL, http, LOCAL, streaming=False)
        [event] = [e async for e in client.send_message(SendMessageRequest(message=message))]
        assert event.task.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
        asked = event.task.status.message.parts[0].text
        assert asked.startswith("the call call_1_1 waits for approval: money\n")
        streaming = await client_over(USUAL, http, LOCAL)
        states = []

        async def follow() -> None:
            async for update in streaming.subscribe(SubscribeToTaskRequest(id=event.task.id)):
                kind = update.WhichOneof("payload")
                if kind == "task":
                    states.append(update.task.status.state)
                elif kind == "status_update":
                    states.append(update.status_update.status.state)

        following = asyncio.create_task(follow())
        await asyncio.sleep(0.3)  # the transport gives a whole response only
        await decide(helper, event.task.id, {"decision": "approve"})
        await following
        assert states == [
            TaskState.TASK_STATE_INPUT_REQUIRED,
            TaskState.TASK_STATE_WORKING,
            TaskState.TASK_STATE_COMPLETED,
        ]
