"""Delegations to a scripted peer that speaks raw JSON-RPC, over real connections."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from types import EllipsisType
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from support.a2a_agents import running
from support.in_process_server import InProcessServer, in_process

from diptych.a2a import delegation, extension
from diptych.a2a.agents import A2aAgents
from diptych.core.catalog import Unavailable
from diptych.core.errors import DelegationError
from diptych.core.messages import ChildRun, Message, Usage
from diptych.manifest.settings import PeerConfig
from diptych.ports import ChildEvent, DelegationRequest

OWN_URL = "http://me:8000"
OWN_CARD = "http://me:8000/.well-known/agent-card.json"
TASK: Mapping[str, Any] = {"id": "t-1", "contextId": "c-1"}

Step = dict[str, Any] | EllipsisType | type[ConnectionError]


def status(state: str, words: str = "") -> dict[str, Any]:
    said = {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": words}]}
    return {"state": f"TASK_STATE_{state}", **({"message": said} if words else {})}


def task(state: str, *texts: str, words: str = "") -> dict[str, Any]:
    artifact = {"artifactId": "answer", "parts": [{"text": text} for text in texts]}
    return {**TASK, "status": status(state, words), "artifacts": [artifact] if texts else []}


def piece(text: str, *, append: bool = True) -> dict[str, Any]:
    artifact = {"artifactId": "answer", "parts": [{"text": text}]}
    return {"artifactUpdate": {"taskId": "t-1", "artifact": artifact, "append": append}}


def ended(state: str, words: str = "") -> dict[str, Any]:
    return {"statusUpdate": {"taskId": "t-1", "status": status(state, words)}}


def cut_piece(text: str, reason: str) -> dict[str, Any]:
    update = piece(text)
    about = {"finish_reason": reason}
    update["artifactUpdate"]["artifact"]["metadata"] = {extension.URI: about}
    return update


def texts(told: list[Any]) -> list[str]:
    return [seen for seen in told if isinstance(seen, str)]


STARTED: Step = {"task": task("SUBMITTED")}
DONE: Step = ended("COMPLETED")


@dataclass
class ScriptedPeer:
    """Streams `script`: waits for `go` at `...`, breaks off at `ConnectionError`.

    `replies` answers the other methods: with a result, an error, or a whole response.
    """

    script: list[Step] = field(default_factory=lambda: [STARTED, piece("It is "), piece("4"), DONE])
    replies: dict[str, Any] = field(default_factory=dict)
    streaming: bool = True
    speaks_extension: bool = True
    elsewhere: str = ""  # where the card says that the agent is, if not where the card is
    go: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    seen: list[tuple[str, dict[str, Any], Mapping[str, str]]] = field(default_factory=list)
    callers: list[Any] = field(default_factory=list)
    server: InProcessServer | None = None

    @property
    def methods(self) -> list[str]:
        return [method for method, _, _ in self.seen]

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/.well-known/agent-card.json", self._card),
                Route("/rpc", self._rpc, methods=["POST"]),
            ]
        )

    async def _card(self, request: Request) -> Response:
        interface = {
            "url": f"{self.elsewhere or str(request.base_url).rstrip('/')}/rpc",
            "protocolBinding": "JSONRPC",
            "protocolVersion": "1.0",
        }
        card = {
            "name": "whatever",
            "description": "Counts.",
            "version": "1",
            "supportedInterfaces": [interface],
            "capabilities": {
                "streaming": self.streaming,
                "extensions": [{"uri": extension.URI}] if self.speaks_extension else [],
            },
            "skills": [{"id": "s", "name": "adding", "description": "adds", "tags": ["t"]}],
        }
        self.seen.append(("card", {}, request.headers))
        return JSONResponse(card)

    async def _rpc(self, request: Request) -> Response:
        body = await request.json()
        method = body["method"]
        self.seen.append((method, body["params"], request.headers))
        self.callers.append(request.client)
        if method == "CancelTask":
            self.cancelled.set()
        if method in self.replies:
            reply = self.replies[method]
            if isinstance(reply, list):
                return self._stream(reply, body["id"])
            return (
                reply
                if isinstance(reply, Response)
                else JSONResponse({"jsonrpc": "2.0", "id": body["id"], **reply})
            )
        if method == "SendStreamingMessage":
            return self._stream(self.script, body["id"])
        error = {"code": -32004, "message": f"no {method} here"}
        return JSONResponse({"jsonrpc": "2.0", "id": body["id"], "error": error})

    def _stream(self, script: list[Step], request_id: str) -> Response:
        async def frames() -> AsyncIterator[str]:
            for step in script:
                if step is ...:
                    await self.go.wait()
                elif isinstance(step, dict):
                    reply = {"jsonrpc": "2.0", "id": request_id, "result": step}
                    yield f"data: {json.dumps(reply)}\n\n"
                else:
                    raise ConnectionError

        return StreamingResponse(frames(), media_type="text/event-stream")


async def test_streamed_text_is_told_as_it_comes_and_given_whole() -> None:
    peer, told = ScriptedPeer(), list[Any]()
    async with delegating_to(peer) as agents:
        answer = await agents.delegate(request_to(), told.append)
    assert answer.text == "It is 4"
    assert texts(told) == ["It is ", "4"]


def reported(update: dict[str, Any], report: Any) -> dict[str, Any]:
    """Give an event with what the agent says of the task under our extension."""
    (kind,) = update
    return {kind: {**update[kind], "metadata": {extension.URI: report}}}


USED = {"prompt_tokens": 7, "completion_tokens": 2}


async def test_the_task_of_a_delegation_is_told_and_given_with_what_it_used() -> None:
    done = reported(ended("COMPLETED"), {"usage": USED})
    peer, told = ScriptedPeer([STARTED, piece("4"), done]), list[Any]()
    async with serving(peer) as base, agents_of(base) as agents:
        request = replace(request_to(), run_id="r-1", call_id="call_1_1")
        answer = await agents.delegate(request, told.append)
    assert answer.child == ChildRun(f"{base}/rpc", "t-1", "completed", usage=Usage(7, 2))
    assert ChildRun(f"{base}/rpc", "t-1", "submitted") in told
    _, sent, _ = next(seen for seen in peer.seen if seen[0] == "SendStreamingMessage")
    about = sent["message"]["metadata"][extension.URI]
    assert about["parent"] == {"agent": "asker", "runId": "r-1", "callId": "call_1_1"}


async def test_a_child_that_failed_leaves_what_it_had_said() -> None:
    failed = reported(ended("FAILED", "broke"), {"usage": USED, "code": "model_cut"})
    async with (
        serving(ScriptedPeer([STARTED, piece("Half an"), failed])) as base,
        agents_of(base) as agents,
    ):
        error = await failure(agents)
    assert error.message.endswith("broke\nUntil then it had said: Half an")
    assert error.child == ChildRun(
        f"{base}/rpc", "t-1", "failed", "model_cut", Usage(7, 2), "Half an"
    )


async def test_a_report_that_is_none_says_nothing() -> None:
    for report in (
        {"usage": {**USED, "prompt_tokens": -1}},
        {"used": {"cost": "-1"}},
        {"code": "a\x1b[31m"},
    ):
        failed = reported(ended("FAILED", "no"), report)
        async with serving(ScriptedPeer([STARTED, failed])) as base, agents_of(base) as agents:
            error = await failure(agents)
        assert error.child == ChildRun(f"{base}/rpc", "t-1", "failed")


EVENT: dict[str, Any] = {
    "type": "tool_call",
    "seq": 3,
    "timestamp": 1.5,
    "path": ["call_1_1"],
    "content": "x",
    "metadata": {},
}


def happens(event: Any) -> dict[str, Any]:
    return reported(ended("WORKING"), {"event": event})


async def test_what_happens_in_a_task_is_told_once() -> None:
    events = [happens(EVENT), happens(EVENT), happens({**EVENT, "seq": 4})]
    told = list[Any]()
    async with delegating_to(ScriptedPeer([STARTED, *events, DONE])) as agents:
        await agents.delegate(request_to(), told.append)
    found = [seen for seen in told if isinstance(seen, ChildEvent)]
    assert [event.seq for event in found] == [3, 4]
    assert found[0] == ChildEvent("tool_call", ("call_1_1",), 3, 1.5, "x")


@pytest.mark.parametrize("speaks", [False, True])
async def test_events_come_only_from_agents_that_speak_the_extension(speaks: bool) -> None:
    peer = ScriptedPeer([STARTED, happens(EVENT), DONE], speaks_extension=speaks)
    told, foreign = list[Any](), list[Any]()
    async with delegating_to(peer) as agents:
        await agents.delegate(request_to(), told.append)
    async with delegating_to(peer, share_context=False) as agents:
        await agents.delegate(request_to(), foreign.append)
    assert any(isinstance(seen, ChildEvent) for seen in told) == speaks
    assert not any(isinstance(seen, ChildEvent) for seen in foreign)


async def test_an_agent_that_does_not_stream_is_asked_again_until_it_is_done() -> None:
    peer = ScriptedPeer(streaming=False)
    peer.replies["SendMessage"] = {"result": {"task": task("WORKING")}}
    peer.replies["GetTask"] = {"result": task("COMPLETED", "7")}
    async with delegating_to(peer) as agents:
        answer = await agents.delegate(request_to(), print)
    assert answer.text == "7"
    assert peer.methods == ["card", "SendMessage", "GetTask"]
    assert peer.seen[1][1]["configuration"] == {"returnImmediately": True}


async def test_an_answer_that_says_it_is_not_whole_is_told_so() -> None:
    peer = ScriptedPeer([STARTED, piece("Half "), cut_piece("an ans", "length"), DONE])
    async with delegating_to(peer) as agents:
        answer = await agents.delegate(request_to(), print)
    assert (answer.text, answer.finish_reason) == ("Half an ans", "length")


async def test_every_other_end_is_a_failure_in_words() -> None:
    for state, words, is_called_off in (
        ("FAILED", "failed", False),
        ("CANCELED", "canceled the task", False),
        ("INPUT_REQUIRED", "asked for input", True),
    ):
        peer = ScriptedPeer([STARTED, ended(state, "Which one?")])
        async with delegating_to(peer) as agents:
            error = await failure(agents, request_to())
        assert (error.kind, error.message) == ("failed", f"agent adder {words}: Which one?")
        assert peer.cancelled.is_set() == is_called_off


async def test_an_agent_without_shared_context_gets_the_task_alone() -> None:
    peer = ScriptedPeer()
    async with delegating_to(peer, share_context=False) as agents:
        await agents.delegate(request_to(), print)
    _, params, headers = peer.seen[-1]
    sent = params["message"]
    assert sent.pop("messageId")
    assert sent == {"contextId": "c-1", "role": "ROLE_USER", "parts": [{"text": "add 2 and 2"}]}
    assert "a2a-extensions" not in headers
    assert "conversation" not in json.dumps(params)


async def test_an_agent_with_shared_context_gets_context_path_deadline_and_trace() -> None:
    peer, trace = ScriptedPeer(), f"00-{'a' * 32}-{'b' * 16}-01"
    uri = extension.URI
    async with delegating_to(peer) as agents:
        await agents.delegate(request_to(seconds_left=30.0, traceparent=trace), print)
    _, params, headers = peer.seen[-1]
    sent = params["message"]
    assert sent["metadata"][uri] == {
        "path": ["http://first", OWN_CARD],
        "deadline": 30.0,
        "lease": 60.0,
    }
    assert sent["extensions"] == [uri]
    assert sent["parts"][0] == {"text": "add 2 and 2"}
    assert uri in sent["parts"][1]["metadata"]
    assert sent["parts"][1]["data"] == {
        "messages": [{"role": "user", "content": "our conversation"}]
    }
    assert (headers["a2a-extensions"], headers["traceparent"]) == (uri, trace)


async def test_each_peer_gets_its_own_token_as_it_is_now_and_no_other_one_does() -> None:
    peer, other, current = ScriptedPeer(), ScriptedPeer(), ["first\n"]
    async with (
        serving(peer) as base,
        serving(other) as other_base,
        agents_of(
            PeerConfig("adder", base, token=lambda: current[0]),
            PeerConfig("other", other_base, token=lambda: None),  # a file that is not there yet
        ) as agents,
    ):
        await agents.delegate(request_to(), print)
        current[0] = "renewed"
        await agents.delegate(request_to(), print)
        await agents.delegate(request_to(agent="other"), print)
    sent = [headers.get("authorization") for _, _, headers in peer.seen]
    assert sent == ["Bearer first", "Bearer first", "Bearer renewed"]
    assert [headers.get("authorization") for _, _, headers in other.seen] == [None, None]


async def test_an_agent_on_the_path_is_not_asked_again() -> None:
    peer = ScriptedPeer()
    async with serving(peer) as base, agents_of(base) as agents:
        path = (f"{base}/rpc".replace("http://127", "HTTP://127"), "http://other")
        error = await failure(agents, request_to(path=path))
    assert error.kind == "refused"
    assert peer.methods == ["card"]


async def test_a_request_goes_through_five_agents_and_no_deeper() -> None:
    peer = ScriptedPeer()
    async with delegating_to(peer) as agents:
        await agents.delegate(request_to(path=tuple(f"http://{n}" for n in range(4))), print)
        error = await failure(agents, request_to(path=(OWN_CARD,) * 5))  # agents that share a name
    assert error.kind == "refused"
    assert peer.methods == ["card", "SendStreamingMessage"]


async def test_a_decision_that_comes_with_the_cancelled_task_is_told() -> None:
    """The stream was cut before it came; that it was taken is a fact all the same."""
    decided = {**EVENT, "type": "approval_decided", "seq": 5, "path": [], "content": "approve"}
    events = [EVENT, {**EVENT, "type": "tool_error", "seq": 6}, decided, 7]
    about = {"metadata": {extension.URI: {"events": events}}}
    peer, told = ScriptedPeer([STARTED, happens(EVENT), ...]), list[Any]()
    peer.replies["CancelTask"] = {"result": task("CANCELED") | about}
    async with delegating_to(peer) as agents:
        waiting = asyncio.create_task(agents.delegate(request_to(), told.append))
        while not any(isinstance(seen, ChildEvent) for seen in told):  # noqa: ASYNC110 - a list
            await asyncio.sleep(0.01)
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
        peer.go.set()
    found = [seen.type for seen in told if isinstance(seen, ChildEvent)]
    assert found == ["tool_call", "approval_decided"]


@pytest.mark.parametrize(
    ("script", "reply", "note"),
    [
        (
            [STARTED, ...],
            {"error": {"code": -32004, "message": "no"}},
            "did not confirm the cancellation",
        ),
        ([...], {"result": task("CANCELED")}, "named no task that could be stopped"),
    ],
    ids=[
        "it refuses to stop (agno 3.1)",
        "it names no task before its end (crewai 1.15)",
    ],
)
async def test_a_delegation_without_an_answer_says_whether_the_agent_was_stopped(
    script: list[Step], reply: dict[str, Any], note: str
) -> None:
    peer = ScriptedPeer(script, replies={"CancelTask": reply})
    async with delegating_to(peer) as agents:
        error = await failure(agents, request_to(seconds_left=0.2))
    assert "effect: there was no answer within 0.2 s; " in error.message
    assert note in error.message


@pytest.mark.parametrize("after", [..., {"task": 7}], ids=["nothing", "what is not valid"])
async def test_an_answer_is_not_lost_by_what_its_agent_sends_after_it(after: Step) -> None:
    peer = ScriptedPeer([STARTED, piece("4"), DONE, after])
    async with delegating_to(peer) as agents:
        answer = await agents.delegate(request_to(seconds_left=0.3), lambda _: None)
        peer.go.set()
    assert answer.text == "4"
    assert "CancelTask" not in peer.methods


async def test_a_delegation_ends_with_its_time_and_is_cancelled_at_its_agent() -> None:
    peer = ScriptedPeer([STARTED, ...])
    async with delegating_to(peer) as agents:
        error = await failure(agents, request_to(seconds_left=0.5))
        assert error.kind == "unknown"
        assert peer.cancelled.is_set()
        assert (await failure(agents, request_to(seconds_left=0.0))).kind == "timeout"
        peer.go.set()
    assert peer.methods.count("SendStreamingMessage") == 1


async def test_a_stream_that_breaks_off_is_taken_up_where_it_was() -> None:
    peer, told = ScriptedPeer([STARTED, piece("It "), ConnectionError]), list[Any]()
    peer.replies["SubscribeToTask"] = [{"task": task("WORKING", "It is")}, piece(" 4"), DONE]
    async with delegating_to(peer) as agents:
        answer = await agents.delegate(request_to(), told.append)
    assert answer.text == "It is 4"
    assert texts(told) == ["It ", "is", " 4"]


async def test_a_task_of_an_agent_that_died_has_an_unknown_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delegation, "RECONNECT_SECONDS", 0.2)
    peer, told = ScriptedPeer([STARTED, piece("It "), ...]), asyncio.Event()
    async with serving(peer) as base, agents_of(base) as agents:
        waiting = asyncio.create_task(agents.delegate(request_to(), lambda _: told.set()))
        await told.wait()
        assert peer.server
        await peer.server.die()
        began = time.monotonic()
        with pytest.raises(DelegationError) as caught:
            await waiting
        assert caught.value.kind == "unknown"
        assert time.monotonic() - began < 2
        assert agents.snapshot()[1][0].name == "adder"


TAKEN_OVER = {"is_taken_over": True, "run_id": "r-1", "call_id": "call_1_1"}


async def test_a_task_that_another_process_sent_is_found_by_its_context_and_gone_on_with() -> None:
    peer, told = ScriptedPeer(), list[Any]()
    peer.replies["ListTasks"] = {"result": {"tasks": [task("WORKING")]}}
    peer.replies["GetTask"] = {"result": task("WORKING", "It is")}
    peer.replies["SubscribeToTask"] = [{"task": task("WORKING", "It is")}, piece(" 4"), DONE]
    async with delegating_to(peer) as agents:
        answer = await agents.delegate(replace(request_to(), **TAKEN_OVER), told.append)
    assert answer.text == "It is 4"
    assert "SendStreamingMessage" not in peer.methods
    (listed,) = [params for method, params, _ in peer.seen if method == "ListTasks"]
    assert listed["contextId"] == "c-1"


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param({"result": {"tasks": []}}, id="it has none"),
        pytest.param({"error": {"code": -32601, "message": "no"}}, id="it keeps no list"),
    ],
)
async def test_a_task_that_nobody_knows_is_unknown_and_not_sent_again(reply: Any) -> None:
    peer = ScriptedPeer()
    peer.replies["ListTasks"] = reply
    async with delegating_to(peer) as agents:
        error = await failure(agents, replace(request_to(), **TAKEN_OVER))
    assert error.kind == "unknown"
    assert "SendStreamingMessage" not in peer.methods


@pytest.mark.parametrize("leaves", [False, True])
async def test_a_task_is_cancelled_with_its_waiting_unless_another_goes_on(leaves: bool) -> None:
    peer, told = ScriptedPeer([STARTED, ...]), asyncio.Event()
    async with delegating_to(peer) as agents:
        request = replace(request_to(), leaves_task=lambda: leaves)
        waiting = asyncio.create_task(agents.delegate(request, lambda _: told.set()))
        await told.wait()
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
        assert peer.cancelled.is_set() != leaves


@pytest.mark.parametrize("leaves", [False, True])
async def test_a_task_that_another_process_sent_is_looked_for_to_be_cancelled(
    leaves: bool,
) -> None:
    peer, told = ScriptedPeer(), list[Any]()
    peer.replies["ListTasks"] = {"result": {"tasks": [task("WORKING")]}}
    peer.replies["GetTask"] = {"result": task("WORKING")}
    async with delegating_to(peer) as agents:
        request = replace(request_to(), **TAKEN_OVER, leaves_task=lambda: leaves)
        waiting = asyncio.create_task(agents.delegate(request, told.append))
        await asyncio.sleep(0)  # it has begun, and its agent has not been asked
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
    assert peer.cancelled.is_set() != leaves
    assert any(isinstance(seen, ChildRun) for seen in told) != leaves


async def test_a_peer_that_is_down_at_the_start_is_offered_once_it_is_up() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    base = f"http://127.0.0.1:{listener.getsockname()[1]}"
    listener.close()
    async with agents_of(base) as agents:
        assert agents.snapshot() == ((), (Unavailable("agent", "adder", "it cannot be reached"),))
        assert (await failure(agents, request_to())).kind == "unavailable"
        async with serving(ScriptedPeer(), base), asyncio.timeout(3):
            while not agents.snapshot()[0]:  # noqa: ASYNC110 - what is offered is a snapshot
                await asyncio.sleep(0.02)
            assert (await agents.delegate(request_to(), print)).text == "It is 4"


def request_to(
    agent: str = "adder",
    *,
    path: tuple[str, ...] = ("http://first",),
    seconds_left: float | None = 5.0,
    traceparent: str | None = None,
) -> DelegationRequest:
    context = (Message("system", "a secret"), Message("user", "our conversation"))
    return DelegationRequest(agent, "add 2 and 2", "c-1", context, path, seconds_left, traceparent)


async def failure(agents: A2aAgents, sent: DelegationRequest | None = None) -> DelegationError:
    with pytest.raises(DelegationError) as caught:
        await agents.delegate(sent or request_to(), lambda _: None)
    return caught.value


@asynccontextmanager
async def delegating_to(
    peer: ScriptedPeer, *, share_context: bool = True
) -> AsyncIterator[A2aAgents]:
    async with serving(peer) as base, agents_of(base, share_context=share_context) as agents:
        yield agents


@asynccontextmanager
async def agents_of(
    *peers: PeerConfig | str, own_url: Any = OWN_URL, share_context: bool = True
) -> AsyncIterator[A2aAgents]:
    """Connect with peers; a base URL stands for one that is called `adder`."""
    addresses = [
        PeerConfig("adder", peer, share_context=share_context) if isinstance(peer, str) else peer
        for peer in peers
    ]
    agents = A2aAgents(addresses, own_url, own_name="asker")
    async with running(agents):
        yield agents


@asynccontextmanager
async def serving(peer: ScriptedPeer, base: str = "http://127.0.0.1:0") -> AsyncIterator[str]:
    async with in_process(peer.app(), int(base.rpartition(":")[2])) as server:
        peer.server = server
        yield server.url
        peer.go.set()
