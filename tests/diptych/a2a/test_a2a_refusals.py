"""What the A2A server refuses, and how: by the specification's errors, never by HTTP 500."""

from typing import Any, cast

import httpx
import pytest
from starlette.applications import Starlette

from diptych.a2a import extension
from diptych.a2a.routes import a2a_routes
from diptych.core.codec import Record
from diptych.core.errors import (
    RunEnded,
    RunLost,
    RunNotFound,
)
from diptych.core.events import MessageQueued
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
        pytest.param({"role": "ROLE_AGENT"}, -32602, id="the agent's role"),
        pytest.param({"messageId": ""}, -32602, id="no message id"),
        pytest.param({"contextId": "a/b"}, -32602, id="a context id with a slash"),
        pytest.param({"parts": [{"url": "http://x/y.png"}]}, -32005, id="a file by url"),
        pytest.param({"parts": [{"raw": "aGk="}]}, -32005, id="a file"),
        pytest.param({"parts": [{"text": "hi"}, {"data": {}}]}, -32005, id="unmarked data"),
        pytest.param({"metadata": {TERMS: "x"}}, -32602, id="terms that are text"),
        pytest.param({"metadata": {TERMS: {"deadline": 0}}}, -32602, id="a deadline of nothing"),
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
        pytest.param("message/receive", -32601, id="a method that is none"),
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
    ("body", "code"),
    [
        pytest.param(b"{", -32700, id="broken JSON"),
        pytest.param(b"", -32700, id="nothing"),
        pytest.param(b"\xff\xfe", -32700, id="no UTF-8"),
        pytest.param(b"[" * 100_000, -32700, id="deep nesting"),
        pytest.param(b'{"id": ' + b"9" * 5_000 + b"}", -32700, id="a number without end"),
        pytest.param(b'{"jsonrpc":"2.0","method":"x","id":"\\ud800"}', -32700, id="half a pair"),
        pytest.param(b"[]", -32600, id="an empty batch"),
        pytest.param(b"null", -32600, id="null"),
        pytest.param(b'{"jsonrpc":"2.0","id":1}', -32600, id="no method"),
        pytest.param(b'{"jsonrpc":"1.0","method":"GetTask","id":1}', -32600, id="another JSON-RPC"),
        pytest.param(b'{"jsonrpc":"2.0","method":"GetTask","id":NaN}', -32700, id="an id of NaN"),
        pytest.param(b'{"jsonrpc":"2.0","method":"GetTask","id":{}}', -32600, id="an id of object"),
        pytest.param(
            b'{"jsonrpc":"2.0","method":"GetTask","id":1,"params":[1]}',
            -32602,
            id="a list of params",
        ),
        pytest.param(
            b'{"jsonrpc":"2.0","method":"GetTask","id":1,"params":{"id":NaN}}',
            -32700,
            id="a task id of NaN",
        ),
    ],
)
async def test_no_body_makes_the_server_fail(body: bytes, code: int) -> None:
    async with httpx.AsyncClient(transport=asgi(FewRuns()), base_url="http://x") as http:
        for path in ("/a2a", "/a2a/"):
            response = await http.post(path, content=body, headers=HEADERS)
            assert response.status_code == 200
            assert response.json()["error"]["code"] == code


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
