"""What holds over every wire of A2A: who may do what, what is refused and how, and what is echoed.

Requests are written by hand, in the form of each wire.
"""

import json
import logging
import time
from collections.abc import AsyncIterator
from itertools import product
from typing import Any, cast

import httpx
import pytest
from starlette.applications import Starlette
from support.a2a_wires import WIRES, Wire, over_each_wire
from support.face import Face, access_of, as_, error_of, face
from support.stack import frames

from diptych.a2a import extension
from diptych.a2a.routes import a2a_routes
from diptych.access.grants import Right
from diptych.access.limits import Limits
from diptych.core.codec import Record
from diptych.core.errors import NotAnswered, StoreError, StoreFull, SubjectOverloaded
from diptych.http.agent_profile import AgentProfile
from diptych.http.guarded_runs import GuardedRuns
from diptych.ports.entries import RunEntry

OLDER_RPC, OLDER_REST = ("JSONRPC", "0.3"), ("HTTP+JSON", "0.3")
RPC_NAMES = {
    "send": ("SendMessage", "message/send"),
    "stream": ("SendStreamingMessage", "message/stream"),
    "get": ("GetTask", "tasks/get"),
    "cancel": ("CancelTask", "tasks/cancel"),
    "subscribe": ("SubscribeToTask", "tasks/resubscribe"),
}
REST_PATHS = {
    "send": ("POST", "message:send"),
    "stream": ("POST", "message:stream"),
    "get": ("GET", "tasks/{}"),
    "cancel": ("POST", "tasks/{}:cancel"),
    "subscribe": ("POST", "tasks/{}:subscribe"),
}
TERMS = extension.URI


def said(wire: Wire, text: str = "hi", message_id: str = "m-1", **more: Any) -> dict[str, Any]:
    """Write the parameters of a message, for which a caller waits."""
    if wire == OLDER_RPC:
        parts = [{"kind": "text", "text": text}]
        message = {"kind": "message", "messageId": message_id, "role": "user", "parts": parts}
        return {"message": message | more}
    named = "content" if wire == OLDER_REST else "parts"
    message = {"messageId": message_id, "role": "ROLE_USER", named: [{"text": text}]}
    asked: dict[str, Any] = {"message": message | more}
    return asked | ({"configuration": {"blocking": True}} if wire == OLDER_REST else {})


async def ask(
    http: httpx.AsyncClient,
    wire: Wire,
    what: str,
    asked: Any,
    headers: dict[str, str] | None = None,
) -> httpx.Response:
    """Ask for a task by its id, or with a message."""
    binding, version = wire
    is_older = version == "0.3"
    headers = {"A2A-Version": version, **(headers or {})}
    if binding == "JSONRPC":
        params = {"id": asked} if isinstance(asked, str) else asked
        body = {"jsonrpc": "2.0", "id": 1, "method": RPC_NAMES[what][is_older], "params": params}
        return await http.post("/a2a", json=body, headers=headers)
    method, path = REST_PATHS[what]
    root = "/a2a/rest/v1/" if is_older else "/a2a/rest/"
    if isinstance(asked, str):
        return await http.request(method, root + path.format(asked), headers=headers)
    return await http.request(method, root + path, json=asked, headers=headers)


def error_over(wire: Wire, reply: httpx.Response, code: int, status: int) -> dict[str, Any]:
    """Check that a reply is an error: one with a code over JSON-RPC, with a status over REST."""
    if wire[0] == "HTTP+JSON":
        return dict(error_of(reply, status))
    assert reply.status_code == 200, reply.text
    is_stream = reply.headers["content-type"].startswith("text/event-stream")
    body = json.loads(reply.text.partition("data: ")[2]) if is_stream else reply.json()
    assert body["id"] == 1
    error: dict[str, Any] = body["error"]
    assert error["code"] == code, error
    return error


RIGHTS = {"ada": {Right.ASK}, "bob": {Right.ASK}, "auditor": {Right.READ}}


async def the_run_of(helper: Face, who: str) -> str:
    reply = await helper.http.post("/v1/runs", json={"input": "the secret"}, headers=as_(who))
    await helper.http.get(f"/v1/runs/{reply.json()['id']}/events", headers=as_(who))
    return str(reply.json()["id"])


async def test_a_foreign_task_is_the_same_as_an_unknown_one() -> None:
    async with face(access=access_of(RIGHTS)) as helper:
        foreign = await the_run_of(helper, "ada")
        unknown = f"{foreign[:-4]}ffff"
        for wire in WIRES:
            assert "secret" in (await ask(helper.http, wire, "get", foreign, as_("ada"))).text
            for what in ("get", "cancel", "subscribe", "send", "stream"):
                texts = []
                for task_id in (foreign, unknown):
                    is_message = what in ("send", "stream")
                    asked = said(wire, taskId=task_id) if is_message else task_id
                    reply = await ask(helper.http, wire, what, asked, as_("bob"))
                    error_over(wire, reply, -32001, 404)
                    if wire == OLDER_REST:
                        assert (reply.json()["code"], reply.json()["type"]) == (
                            -32001,
                            "TaskNotFoundError",
                        )
                    texts.append(reply.text.replace(task_id, ""))
                assert texts[0] == texts[1], what


async def test_rest_lists_no_foreign_tasks() -> None:
    async with face(access=access_of(RIGHTS)) as helper:
        await the_run_of(helper, "ada")
        for who, sees in (("bob", False), ("ada", True), ("auditor", True)):
            headers = as_(who) | {"A2A-Version": "1.0"}
            reply = await helper.http.get("/a2a/rest/tasks", headers=headers)
            assert reply.status_code == 200, reply.text
            assert ("secret" in reply.text) == sees, who


@over_each_wire
async def test_who_may_only_read_starts_and_cancels_nothing_and_that_is_on_the_audit(
    wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "diptych.audit")
    async with face(access=access_of(RIGHTS)) as helper:
        run_id = await the_run_of(helper, "ada")
        assert "secret" in (await ask(helper.http, wire, "get", run_id, as_("auditor"))).text
        for what in ("send", "stream"):
            reply = await ask(helper.http, wire, what, said(wire), as_("auditor"))
            assert "ask" in error_over(wire, reply, -32004, 403)["message"]
        assert len(await helper.house.runs.entries()) == 1
        await ask(helper.http, wire, "send", said(wire), as_("bob"))
    lines = [json.loads(r.message) for r in caplog.records if r.name == "diptych.audit"]
    seen = [(line["subject"], line["what"], line["outcome"]) for line in lines]
    assert seen[1:] == [*[("key:auditor", "start", "refused")] * 2, ("key:bob", "start", "allowed")]


@over_each_wire
async def test_a_callers_limit_is_said_with_when_to_try_again(wire: Wire) -> None:
    async with face(access=access_of(RIGHTS), limits=Limits(runs_per_minute=1)) as helper:
        await ask(helper.http, wire, "send", said(wire), as_("ada"))
        reply = await ask(helper.http, wire, "send", said(wire, message_id="m-2"), as_("ada"))
        error = error_over(wire, reply, -32603, 429)
        assert "retryAfterSeconds" in json.dumps(error)
        if wire[0] == "HTTP+JSON":
            assert error["status"] == "RESOURCE_EXHAUSTED"
            assert int(reply.headers["Retry-After"]) > 0


async def test_a_message_that_comes_again_over_another_wire_is_the_same_task() -> None:
    async with face("{}", "One.") as helper:
        for wire in WIRES:
            reply = await ask(helper.http, wire, "send", said(wire))
            assert "One." in reply.text, reply.text
        assert len(await helper.house.runs.entries()) == 1
        other = await ask(helper.http, OLDER_REST, "send", said(OLDER_REST, "something else"))
        assert "messageId" in error_of(other, 400)["message"]


async def test_the_extension_is_named_to_who_activates_it() -> None:
    async with face() as helper:
        for wire in WIRES:
            for header in ("A2A-Extensions", "X-A2A-Extensions"):
                reply = await ask(helper.http, wire, "send", said(wire), {header: TERMS})
                assert reply.headers.get(header) == TERMS


@over_each_wire
async def test_who_activates_the_extension_is_told_events(wire: Wire) -> None:
    async with face() as helper:
        for headers, has_events in (({"A2A-Extensions": TERMS}, True), ({}, False)):
            asked = said(wire, message_id=f"m-{has_events}")
            reply = await ask(helper.http, wire, "stream", asked, headers)
            told = frames(reply.text.replace("\r\n", "\n"))
            assert any('"event":' in json.dumps(each.json) for each in told) == has_events


async def test_a_request_that_names_no_version_or_an_older_one_is_one_of_0_3() -> None:
    async with face() as helper:
        for version in ("", "0.2.6"):
            headers = {"A2A-Version": version}
            for wire in (OLDER_RPC, OLDER_REST):
                reply = await ask(helper.http, wire, "send", said(wire), headers)
                assert "Hello!" in reply.text
            newer = [await ask(helper.http, wire, "get", "x", headers) for wire in WIRES[:2]]
            assert newer[0].json()["error"]["code"] == -32009
            assert "version" in error_of(newer[1], 400)["message"]


async def test_push_notifications_are_refused_by_their_own_error() -> None:
    async with face() as helper:
        for wire in WIRES:
            push: dict[str, Any] = {"url": "http://x"}
            named = {
                ("JSONRPC", "1.0"): "taskPushNotificationConfig",
                ("HTTP+JSON", "1.0"): "taskPushNotificationConfig",
                OLDER_RPC: "pushNotificationConfig",
                OLDER_REST: "pushNotification",
            }[wire]
            asked = said(wire) | {"configuration": {named: push}}
            reply = await ask(helper.http, wire, "send", asked)
            assert "Push" in error_over(wire, reply, -32003, 400)["message"]
            assert await helper.house.runs.entries() == []


async def test_a_body_of_very_many_values_is_refused_before_it_is_read_for_seconds() -> None:
    async with face() as helper:
        for wire in WIRES:
            for many in ({"metadata": {"x": [{}] * 200_000}}, {"extensions": ["x"] * 200_000}):
                begun = time.process_time()
                reply = await ask(helper.http, wire, "send", said(wire, **many))
                took = time.process_time() - begun
                is_rpc = wire[0] == "JSONRPC"
                error = reply.json()["error"] if is_rpc else error_of(reply, 400)
                assert "values" in error["message"]
                assert took < 1
            reply = await ask(helper.http, wire, "send", said(wire, "a,b:[c]" * 100_000))
            assert "Hello!" in reply.text


class FailingRuns:
    """Whose every method fails, or whose streams do once they are open."""

    def __init__(self, failure: Exception, *, in_stream: bool = False) -> None:
        self._failure, self._in_stream = failure, in_stream

    async def start(self, _: object) -> RunEntry:
        if self._in_stream:
            return RunEntry("run-1", "session-1", 1.0, "queued")
        raise self._failure

    async def entry(self, _: str) -> RunEntry:
        raise self._failure

    def attend(self, run_id: str) -> None:
        """Nobody leaves these runs."""

    async def subscribe(self, *_: object) -> AsyncIterator[list[Record]]:
        async def batches() -> AsyncIterator[list[Record]]:
            raise self._failure
            yield []

        return batches()


def client_of(runs: FailingRuns) -> httpx.AsyncClient:
    routes = a2a_routes(cast("GuardedRuns", runs), AgentProfile("clerk", "", "1"))
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(Starlette(routes=routes)), base_url="http://x"
    )


FAILURES = [
    (SubjectOverloaded("too much", retry_after=2), 429, "2"),
    (StoreFull("OOM secret"), 503, "10"),
    (NotAnswered("secret"), 503, "2"),
    (ZeroDivisionError("secret"), 500, None),
]


@over_each_wire
async def test_inner_failures_have_a_status_and_keep_their_detail_to_themselves(
    wire: Wire,
) -> None:
    for failure, status, after in FAILURES:
        async with client_of(FailingRuns(failure)) as http:
            for what in ("send", "stream", "get", "cancel", "subscribe"):
                asked = said(wire) if what in ("send", "stream") else "run-1"
                reply = await ask(http, wire, what, asked)
                error_over(wire, reply, -32603, status)
                assert "secret" not in reply.text
                if wire[0] == "HTTP+JSON":
                    assert reply.headers.get("Retry-After") == after


@over_each_wire
async def test_a_stream_that_breaks_says_so_and_keeps_the_detail_to_itself(wire: Wire) -> None:
    async with client_of(FailingRuns(StoreError("secret"), in_stream=True)) as http:
        reply = await ask(http, wire, "stream", said(wire))
    first, last = frames(reply.text.replace("\r\n", "\n"))
    assert "run-1" in json.dumps(first.json)
    assert "the record of tasks cannot be reached now" in last.json["error"]["message"]
    if wire[0] == "HTTP+JSON":
        assert last.event == "error"
    assert "secret" not in reply.text


DEEP = json.loads('{"a":' * 150 + "1" + "}" * 150)


CHANGES: list[dict[str, Any]] = [
    {"contextId": 5},
    {"contextId": "a/b"},
    {"messageId": ""},
    {"role": "ROLE_AGENT"},
    {"metadata": {TERMS: {"deadline": 0}}},
    {"parts": [{"text": " "}], "content": [{"text": " "}]},
    {"metadata": DEEP},
    {
        "parts": [{"kind": "file", "file": {"bytes": "a"}, "raw": "a"}],
        "content": [{"file": {"fileWithBytes": "/w=="}}],
    },
]


async def test_a_message_of_the_wrong_form_is_an_error_and_no_broken_stream() -> None:
    async with face() as helper:
        for wire, change in product(WIRES, CHANGES):
            for what in ("send", "stream"):
                asked = said(wire)
                asked["message"] |= change
                reply = await ask(helper.http, wire, what, asked)
                if wire[0] == "HTTP+JSON":
                    error_of(reply, 400)
                else:
                    codes = (-32602, -32005, *((-32600, -32603) if wire[1] == "0.3" else ()))
                    body = json.loads(reply.text.rpartition("data: ")[2])
                    assert body["error"]["code"] in codes, body
        assert await helper.house.runs.entries() == []
