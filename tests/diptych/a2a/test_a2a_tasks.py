"""The A2A server over a scripted `RunService`: asked by the SDK's client, and by raw HTTP."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import EllipsisType
from typing import Any, cast

import httpx
import pytest
from a2a.client.card_resolver import parse_agent_card
from a2a.client.client import Client
from a2a.compat.v0_3 import types as types_03
from a2a.server.tasks.task_manager import append_artifact_to_task
from a2a.types import (
    AgentCard,
    CancelTaskRequest,
    GetTaskRequest,
    Message,
    Part,
    Role,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    TaskState,
)
from a2a.utils.errors import TaskNotCancelableError, UnsupportedOperationError
from google.protobuf.json_format import ParseDict
from starlette.applications import Starlette
from support.a2a_wires import USUAL, Wire, client_over, over_each_wire
from support.in_process_server import in_process

from diptych.a2a import extension
from diptych.a2a.routes import a2a_routes
from diptych.core import messages
from diptych.core.codec import TERMINAL, Record
from diptych.core.errors import RunNotFound
from diptych.core.events import Origin
from diptych.http.agent_profile import CARD_PATH, OLDER_CARD_PATHS, AgentProfile
from diptych.ports import Item
from diptych.ports.entries import RunEntry
from diptych.runs.request import RunRequest
from diptych.runs.service import RunService

PROFILE = AgentProfile("clerk", "Files things.", "1.2.3")
HELLO = [("offered", "hash"), ("text", "Hel"), ("text", "lo"), ("agent_response", "Hello")]
HEADERS = {"A2A-Version": "1.0"}


class ScriptedRuns:
    """Every run plays the same records; at `...` it waits for `go`."""

    def __init__(self, *script: tuple[str, Any] | EllipsisType) -> None:
        self.script = script or (*HELLO, ("completed", None))
        self.asks: list[RunRequest] = []
        self.go = asyncio.Event()
        self._changed = asyncio.Condition()
        self._log: dict[str, list[Record]] = {}
        self._sessions: dict[str, str] = {}
        self._plays: dict[str, asyncio.Task[None]] = {}

    async def start(self, ask: RunRequest) -> RunEntry:
        self.asks.append(ask)
        run_id = f"run-{len(self.asks)}"
        self._sessions[run_id] = ask.session_id or "session-new"
        self._log[run_id] = []
        await self.add(run_id, "user_message", ask.messages[-1].content, notes=ask.notes)
        self._plays[run_id] = asyncio.create_task(self._play(run_id))
        return await self.entry(run_id)

    def attend(self, run_id: str) -> None:
        """Nobody leaves these runs."""

    async def subscribe(self, run_id: str, after: int = 0) -> AsyncIterator[Sequence[Item]]:
        return self._items(run_id, after)

    async def _items(self, run_id: str, after: int) -> AsyncIterator[Sequence[Item]]:
        while True:
            if batch := await self.records(run_id, after):
                after = batch[-1].seq
                yield batch
                if batch[-1].event_type in TERMINAL:
                    return
            async with self._changed:
                while len(self._log[run_id]) <= after:
                    await self._changed.wait()

    async def cancel(self, run_id: str) -> RunEntry:
        self._plays[run_id].cancel()
        await self.add(run_id, "aborted", "cancelled by request")
        return await self.entry(run_id)

    async def entry(self, run_id: str) -> RunEntry:
        last = (await self.records(run_id))[-1].event_type
        status = last if last in TERMINAL else "queued" if last == "user_message" else "running"
        return RunEntry(run_id, self._sessions[run_id], 1.0, status)

    async def records(self, run_id: str, after: int = 0) -> list[Record]:
        if run_id not in self._log:
            raise RunNotFound(f"there is no run {run_id}")
        return self._log[run_id][after:]

    async def _play(self, run_id: str) -> None:
        for step in self.script:
            if isinstance(step, EllipsisType):
                await self.go.wait()
            else:
                await self.add(run_id, *step)

    async def add(self, run_id: str, event_type: str, content: Any, **about: Any) -> None:
        log = self._log[run_id]
        session_id = self._sessions[run_id]
        log.append(Record(run_id, session_id, len(log) + 1, event_type, 1.5, content, about))
        async with self._changed:
            self._changed.notify_all()


@over_each_wire
async def test_a_stream_tells_task_work_pieces_and_end_in_that_order(wire: Wire) -> None:
    async with client_of(wire, ScriptedRuns()) as client:
        events = await heard(client, message("hi"))
    kinds = [event.WhichOneof("payload") for event in events]
    assert kinds == ["task", "status_update", *["artifact_update"] * 3, "status_update"]
    assert events[0].task.status.state == TaskState.TASK_STATE_SUBMITTED
    assert events[1].status_update.status.state == TaskState.TASK_STATE_WORKING
    assert events[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED
    pieces = [event.artifact_update for event in events[2:-1]]
    assert [(p.artifact.parts[0].text, p.append, p.last_chunk) for p in pieces] == [
        ("Hel", False, False),
        ("lo", True, False),
        ("", True, True),
    ]


async def test_adk_gets_the_whole_answer_in_the_last_update_of_it() -> None:
    asked = message("hi")
    asked.message.parts[0].metadata["is_user_input"] = True
    for script in (
        HELLO,
        [*HELLO[:2], ("agent_response", "Hello")],  # a rest that was not streamed
        HELLO[-1:],
        [("text", "no"), ("answer_reset", None), *HELLO[1:]],
    ):
        async with client_of(USUAL, ScriptedRuns(*script, ("completed", None))) as client:
            events = await heard(client, asked)
        assert ended_with(events) == ("Hello", False, True)
        assert put_together(events) == ["Hello"]


def ended_with(events: Sequence[StreamResponse]) -> tuple[str, bool, bool]:
    """Give the last update of an artifact, which Google ADK takes for the whole."""
    last = [e.artifact_update for e in events if e.HasField("artifact_update")][-1]
    return last.artifact.parts[0].text, last.append, last.last_chunk


def put_together(events: Sequence[StreamResponse]) -> list[str]:
    """Give the answers as the SDK puts them together from a stream."""
    task = events[0].task
    for event in events[1:]:
        if event.HasField("artifact_update"):
            append_artifact_to_task(task, event.artifact_update)
    return ["".join(part.text for part in artifact.parts) for artifact in task.artifacts]


ENDS = {
    "max_steps": TaskState.TASK_STATE_FAILED,
    "failed": TaskState.TASK_STATE_FAILED,
    "aborted": TaskState.TASK_STATE_CANCELED,
}


@over_each_wire
async def test_each_end_of_a_run_is_a_state_with_its_words(wire: Wire) -> None:
    for end, state in ENDS.items():
        async with client_of(wire, ScriptedRuns(("offered", ""), (end, "a reason"))) as client:
            events = await heard(client, message("hi"))
            task = await client.get_task(GetTaskRequest(id="run-1"))
        for status in (events[-1].status_update.status, task.status):
            assert status.state == state
            assert status.message.parts[0].text == "a reason"


@over_each_wire
async def test_history_length_cuts_the_history(wire: Wire) -> None:
    runs = ScriptedRuns()
    async with client_of(wire, runs, streaming=False) as client:
        sent = await post(runs, "SendMessage", asking("hi", historyLength=0))
        whole = await client.get_task(GetTaskRequest(id="run-1"))
        none = await client.get_task(GetTaskRequest(id="run-1", history_length=0))
    assert "history" not in sent["result"]["task"]
    assert [m.parts[0].text for m in whole.history] == ["hi"]
    assert bool(none.history) == (wire[1] == "0.3"), "in which 0 means all"


@over_each_wire
async def test_cancel_ends_a_running_task_and_its_stream(wire: Wire) -> None:
    async with serving(ScriptedRuns(("text", "so"), ...)) as base, client_at(wire, base) as client:
        states = []
        async for event in client.send_message(message("hi")):
            if event.HasField("artifact_update"):
                task = await client.cancel_task(CancelTaskRequest(id="run-1"))
                states.append(task.status.state)
            if event.HasField("status_update"):
                states.append(event.status_update.status.state)
        with pytest.raises(TaskNotCancelableError):
            await client.cancel_task(CancelTaskRequest(id="run-1"))
    canceled = TaskState.TASK_STATE_CANCELED
    assert states == [TaskState.TASK_STATE_WORKING, canceled, canceled]


@pytest.mark.parametrize("activates", [False, True])
async def test_a_cancelled_task_has_its_events_for_who_activates_the_extension(
    activates: bool,
) -> None:
    activated = {"A2A-Extensions": extension.URI} if activates else {}
    runs = ScriptedRuns(("text", "one "), ...)
    async with serving(runs) as base, httpx.AsyncClient() as http:
        body = call("SendMessage", asking("hi", returnImmediately=True))
        await http.post(f"{base}/a2a", json=body, headers=HEADERS)
        body = call("CancelTask", {"id": "run-1"})
        reply = await http.post(f"{base}/a2a", json=body, headers=HEADERS | activated)
    about = reply.json()["result"].get("metadata", {}).get(extension.URI, {})
    types = [event["type"] for event in about.get("events", [])]
    assert types == (["user_message", "aborted"] if activates else [])


@over_each_wire
async def test_a_subscriber_gets_what_was_and_what_comes_without_gap_or_repetition(
    wire: Wire,
) -> None:
    runs = ScriptedRuns(
        ("text", "one "),
        ("text", "two "),
        ...,
        ("text", "three"),
        ("agent_response", "one two three"),
        ("completed", None),
    )
    async with serving(runs) as base, client_at(wire, base) as client:
        await post(runs, "SendMessage", asking("hi", returnImmediately=True))
        await asyncio.sleep(0.02)  # the script runs on to where it waits
        events = []
        async for event in client.subscribe(SubscribeToTaskRequest(id="run-1")):
            events.append(event)
            runs.go.set()
        with pytest.raises(UnsupportedOperationError):
            [event async for event in client.subscribe(SubscribeToTaskRequest(id="run-1"))]
    assert events[0].task.artifacts[0].parts[0].text == "one two "
    pieces = [e.artifact_update for e in events if e.HasField("artifact_update")]
    assert [(p.artifact.parts[0].text, p.append) for p in pieces] == [("three", True), ("", True)]
    assert events[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED


@pytest.mark.parametrize(("modes", "pieces"), [(["text/plain"], 1), ([], 3)])
async def test_crewai_gets_each_word_once(modes: list[str], pieces: int) -> None:
    """As CrewAI 1.15 asks; it puts a blank between the texts of the updates."""
    text = {"kind": "text", "text": "hi"}
    sent = {
        "configuration": {"acceptedOutputModes": modes, "blocking": True},
        "message": {"kind": "message", "messageId": "m-1", "parts": [text], "role": "user"},
    }
    runs = ScriptedRuns(*HELLO, ("completed", None))
    async with httpx.AsyncClient(transport=asgi(runs), base_url="http://clerk") as http:
        reply = await http.post("/a2a", json=call("message/stream", sent))
    events = [json.loads(line[6:])["result"] for line in reply.text.splitlines() if line[:1] == "d"]
    updates = [event["artifact"] for event in events if event["kind"] == "artifact-update"]
    texts = [part["text"] for artifact in updates for part in artifact["parts"]]
    assert len(texts) == pieces
    assert "".join(texts) == "Hello"
    if modes:
        assert " ".join(texts) == "Hello"


async def test_what_we_add_to_a_task_is_in_camel_case() -> None:
    runs, spent = ScriptedRuns(...), {"prompt_tokens": 7, "completion_tokens": 2}
    extended = {**HEADERS, "A2A-Extensions": extension.URI}
    async with httpx.AsyncClient(transport=asgi(runs), base_url="http://clerk") as http:
        sent = call("SendMessage", asking("hi", returnImmediately=True))
        await http.post("/a2a", json=sent, headers=HEADERS)
        called = {"tool": "t", "arguments": {"the_callers": 1}}
        await runs.add("run-1", "model_reply", "", usage=spent, step=1)
        await runs.add("run-1", "tool_call", called, call_id="c")
        await runs.add("run-1", "agent_response", "Hel", finish_reason="length")
        read = await http.post("/a2a", json=call("GetTask", {"id": "run-1"}), headers=extended)
    names = set(re.findall(r'"(\w+)":', read.text))
    assert {name for name in names if "_" in name} == {"the_callers"}
    assert {"promptTokens", "modelCalls", "callId", "finishReason"} <= names


MESSAGE = {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": "hi"}]}


async def test_texts_are_joined_and_the_trace_is_taken_over() -> None:
    runs, trace = ScriptedRuns(), f"00-{'a' * 32}-{'b' * 16}-01"
    parts = [{"text": "one"}, {"text": "two"}]
    await post(
        runs, "SendMessage", {"message": {**MESSAGE, "parts": parts}}, {"traceparent": trace}
    )
    (ask,) = runs.asks
    assert ask.messages == (messages.Message("user", "one\ntwo"),)
    assert ask.origin == Origin(traceparent=trace)


async def test_the_history_that_ag2_repeats_is_left_out() -> None:
    """As AG2 1.2.1 sends its second message of a context."""
    runs = ScriptedRuns()
    history = {"data": {"events": []}, "mediaType": "application/vnd.ag2.history+json"}
    sent = asking("and again")
    sent["message"]["parts"].append(history)
    async with httpx.AsyncClient(transport=asgi(runs), base_url="http://clerk") as http:
        reply = await http.post("/a2a", json=call("SendMessage", sent), headers=HEADERS)
    assert "error" not in reply.json()
    assert [message.content for message in runs.asks[0].messages] == ["and again"]


async def test_the_card_of_1_0_has_no_fields_that_are_not_of_1_0() -> None:
    async with httpx.AsyncClient(transport=asgi(ScriptedRuns()), base_url="http://pod:81") as http:
        card = (await http.get(CARD_PATH)).json()
    ParseDict(card, AgentCard())
    assert {each["protocolVersion"] for each in card["supportedInterfaces"]} == {"1.0"}


@pytest.mark.parametrize("path", [CARD_PATH, *OLDER_CARD_PATHS])
async def test_the_card_tells_where_it_was_asked_and_what_the_agent_can_do(path: str) -> None:
    async with httpx.AsyncClient(transport=asgi(ScriptedRuns()), base_url="http://pod:81") as http:
        response = await http.get(path)
        again = await http.get(path, headers={"If-None-Match": response.headers["etag"]})
        forged = await http.get(path, headers={"Host": 'a"/b c'})
    card = response.json()
    is_older = path in OLDER_CARD_PATHS
    assert card["supportedInterfaces"] == [
        {"url": f"http://pod:81{at}", "protocolBinding": binding, "protocolVersion": version}
        for version in ("1.0", "0.3")[: 1 + is_older]
        for binding, at in (("JSONRPC", "/a2a"), ("HTTP+JSON", "/a2a/rest"))
    ]
    if is_older:
        assert (card["protocolVersion"], card["url"]) == ("0.3", "http://pod:81/a2a")
        assert card["additionalInterfaces"] == [
            {"transport": "HTTP+JSON", "url": "http://pod:81/a2a/rest"}
        ]
    assert (card["name"], card["description"], card["version"]) == (
        "clerk",
        "Files things.",
        "1.2.3",
    )
    assert card["capabilities"]["streaming"] is True
    assert card["capabilities"]["extensions"][0]["uri"] == extension.URI
    assert card["skills"][0]["id"] == "clerk"
    assert again.status_code == 304
    assert "/b c" not in forged.text


async def test_the_card_of_a_closed_agent_says_to_each_version_how_to_prove_who_asks() -> None:
    profile = AgentProfile(
        "clerk", "", "1", asks_for_token=True, issuers=("https://issuer.example.com",)
    )
    async with httpx.AsyncClient(
        transport=asgi(ScriptedRuns(), profile), base_url="http://pod"
    ) as http:
        newer, card = [(await http.get(p)).json() for p in (CARD_PATH, OLDER_CARD_PATHS[0])]
    ParseDict(newer, AgentCard())
    older = types_03.AgentCard.model_validate(card)
    assert older.security == [{"bearer": []}, {"oidc1": []}]
    assert older.security_schemes
    kinds = {name: scheme.root.type for name, scheme in older.security_schemes.items()}
    assert kinds == {"bearer": "http", "oidc1": "openIdConnect"}
    for each in (newer, card):
        assert set(parse_agent_card(each).security_schemes) == {"bearer", "oidc1"}


@pytest.mark.parametrize(
    ("host", "base"),
    [
        ("Clerk.Example.com:443", "https://clerk.example.com"),
        ("clerk.team:8000", "http://clerk.team:8000"),
        ("evil.example.com", "http://clerk.team:8000"),
    ],
)
async def test_the_card_says_the_url_outside_of_the_cluster_to_who_asks_there(
    host: str, base: str
) -> None:
    urls = ("http://clerk.team:8000", "https://clerk.example.com")
    profile = AgentProfile("clerk", "", "1", *urls)
    async with httpx.AsyncClient(
        transport=asgi(ScriptedRuns(), profile), base_url="http://pod"
    ) as http:
        path = "/.well-known/agent-card.json"
        card = (await http.get(path, headers={"Host": host})).json()
    assert card["supportedInterfaces"][0]["url"] == f"{base}/a2a"


def message(text: str, context_id: str = "") -> SendMessageRequest:
    said = Message(
        message_id="m-1", context_id=context_id, role=Role.ROLE_USER, parts=[Part(text=text)]
    )
    return SendMessageRequest(message=said)


async def heard(client: Client, request: SendMessageRequest) -> list[StreamResponse]:
    return [event async for event in client.send_message(request)]


def asking(text: str, **configuration: Any) -> dict[str, Any]:
    return {"message": {**MESSAGE, "parts": [{"text": text}]}, "configuration": configuration}


def call(method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


async def post(
    runs: ScriptedRuns, method: str, params: dict[str, Any], headers: dict[str, str] | None = None
) -> dict[str, Any]:
    async with httpx.AsyncClient(transport=asgi(runs), base_url="http://pod") as http:
        response = await http.post(
            "/a2a", json=call(method, params), headers={**HEADERS, **(headers or {})}
        )
    assert response.status_code == 200
    reply: dict[str, Any] = response.json()
    return reply


def app_of(runs: ScriptedRuns, profile: AgentProfile = PROFILE) -> Starlette:
    return Starlette(routes=a2a_routes(cast("RunService", runs), profile, shutdown_grace_period=0))


def asgi(runs: ScriptedRuns, profile: AgentProfile = PROFILE) -> httpx.ASGITransport:
    return httpx.ASGITransport(app_of(runs, profile))


@asynccontextmanager
async def serving(runs: ScriptedRuns) -> AsyncIterator[str]:
    async with in_process(app_of(runs)) as server:
        yield server.url
        runs.go.set()


@asynccontextmanager
async def client_of(
    wire: Wire, runs: ScriptedRuns, *, streaming: bool = True
) -> AsyncIterator[Client]:
    """Give a client that hears a stream only when it is over."""
    async with httpx.AsyncClient(transport=asgi(runs)) as http:
        yield await client_over(wire, http, "http://pod", streaming=streaming)


@asynccontextmanager
async def client_at(wire: Wire, base: str) -> AsyncIterator[Client]:
    async with httpx.AsyncClient(timeout=5, trust_env=False) as http:
        yield await client_over(wire, http, base)
