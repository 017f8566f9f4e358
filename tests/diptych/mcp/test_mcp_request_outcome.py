"""Which stages an MCP request goes through, and which it never goes back to."""

import asyncio
from collections.abc import AsyncIterator

import httpx2
import pytest

from diptych.mcp.transport import RecordingTransport, RequestOutcome, Stage, record_response
from diptych.net.received import ANSWERS


def after(*stages: Stage) -> Stage:
    outcome = RequestOutcome()
    for stage in stages:
        outcome.record(stage, stage.name)
    return outcome.stage


@pytest.mark.parametrize(
    "reached", [Stage.REJECTED, Stage.STREAMING, Stage.ANSWERED, Stage.UNUSABLE, Stage.LOST]
)
def test_a_call_that_reached_its_server_is_never_unsent_again(reached: Stage) -> None:
    assert after(reached, Stage.NOT_SENT) is Stage.LOST
    assert after(reached, Stage.REJECTED) is Stage.SERVER_ERROR


def test_after_a_loss_only_a_stream_can_still_bring_the_answer() -> None:
    assert after(Stage.LOST, Stage.ANSWERED) is Stage.LOST
    assert after(Stage.LOST, Stage.UNUSABLE) is Stage.SERVER_ERROR
    assert after(Stage.LOST, Stage.STREAMING) is Stage.STREAMING
    assert after(Stage.STREAMING, Stage.REFUSED) is Stage.SERVER_ERROR
    assert after(Stage.LOST, Stage.REFUSED) is Stage.SERVER_ERROR


@pytest.mark.parametrize(
    ("said", "stage"),
    [
        ({"id": 7, "method": "tools/call"}, Stage.UNUSABLE),
        ({"method": "notifications/initialized"}, Stage.ANSWERED),
    ],
    ids=["a request", "a notification"],
)
def test_only_a_request_needs_an_answer(said: dict[str, object], stage: Stage) -> None:
    outcome = RequestOutcome()
    request = httpx2.Request("POST", "http://s/mcp", json={"jsonrpc": "2.0", **said})
    record_response(request, httpx2.Response(202), b"", outcome)
    assert outcome.stage is stage


async def test_an_answer_that_outlives_its_call_leaves_nothing_counted() -> None:
    begun, call_has_ended = asyncio.Event(), asyncio.Event()

    class Slow(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            begun.set()
            await call_has_ended.wait()
            yield b'{"jsonrpc": "2.0", "id": 1, "result": {}}'

    async def answer(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, stream=Slow())

    transport = RecordingTransport(httpx2.MockTransport(answer), "https://tools.test/mcp", {})
    call = httpx2.Request("POST", "https://tools.test/mcp", json={"id": 1, "method": "tools/call"})
    before = ANSWERS.used
    with RequestOutcome().recording():
        reading = asyncio.create_task(transport.handle_async_request(call))
        await begun.wait()
    call_has_ended.set()
    assert (await reading).status_code == 200
    assert before == ANSWERS.used
