"""Questions of tools over HTTP: shown to those who may see the run, answered by its owner."""

import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import httpx
import pytest
from a2a.types import Message, Part, Role, SendMessageRequest, TaskState
from a2a.utils.errors import A2AError
from google.protobuf.json_format import MessageToDict, ParseDict
from support.a2a_wires import USUAL, WIRES, Wire, client_over, over_each_wire
from support.doubles import FunctionTools
from support.face import LOCAL, Face, access_of, as_, face, openai_error
from support.stack import until

from diptych.access.grants import Right
from diptych.core.events import InputRequest
from diptych.policy.rules import Policy, Rule

BOOK, CALL = '{"tool": "book"}', "call_1_1"
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
}
WHO = InputRequest("form", "Who travels?", SCHEMA)
RIGHTS = {
    "ada": {Right.ASK},
    "bob": {Right.ASK},
    "lead": {Right.MANAGE},
    "reader": {Right.READ},
    "eve": {Right.APPROVE},
}


@asynccontextmanager
async def asked(
    who: str = "", request: InputRequest = WHO, **more: Any
) -> AsyncIterator[tuple[Face, str]]:
    """Give an agent whose tool asks, and the run's id; `who` has begun it."""

    async def book(context: Any) -> str:
        answer = await context.ask(request)
        return f"{context.person or 'nobody'}: {answer.action} {answer.content}"

    tools = FunctionTools({"book": book}, asking=["book"])
    async with face(BOOK, "{}", "Booked.", tools=tools, **more) as helper:
        reply = await helper.http.post("/v1/runs", json={"input": "hi"}, headers=as_(who))
        run_id = reply.json()["id"]
        await until(lambda: helper.house.store._runs[run_id].awaits_input, 5)
        yield helper, run_id


async def answer(helper: Face, run_id: str, body: Any, who: str = "") -> Any:
    path = f"/v1/runs/{run_id}/inputs/{CALL}"
    return await helper.http.post(path, json=body, headers=as_(who))


async def test_a_question_is_listed_answered_once_and_its_answer_shown_nowhere(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    async with asked() as (helper, run_id):
        run = (await helper.http.get(f"/v1/runs/{run_id}")).json()
        assert run["status"] == "input-required"
        [question] = run["inputs"]
        assert (await helper.http.get("/v1/inputs")).json() == {
            "object": "list",
            "data": [question],
        }
        assert (await helper.http.get("/v1/approvals")).json()["data"] == []
        assert (question["kind"], question["message"]) == ("form", "Who travels?")
        assert (question["schema"], question["status"]) == (SCHEMA, "waiting")
        content = {"name": "Ada-in-private"}
        reply = await answer(helper, run_id, {"action": "accept", "content": content})
        assert reply.status_code == 200, reply.text
        assert (reply.json()["status"], reply.json()["action"]) == ("answered", "accept")
        refused = openai_error(await answer(helper, run_id, {"action": "decline"}), 409)
        assert refused["code"] == "already_answered"
        await helper.house.told(run_id)
        assert (await helper.http.get("/v1/inputs")).json()["data"] == []
        shown = [reply.text, (await helper.http.get(f"/v1/runs/{run_id}/events")).text]
        shown += [(await helper.http.get(p)).text for p in (f"/v1/runs/{run_id}", "/memory/events")]
        told = [line for text in shown for line in text.splitlines() if "input_" in line]
        assert told
        assert "Ada-in-private" not in "".join(line for line in told if "tool_result" not in line)
        result = "nobody: accept {'name': 'Ada-in-private'}"
        assert any(result in text for text in shown)  # the tool may tell it
    [line] = [r.message for r in caplog.records if r.name == "diptych.audit"]
    audit = json.loads(line)
    assert (audit["what"], audit["call"], audit["outcome"]) == ("answer", CALL, "accept")
    assert "Ada-in-private" not in caplog.text


@pytest.mark.parametrize("who", ["ada", "lead"])
async def test_the_runs_owner_answers_or_those_who_manage_runs(who: str) -> None:
    async with asked("ada", access=access_of(RIGHTS)) as (helper, run_id):
        body = {"action": "accept", "content": {"name": "Ada"}, "subject": "user:else"}
        for other, status in (("bob", 404), ("eve", 404), ("reader", 403)):
            assert (await answer(helper, run_id, body, other)).status_code == status
            seen = (await helper.http.get("/v1/inputs", headers=as_(other))).json()["data"]
            assert len(seen) == (other == "reader")
        reply = await answer(helper, run_id, body, who)
        assert reply.json()["answered_by"] == f"key:{who}"
        items = await helper.house.told(run_id)
        results = [i.content for i in items if getattr(i, "event_type", "") == "tool_result"]
        assert results == ["key:ada: accept {'name': 'Ada'}"]  # the person began the run


@pytest.mark.parametrize(
    ("kind", "body", "status", "param"),
    [
        ("form", {"action": "accept"}, 400, "content"),
        ("form", {"action": "accept", "content": {"name": 1}}, 422, "content.name"),
        ("form", {"action": "maybe"}, 400, "action"),
        ("url", {"action": "accept", "content": {}}, 400, "content"),
        ("sign_in", {"action": "accept"}, 400, "action"),
        ("caller_tool", {"action": "accept", "content": {}}, 400, "action"),
        ("caller_tool", {"action": "cancel"}, 400, "action"),
    ],
)
async def test_an_answer_that_is_none_is_refused_with_its_path(
    kind: Any, body: Any, status: int, param: str
) -> None:
    schema = SCHEMA if kind == "form" else None
    async with asked(request=InputRequest(kind, "?", schema, "http://x")) as (helper, run_id):
        error = openai_error(await answer(helper, run_id, body), status)
        assert error["param"] == param
        assert "input-required" in (await helper.http.get(f"/v1/runs/{run_id}")).text
        await helper.house.runs.cancel(run_id)


# A2A


def message_of(value: Any, task_id: str = "") -> SendMessageRequest:
    part = Part(text=value) if isinstance(value, str) else Part()
    if not isinstance(value, str):
        ParseDict(value, part.data)
    message = Message(message_id=uuid4().hex, role=Role.ROLE_USER, parts=[part], task_id=task_id)
    return SendMessageRequest(message=message)


@asynccontextmanager
async def tasks(
    wire: Wire, *replies: str, **doubles: Any
) -> AsyncIterator[tuple[Face, Callable[..., Any]]]:
    """Give an agent and a function that sends it a message, and returns the task then."""
    async with face(*replies, **doubles) as helper:
        http = httpx.AsyncClient(transport=httpx.ASGITransport(helper.app), base_url=LOCAL)
        client = await client_over(wire, http, LOCAL, streaming=False)

        async def send(value: Any, task_id: str = "") -> Any:
            [event] = [e async for e in client.send_message(message_of(value, task_id))]
            return event.task

        yield helper, send


@pytest.mark.parametrize(
    ("wire", "kind"), [*((wire, "form") for wire in WIRES), (USUAL, "sign_in")]
)
async def test_a_client_of_a2a_is_asked_and_answers_with_data(wire: Wire, kind: Any) -> None:
    request = WHO if kind == "form" else InputRequest(kind, "Sign in.", url="http://x")

    async def book(context: Any) -> str:
        answer = await context.ask(request)
        return f"{answer.action} {answer.content}"

    tools = FunctionTools({"book": book}, asking=["book"])
    async with tasks(wire, BOOK, "{}", "Booked.", tools=tools) as (helper, send):
        task = await send("hi")
        is_form = kind == "form"
        asked = TaskState.TASK_STATE_INPUT_REQUIRED
        assert task.status.state == (asked if is_form else TaskState.TASK_STATE_AUTH_REQUIRED)
        text, data = task.status.message.parts
        assert text.text == f"the call call_1_1 asks: {request.message}"
        shown = MessageToDict(data.data)
        assert shown.pop("expires_at").endswith("Z")
        about = {"schema": SCHEMA} if is_form else {"url": "http://x"}
        assert shown == {"call_id": CALL, "kind": kind, "message": request.message, **about}
        reply: dict[str, Any] = {"call_id": CALL, "action": "decline"}
        if is_form:
            with pytest.raises(A2AError, match=r"content\.name"):
                await send({**reply, "action": "accept", "content": {"name": 1}}, task.id)
            reply |= {"action": "accept", "content": {"name": "Ada"}}
        task = await send(reply, task.id)
        assert task.status.state == TaskState.TASK_STATE_COMPLETED
        results = await helper.house.events(task.id)
        [result] = [e.result.text for e in results if hasattr(e, "result")]
        assert result == ("accept {'name': 'Ada'}" if is_form else "decline None")
        with pytest.raises(A2AError, match="already answered"):
            await send(reply, task.id)


@over_each_wire
async def test_a_client_of_a2a_decides_on_an_approval_with_data(wire: Wire) -> None:
    async def pay(amount: int) -> str:
        return f"paid {amount}"

    policy = Policy((Rule("tool", "pay", "ask", reason="money"),))
    pay_5 = '{"tool": "pay", "arguments": {"amount": 5}}'
    async with tasks(wire, pay_5, "{}", "Paid.", tools={"pay": pay}, policy=policy) as made:
        helper, send = made
        task = await send("hi")
        shown = MessageToDict(task.status.message.parts[1].data)
        assert (shown["call_id"], shown["kind"], shown["reason"]) == (CALL, "approval", "money")
        assert shown["call"] == {"tool": "pay", "arguments": {"amount": 5}}
        for wrong in ({"decision": "maybe"}, {"decision": "approve", "more": 1}):
            with pytest.raises(A2AError):
                await send({"call_id": CALL, **wrong}, task.id)
        edit = {"call_id": CALL, "decision": "edit", "arguments": {"amount": 1}}
        task = await send(edit, task.id)
        assert task.status.state == TaskState.TASK_STATE_COMPLETED
        assert helper.house.tools.called == [("pay", {"amount": 1})]
        with pytest.raises(A2AError, match="already decided: edit"):
            await send(edit, task.id)


async def test_an_answer_over_a2a_needs_the_same_right() -> None:
    async with asked("ada", access=access_of(RIGHTS)) as (helper, run_id):
        about = {"call_id": CALL, "action": "accept", "content": {"name": "Eve"}}
        body = {"message": MessageToDict(message_of(about, run_id).message)}
        refused = await helper.http.post(
            "/a2a/rest/message:send", json=body, headers={**as_("bob"), "A2A-Version": "1.0"}
        )
        assert refused.status_code == 404, refused.text
        assert (await answer(helper, run_id, {"action": "cancel"}, "ada")).status_code == 200
