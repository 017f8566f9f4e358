"""Which stages an MCP request goes through, and which it never goes back to."""

import httpx2
import pytest

from diptych.mcp.transport import RequestOutcome, Stage, record_response


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
