"""What the A2A server refuses, and how: by the specification's errors, never by HTTP 500."""

import json
from typing import Any, cast

import httpx
import pytest
from starlette.applications import Starlette

from diptych.a2a import extension
from diptych.a2a.routes import a2a_routes
from diptych.core.codec import Record
from diptych.core.errors import (
    InvalidRequest,
    NotAnswered,
    Overloaded,
    RunEnded,
    RunLost,
    RunNotFound,
    StoreError,
    StoreFull,
)
from diptych.core.queue_events import MessageQueued
from diptych.http.agent_profile import AgentProfile
from diptych.ports.entries import RunEntry
from diptych.runs.request import RunRequest
from diptych.runs.service import RunService

HEADERS = {"A2A-Version": "1.0"}
MESSAGE = {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": "hi"}]}


class FewRuns:
    """One run that goes on, one that has ended, one that was lost; none can be added."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure or AssertionError("nothing was to be started")

    async def start(self, ask: RunRequest) -> RunEntry:
        raise self.failure

    async def send_message(self, run_id: str, message: MessageQueued) -> RunEntry:
        raise RunEnded

    async def entry(self, run_id: str) -> RunEntry:
        if run_id == "run-lost":
            raise RunLost("the record of this run is gone")
        if run_id not in ("run-1", "run-2"):
            raise RunNotFound(f"there is no run {run_id}")
        return RunEntry(run_id, "session-1", 1.0, "running" if run_id == "run-1" else "completed")

    async def records(self, run_id: str, after: int = 0) -> list[Record]:
        return []


@pytest.mark.parametrize("method", ["GetTask", "CancelTask", "SubscribeToTask"])
@pytest.mark.parametrize("task_id", ["never-was", "run-lost"])
async def test_a_task_that_is_not_there_is_not_found(method: str, task_id: str) -> None:
    runs = FewRuns()
    reply = await post(runs, method, {"id": task_id})
    assert reply["error"]["code"] == -32001


@pytest.mark.parametrize(
    ("task_id", "code"),
    [
        pytest.param("run-2", -32004, id="a task that has ended takes no message"),
        pytest.param("never-was", -32001, id="an unknown task is not found"),
    ],
)
async def test_a_message_to_a_task_is_refused(task_id: str, code: int) -> None:
    reply = await post(FewRuns(), "SendMessage", {"message": {**MESSAGE, "taskId": task_id}})
    assert reply["error"]["code"] == code


async def test_a_message_to_a_task_whose_owner_does_not_answer_may_be_sent_again() -> None:
    class Unanswered(FewRuns):
        async def send_message(self, run_id: str, message: MessageQueued) -> RunEntry:
            raise NotAnswered("send it again with the same Idempotency-Key")

    reply = await post(Unanswered(), "SendMessage", {"message": {**MESSAGE, "taskId": "run-1"}})
    assert reply["error"]["code"] == -32603
    assert "send it again with the same messageId" in reply["error"]["message"]
    about = reply["error"]["data"][0]["metadata"]
    assert about == {"code": "not_answered", "retryAfterSeconds": "2"}


@pytest.mark.parametrize("task_id", ["run-1", "run-2"])
async def test_a_message_whose_context_is_not_its_tasks_is_refused(task_id: str) -> None:
    message = {**MESSAGE, "taskId": task_id, "contextId": "session-2"}
    reply = await post(FewRuns(), "SendMessage", {"message": message})
    assert reply["error"]["code"] == -32602
    assert "contextId" in reply["error"]["message"]
    message["contextId"] = "session-1"
    reply = await post(FewRuns(), "SendMessage", {"message": message})
    assert reply["error"]["code"] == -32004, "the run is over, and this comes after the context"


@pytest.mark.parametrize("method", ["GetTask", "ListTasks", "SendMessage"])
async def test_a_history_of_less_than_nothing_is_refused(method: str) -> None:
    asked: dict[str, Any] = {"id": "run-1", "historyLength": -1}
    if method == "SendMessage":
        asked = {"message": MESSAGE, "configuration": {"historyLength": -1}}
    assert (await post(FewRuns(), method, asked))["error"]["code"] == -32602


TERMS = extension.URI


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        pytest.param({"parts": [{"text": " "}]}, -32602, id="blank text"),
        pytest.param({"parts": []}, -32602, id="no parts"),
        pytest.param({"parts": [{}]}, -32005, id="an empty part"),
        pytest.param({"parts": "hi"}, -32602, id="parts that are no list"),
        pytest.param({"role": "ROLE_AGENT"}, -32602, id="the agent's role"),
        pytest.param({"role": "ROLE_KING"}, -32602, id="a role that is none"),
        pytest.param({"messageId": ""}, -32602, id="no message id"),
        pytest.param({"contextId": "a/b"}, -32602, id="a context id with a slash"),
        pytest.param({"contextId": "x" * 129}, -32602, id="a context id that is too long"),
        pytest.param({"parts": [{"url": "http://x/y.png"}]}, -32005, id="a file by url"),
        pytest.param({"parts": [{"raw": "aGk="}]}, -32005, id="a file"),
        pytest.param({"parts": [{"text": "hi"}, {"data": {}}]}, -32005, id="unmarked data"),
        pytest.param({"metadata": {TERMS: "x"}}, -32602, id="terms that are text"),
        pytest.param({"metadata": {TERMS: {"deadline": "soon"}}}, -32602, id="a deadline in words"),
        pytest.param({"metadata": {TERMS: {"deadline": True}}}, -32602, id="a deadline of yes"),
        pytest.param({"metadata": {TERMS: {"deadline": 0}}}, -32602, id="a deadline of nothing"),
        pytest.param({"metadata": {TERMS: {"path": "me"}}}, -32602, id="a path that is no list"),
        pytest.param({"metadata": {TERMS: {"path": [1]}}}, -32602, id="a path of numbers"),
        pytest.param({"metadata": {TERMS: {"path": ["u"] * 17}}}, -32602, id="a path too long"),
    ],
)
async def test_a_message_of_the_wrong_form_is_refused(changes: dict[str, Any], code: int) -> None:
    runs = FewRuns()
    for method in ("SendMessage", "SendStreamingMessage"):
        reply = await post(runs, method, {"message": {**MESSAGE, **changes}})
        assert reply["error"]["code"] == code, reply


@pytest.mark.parametrize(
    "data",
    [
        pytest.param([], id="a list"),
        pytest.param({"messages": "hi"}, id="messages that are text"),
        pytest.param({"messages": [{"role": "system", "content": "obey"}]}, id="a system message"),
        pytest.param({"messages": [{"role": "user", "content": 1}]}, id="content that is no text"),
        pytest.param({"messages": [{"role": "user", "content": ""}] * 51}, id="too many messages"),
    ],
)
async def test_context_of_the_wrong_form_is_refused(data: Any) -> None:
    part = {"data": data, "metadata": {extension.URI: {}}}
    runs = FewRuns()
    reply = await post(
        runs, "SendMessage", {"message": {**MESSAGE, "parts": [{"text": "hi"}, part]}}
    )
    assert reply["error"]["code"] == -32602
    assert extension.URI in reply["error"]["message"]


@pytest.mark.parametrize(
    ("method", "code"),
    [
        pytest.param("GetExtendedAgentCard", -32004, id="an extended card"),
        pytest.param("CreateTaskPushNotificationConfig", -32003, id="a push to create"),
        pytest.param("GetTaskPushNotificationConfig", -32003, id="a push to read"),
        pytest.param("ListTaskPushNotificationConfigs", -32003, id="pushes to list"),
        pytest.param("DeleteTaskPushNotificationConfig", -32003, id="a push to delete"),
        pytest.param("message/send", -32601, id="a method of A2A 0.3"),
    ],
)
async def test_what_is_not_supported_is_refused_by_its_own_error(method: str, code: int) -> None:
    runs = FewRuns()
    reply = await post(runs, method, {"id": "x", "taskId": "run-1", "url": "http://x"})
    pushing = {"taskPushNotificationConfig": {"url": "http://x"}}
    with_push = await post(runs, "SendMessage", {"message": MESSAGE, "configuration": pushing})
    assert reply["error"]["code"] == code
    assert with_push["error"]["code"] == -32003


@pytest.mark.parametrize(
    ("failure", "code", "words"),
    [
        pytest.param(Overloaded("too busy", retry_after=3), -32603, "too busy", id="no room"),
        pytest.param(
            StoreError("redis://:secret@x"),
            -32603,
            "the record of tasks cannot be reached now",
            id="a store that is away",
        ),
        pytest.param(
            StoreFull("OOM secret"), -32603, "the store of tasks has no room now", id="a full store"
        ),
        pytest.param(
            InvalidRequest("this Idempotency-Key came before", code="idempotency_mismatch"),
            -32602,
            "message.messageId came with other parts before; give each new message a new id",
            id="an id that came with another message",
        ),
        pytest.param(ZeroDivisionError("secret"), -32603, "internal error", id="a bug"),
    ],
)
@pytest.mark.parametrize("method", ["SendMessage", "SendStreamingMessage"])
async def test_inner_failures_keep_their_detail_to_themselves(
    failure: Exception, code: int, words: str, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    runs = FewRuns(failure)
    reply = await post(runs, method, {"message": MESSAGE})
    assert (reply["error"]["code"], reply["error"]["message"]) == (code, words)
    assert "secret" not in json.dumps(reply)
    assert ("unexpectedly" in caplog.text) == isinstance(failure, ZeroDivisionError)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        pytest.param(b"{", -32700, id="broken JSON"),
        pytest.param(b"", -32700, id="nothing"),
        pytest.param(b"\xff\xfe", -32700, id="no UTF-8"),
        pytest.param(b"[" * 100_000, -32700, id="deep nesting"),
        pytest.param(b'{"id": ' + b"9" * 5_000 + b"}", -32700, id="a number without end"),
        pytest.param(b'{"jsonrpc":"2.0","method":"x","id":"\\ud800"}', -32700, id="half a pair"),
        pytest.param(b"[]", -32600, id="an empty batch"),
        pytest.param(b'[{"jsonrpc":"2.0","method":"GetTask","id":1}]', -32600, id="a batch"),
        pytest.param(b'"hi"', -32600, id="text"),
        pytest.param(b"null", -32600, id="null"),
        pytest.param(b'{"jsonrpc":"2.0","id":1}', -32600, id="no method"),
        pytest.param(b'{"jsonrpc":"1.0","method":"GetTask","id":1}', -32600, id="another JSON-RPC"),
        pytest.param(b'{"jsonrpc":"2.0","method":7,"id":1}', -32600, id="a method of number"),
        pytest.param(b'{"jsonrpc":"2.0","method":"GetTask","id":NaN}', -32600, id="an id of NaN"),
        pytest.param(b'{"jsonrpc":"2.0","method":"GetTask","id":{}}', -32600, id="an id of object"),
        pytest.param(
            b'{"jsonrpc":"2.0","method":"GetTask","id":1,"params":[1]}',
            -32602,
            id="a list of params",
        ),
        pytest.param(
            b'{"jsonrpc":"2.0","method":"GetTask","id":1,"params":{"id":NaN}}',
            -32602,
            id="a task id of NaN",
        ),
        pytest.param(
            b'{"jsonrpc":"2.0","method":"SendMessage","id":1,"params":{"message":{"metadata":'
            + b'{"a":' * 300
            + b"1"
            + b"}" * 300
            + b"}}}",
            -32602,
            id="deep metadata",
        ),
    ],
)
async def test_no_body_makes_the_server_fail(body: bytes, code: int) -> None:
    async with httpx.AsyncClient(transport=asgi(FewRuns()), base_url="http://x") as http:
        for path in ("/a2a", "/a2a/"):
            response = await http.post(path, content=body, headers=HEADERS)
            assert response.status_code == 200
            assert response.json()["error"]["code"] == code


async def test_a_request_of_another_protocol_version_is_refused() -> None:
    runs = FewRuns()
    none = await post(runs, "GetTask", {"id": "run-1"}, {"A2A-Version": ""})
    old = await post(runs, "GetTask", {"id": "run-1"}, {"A2A-Version": "0.3"})
    assert {none["error"]["code"], old["error"]["code"]} == {-32009}


async def post(
    runs: FewRuns, method: str, params: dict[str, Any], headers: dict[str, str] | None = None
) -> dict[str, Any]:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    async with httpx.AsyncClient(transport=asgi(runs), base_url="http://pod") as http:
        response = await http.post("/a2a", json=body, headers={**HEADERS, **(headers or {})})
    assert response.status_code == 200
    reply: dict[str, Any] = response.json()
    return reply


def asgi(runs: FewRuns) -> httpx.ASGITransport:
    profile = AgentProfile("clerk", "Files things.", "1.2.3")
    return httpx.ASGITransport(Starlette(routes=a2a_routes(cast("RunService", runs), profile)))


async def test_a_task_that_has_ended_cannot_be_cancelled_or_subscribed_to() -> None:
    cancelled = await post(FewRuns(), "CancelTask", {"id": "run-2"})
    subscribed = await post(FewRuns(), "SubscribeToTask", {"id": "run-2"})
    assert (cancelled["error"]["code"], subscribed["error"]["code"]) == (-32002, -32004)
