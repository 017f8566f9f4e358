"""Agents that are lost and found again while they have a task of ours, and the time they have."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from a2a.client import ClientCallContext
from a2a.client.errors import A2AClientError
from a2a.types import SendMessageRequest, StreamResponse, Task
from google.protobuf.json_format import ParseDict
from support.stories import now, virtually

from diptych.a2a import delegation
from diptych.a2a.delegation import DelegationTask, TimeLimit
from diptych.core.errors import DelegationError
from diptych.core.prompt import outcome_unknown
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
