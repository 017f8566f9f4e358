"""A model server that fails in every way, through the whole stack (loop.md §9 "Errors").

Before anything was told a failure is an HTTP error; after it, an error frame and no `[DONE]`.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from support.model_server import (
    Exchange,
    ModelServer,
    breaks_off,
    model_server,
    silence,
    spoken,
    stalls,
    status,
)
from support.stack import QUICK, Stage, box, call, frames, stage, text_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

ECHO = call("echo", text="hello")
CANARY = "canary-of-the-endpoint"


async def echo(text: str) -> str:
    """Say a text again."""
    return text


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def model() -> AsyncIterator[ModelServer]:
    async with model_server() as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def helper(model: ModelServer) -> AsyncIterator[Stage]:
    async with stage(model=model, timeouts=QUICK, tools=(box(echo),)) as served:
        yield served


def answers(body: bytes, media_type: str = "application/json") -> Any:
    """A step that answers 200 with whatever it is."""

    async def answer(exchange: Exchange) -> web.Response:
        return web.Response(body=body, content_type=media_type)

    return answer


async def error_in_a_stream(exchange: Exchange) -> web.StreamResponse:
    stream = await exchange.open("Half ")
    await asyncio.sleep(0.05)  # else both are one read, and nothing was told
    await stream.write(b'data: {"error": {"message": "%b", "code": 500}}\n\n' % CANARY.encode())
    return stream


FAULTS = [
    pytest.param(status(401, CANARY), 502, "model_unauthorized", id="401"),
    pytest.param(status(429, CANARY, Retry_After="0"), 502, "model_overloaded", id="429"),
    pytest.param(status(500, CANARY), 502, "model_failed", id="500"),
    pytest.param(answers(CANARY.encode()), 502, "model_garbage", id="no JSON"),
    pytest.param(answers(b""), 502, "model_garbage", id="an empty body"),
    pytest.param(silence, 504, "model_timeout", id="nothing"),
]
TOO_LONG = b'{"error": {"message": "This model\'s maximum context length is 8 tokens"}}'
ONE_OF_EACH = [FAULTS[n] for n in (1, 3, 5)]


@pytest.mark.parametrize(("fault", "http_status", "code"), FAULTS)
async def test_a_model_that_fails_at_once_is_an_http_error_streamed_or_not(
    helper: Stage, model: ModelServer, fault: Any, http_status: int, code: str
) -> None:
    for stream in (False, True):
        model.play(fault)
        response = await helper.chat(stream=stream)
        assert response.status_code == http_status, response.text
        error = response.json()["error"]
        assert (error["type"], error["code"]) == ("server_error", code)
        assert "x-should-retry" not in response.headers
        run_id = response.headers["X-Run-ID"]
        assert (await helper.run(run_id))["status"] == "failed"
        facts = await helper.memory(session_id=response.headers["X-Session-ID"])
        assert [event["event_type"] for event in facts] == ["user_message", "failed"]
        assert facts[-1]["metadata"]["code"] == code
        assert CANARY not in response.text + json.dumps(facts)


async def test_a_conversation_that_is_too_long_is_the_callers_to_mend(model: ModelServer) -> None:
    async with stage(model=model) as asked:  # an agent of its own, as it learns its window
        for stream in (False, True):
            model.play(status(400, TOO_LONG.decode()))
            response = await asked.chat(stream=stream)
            assert response.status_code == 400, response.text
            error = response.json()["error"]
            assert (error["type"], error["code"]) == ("invalid_request_error", "context_too_long")
            assert (await asked.run(response.headers["X-Run-ID"]))["status"] == "failed"


async def test_a_retry_is_told_and_each_attempt_is_counted(model: ModelServer) -> None:
    async with stage(model=model) as asked:
        model.play(status(500), "{}", breaks_off("Half"))
        response = await asked.chat(stream=True)
        assert response.status_code == 200
        kinds = [frame.json.get("kind") for frame in frames(response.text)]
        assert kinds.count("retry") == 1
        counts = (await asked.http.get("/metrics")).text
    origin = model.url.removesuffix("/v1")
    about = f'endpoint="{origin}",model="m"'
    for line in (
        f'diptych_model_calls_total{{{about},outcome="ok"}} 1.0',
        f'diptych_model_calls_total{{{about},outcome="error"}} 2.0',
        f'diptych_model_waits_total{{endpoint="{origin}",kind="retry",model="m"}} 1.0',
        'diptych_model_errors_total{reason="model_failed"} 1.0',
        'diptych_model_errors_total{reason="model_cut"} 1.0',
    ):
        assert line in counts.splitlines()


@pytest.mark.parametrize(
    ("fault", "http_status", "code"),
    [
        *ONE_OF_EACH,
        pytest.param(breaks_off(), 502, "model_cut", id="a stream that ends at once"),
        pytest.param(stalls(), 504, "model_timeout", id="a stream that says nothing"),
    ],
)
async def test_a_model_that_fails_before_its_first_word_of_the_answer_is_an_http_error(
    helper: Stage, model: ModelServer, fault: Any, http_status: int, code: str
) -> None:
    model.play("{}", fault)
    response = await helper.chat(stream=True)
    assert response.status_code == http_status, response.text
    assert response.json()["error"]["code"] == code


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        pytest.param(breaks_off("Half ", "an "), "model_cut", id="half a stream"),
        pytest.param(stalls("Half ", "an "), "model_timeout", id="a stream that stalls"),
        pytest.param(error_in_a_stream, "model_failed", id="an error inside a stream"),
    ],
)
async def test_a_model_that_fails_after_its_first_word_is_an_error_frame_and_no_done(
    helper: Stage, model: ModelServer, fault: Any, code: str
) -> None:
    model.play("{}", fault)
    response = await helper.chat(stream=True)
    assert response.status_code == 200
    told = frames(response.text)
    assert "[DONE]" not in response.text
    assert text_of(told[:-1]).startswith("Half ")
    assert not any(f.json["choices"][0]["finish_reason"] for f in told[:-1])
    error = told[-1].json["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["code"] == code
    assert CANARY not in response.text
    assert (await helper.run(response.headers["X-Run-ID"]))["status"] == "failed"
    facts = await helper.memory(session_id=response.headers["X-Session-ID"])
    assert [event["event_type"] for event in facts] == ["user_message", "failed"]

    model.play("{}", fault)
    whole = await helper.chat()
    assert whole.status_code in (502, 504)
    assert whole.json()["error"]["code"] == code


async def test_after_a_failure_the_session_goes_on(helper: Stage, model: ModelServer) -> None:
    model.play(ECHO, status(401))
    assert (await helper.chat("one", session_id="s")).status_code == 502
    model.play("{}", "Two.")
    assert await helper.answer("two", session_id="s") == "Two."
    heard = [spoken(message["content"]) for message in model.requests[0]["messages"][1:]]
    assert heard == ["one", ECHO, "[Step 1/5] Result of tool echo:\nhello\n\ntwo"]
