"""Which stages an MCP request goes through, and which it never goes back to."""

import httpx2
import pytest

from diptych.mcp.transport import RequestOutcome, Stage, current_outcome, record_response


def after(*stages: Stage) -> Stage:
    outcome = RequestOutcome()
    for stage in stages:
        outcome.record(stage, stage.name)
    return outcome.stage


@pytest.mark.parametrize("stage", list(Stage))
def test_the_first_request_may_end_in_any_way(stage: Stage) -> None:
    assert after(stage) is stage
    assert after(Stage.NOT_SENT, stage) is stage


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


def test_the_reason_is_that_of_the_stage() -> None:
    outcome = RequestOutcome()
    outcome.record(Stage.LOST, "the connection broke off")
    outcome.record(Stage.ANSWERED)
    assert outcome.reason == "the connection broke off"
    outcome.record(Stage.STREAMING)
    assert outcome.reason is None


def test_outcomes_are_recorded_in_the_innermost_block() -> None:
    outer, inner = RequestOutcome(), RequestOutcome()
    with outer.recording():
        with inner.recording():
            assert current_outcome() is inner
        assert current_outcome() is outer


@pytest.mark.parametrize(
    ("said", "stage"),
    [
        ({"id": 7, "method": "tools/call"}, Stage.UNUSABLE),
        ({"method": "notifications/initialized"}, Stage.ANSWERED),
        ({"id": 7, "error": {"code": -32601, "message": "no"}}, Stage.ANSWERED),
    ],
    ids=["a request", "a notification", "our answer to the server"],
)
def test_only_a_request_needs_an_answer(said: dict[str, object], stage: Stage) -> None:
    outcome = RequestOutcome()
    request = httpx2.Request("POST", "http://s/mcp", json={"jsonrpc": "2.0", **said})
    record_response(request, httpx2.Response(202), b"", outcome)
    assert outcome.stage is stage
