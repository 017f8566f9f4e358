"""Agents that are lost and found again while they have a task of ours, and the time they have."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from a2a.client import ClientCallContext
from a2a.client.card_resolver import parse_agent_card
from a2a.client.errors import A2AClientError
from a2a.types import SendMessageRequest, StreamResponse, Task
from google.protobuf.json_format import ParseDict
from support.stories import now, virtually

from diptych.a2a import delegation
from diptych.a2a.delegation import DelegationTask, TimeLimit
from diptych.a2a.transport import client_factory
from diptych.core.errors import DelegationError
from diptych.core.prompt import OUTCOME_UNKNOWN, outcome_unknown
from diptych.ports import DelegationRequest

REQUEST = DelegationRequest("adder", "add 2 and 2", "c-1")
AWAY, CUT = httpx.ConnectError("it restarts"), httpx.ReadError("it was killed")

Step = str | httpx.TransportError


class Restarting:
    """A client of an agent whose streams are `streams`, one after the other: states and losses."""

    def __init__(self, *streams: list[Step]) -> None:
        self.streams = list(streams)
        self.state = "WORKING"

    async def send_message(self, request: Any, *, context: Any) -> AsyncIterator[StreamResponse]:
        for step in self.streams.pop(0):
            if isinstance(step, httpx.TransportError):
                raise A2AClientError("lost") from step
            self.state = step
            yield StreamResponse(task=await self.get_task(request, context=context))

    subscribe = send_message

    async def get_task(self, request: Any, *, context: Any) -> Task:
        status = {"state": f"TASK_STATE_{self.state}"}
        return ParseDict({"id": "t-1", "contextId": "c-1", "status": status}, Task())


def task_at(client: Any) -> DelegationTask:
    return DelegationTask(REQUEST, "http://adder", client, ClientCallContext(), lambda _: None)


@pytest.fixture
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give an agent up at its second failure in a row."""
    monkeypatch.setattr(delegation, "RECONNECT_SECONDS", 0.0)


@pytest.mark.usefixtures("no_patience")
async def test_an_agent_that_restarts_again_has_as_long_as_the_first_time() -> None:
    agent = Restarting(["WORKING", CUT], [AWAY], ["WORKING", CUT], [AWAY], ["COMPLETED"])
    output = await task_at(agent).run(SendMessageRequest())
    assert output.child
    assert output.child.state == "completed"


@pytest.mark.usefixtures("no_patience")
@pytest.mark.parametrize(
    ("loss", "words"),
    [
        pytest.param(AWAY, "agent adder cannot be reached", id="away"),
        pytest.param(CUT, "agent adder was sent the task, and the connection was lost", id="cut"),
    ],
)
async def test_an_agent_whose_streams_tell_nothing_is_given_up(
    loss: httpx.TransportError, words: str
) -> None:
    agent = Restarting(["WORKING", CUT], [loss], [loss], ["COMPLETED"])
    with pytest.raises(DelegationError) as caught:
        await task_at(agent).run(SendMessageRequest())
    assert caught.value.kind == "unknown"
    assert caught.value.message == outcome_unknown(words)


CARD: dict[str, Any] = {
    "name": "adder",
    "description": "Adds.",
    "version": "1",
    "capabilities": {"streaming": True},
    "skills": [],
}
OLDER = {**CARD, "protocolVersion": "0.3.0", "url": "http://adder", "preferredTransport": "JSONRPC"}
NEWER = {
    **CARD,
    "supportedInterfaces": [
        {"url": "http://adder", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
    ],
}


@pytest.mark.parametrize(
    ("card", "code"),
    [
        pytest.param(OLDER, -32601, id="A2A 0.3"),
        pytest.param(NEWER, -32601, id="no such method"),
        pytest.param(NEWER, -32004, id="not supported"),
    ],
)
async def test_a_task_at_an_agent_that_lists_none_cannot_be_found_again(
    card: dict[str, Any], code: int
) -> None:
    reply = {"jsonrpc": "2.0", "id": 1, "error": {"code": code, "message": "no"}}
    answers = httpx.MockTransport(lambda _: httpx.Response(200, json=reply))
    async with httpx.AsyncClient(transport=answers) as http:
        task = task_at(client_factory(http).create(parse_agent_card(card)))
        with pytest.raises(DelegationError) as caught:
            await task.take_up("c-1", is_streamed=True)
    assert (caught.value.kind, caught.value.message) == ("unknown", OUTCOME_UNKNOWN)


@virtually
async def test_time_that_stands_still_does_not_count():
    limit, begun = TimeLimit(), now()

    async def wait_for_a_decision():
        async with limit.within(10):
            await asyncio.sleep(4)
            limit.set_paused(True)
            await asyncio.sleep(100)
            limit.set_paused(False)
            await asyncio.sleep(100)

    with pytest.raises(TimeoutError):
        await wait_for_a_decision()
    assert now() - begun == pytest.approx(110)


@pytest.mark.parametrize("was_paused", [False, True])
@virtually
async def test_a_decision_that_is_heard_of_after_the_end_changes_nothing(was_paused):
    limit = TimeLimit()

    async def be_cancelled():
        async with limit.within(10):
            limit.set_paused(was_paused)
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await be_cancelled()
    limit.set_paused(not was_paused)
