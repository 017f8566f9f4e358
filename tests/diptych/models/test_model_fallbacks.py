"""Several endpoints for one model, their circuit breakers, headers and addresses."""

import asyncio
import logging
from dataclasses import replace

import aiohttp
import pytest
from support.upstream_habits import PLAIN, error, hello, refusal, said
from support.upstream_server import Answer, UpstreamServer, upstream_server

from diptych.core.errors import ModelError
from diptych.manifest.settings import ModelConfig, TimeoutConfig
from diptych.models.chat_model import ChatModel
from diptych.models.health import MAX_FAILURES

HANG = Answer((), end="hang")
CANARY = "canary-0123456789"


async def no_pause(seconds: float) -> None:
    pass


def model(session: aiohttp.ClientSession, first: ModelConfig, *others: ModelConfig) -> ChatModel:
    config = ModelConfig(
        first.name, first.endpoint, first.api_key, headers=first.headers, fallbacks=others,
        timeouts=first.timeouts,
    )  # fmt: skip
    return ChatModel(session, config, sleep=no_pause, random=lambda: 0)


BOOM = refusal(error("boom"), 500)


@pytest.mark.parametrize(
    ("answer", "tries", "streamed"),
    [
        pytest.param(BOOM, 3, False, id="fails"),
        pytest.param(BOOM, 3, True, id="fails, streamed"),
        pytest.param(
            refusal(error("slow down"), 429, Retry_After="25"), 1, False, id="wants a long wait"
        ),
        pytest.param(refusal(error("no such model"), 404), 1, False, id="has no such model"),
        pytest.param(HANG, 1, True, id="hangs, streamed"),
        pytest.param(Answer((b'{"error": "boom"}',)), 1, False, id="reports an error in a 200"),
    ],
)
async def test_the_next_model_is_asked_if_one(
    session: aiohttp.ClientSession, answer: Answer, tries: int, streamed: bool
) -> None:
    async with upstream_server(lambda body: answer) as ill, upstream_server(hello) as well:
        timeouts = TimeoutConfig(first_byte=5, total=0.6)
        first = ModelConfig("m", ill.url, timeouts=timeouts)
        asked = model(session, first, ModelConfig("n", well.url))
        if streamed:
            text = "".join([delta.text async for delta in asked.stream(PLAIN)])
        else:
            text = (await asked.complete(PLAIN)).text
        assert text == "Hello."
        assert len(ill.requests) == tries
        assert [request["model"] for request in well.requests] == ["n"]


async def test_no_other_model_is_asked_if_the_request_is_wrong(
    session: aiohttp.ClientSession,
) -> None:
    wrong = refusal(error("temperature is 7"))
    async with upstream_server(lambda _: wrong) as ill, upstream_server(hello) as well:
        asked = model(session, ModelConfig("m", ill.url), ModelConfig("n", well.url))
        with pytest.raises(ModelError) as caught:
            await asked.complete(PLAIN)
        assert (caught.value.code, well.requests) == ("model_refused", [])


async def test_if_all_fail_the_first_ones_failure_is_told(
    session: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        upstream_server(lambda _: refusal(error("boom"), 500)) as ill,
        upstream_server(lambda _: refusal(error("no"), 401)) as worse,
    ):
        asked = model(session, ModelConfig("m", ill.url), ModelConfig("n", worse.url))
        with pytest.raises(ModelError) as caught, caplog.at_level(logging.WARNING):
            await asked.complete(PLAIN)
    assert caught.value.code == "model_failed"
    assert "trying the next model" in caplog.text


async def test_a_stream_that_has_begun_is_not_asked_for_elsewhere(
    session: aiohttp.ClientSession,
) -> None:
    cut = Answer(said("Hel", "lo").pieces[:1], content_type="text/event-stream")
    async with upstream_server(lambda _: cut) as ill, upstream_server(hello) as well:
        asked = model(session, ModelConfig("m", ill.url), ModelConfig("n", well.url))
        stream = asked.stream(PLAIN)
        assert (await anext(stream)).text == "Hel"
        with pytest.raises(ModelError) as caught:
            await anext(stream)
        assert (caught.value.code, well.requests) == ("model_cut", [])


async def test_streams_that_break_off_open_the_circuit(
    session: aiohttp.ClientSession,
) -> None:
    broken = Answer(said("Hel").pieces[:1], content_type="text/event-stream", pause=0.02)
    async with upstream_server(lambda _: broken) as ill, upstream_server(hello) as well:
        asked = model(session, ModelConfig("m", ill.url), ModelConfig("n", well.url))
        for _ in range(MAX_FAILURES):
            with pytest.raises(ModelError):
                _ = [delta async for delta in asked.stream(PLAIN)]
        assert "".join([delta.text async for delta in asked.stream(PLAIN)]) == "Hello."
        assert (len(ill.requests), len(well.requests)) == (MAX_FAILURES, 1)


# What a run has left


async def test_a_run_with_little_time_leaves_some_for_the_next_model(
    session: aiohttp.ClientSession,
) -> None:
    async with upstream_server(lambda _: HANG) as ill, upstream_server(hello) as well:
        asked = model(session, ModelConfig("m", ill.url), ModelConfig("n", well.url))
        async with asyncio.timeout(2):
            reply = await asked.complete(replace(PLAIN, seconds_left=0.4))
        assert (reply.text, len(ill.requests)) == ("Hello.", 1)


# What an observer is told


async def test_each_attempt_is_reported_by_model_endpoint_and_outcome(
    session: aiohttp.ClientSession,
) -> None:
    ends: list[tuple[str, str, str]] = []
    async with (
        upstream_server(lambda _: refusal(error("boom"), 500)) as ill,
        upstream_server(hello) as well,
    ):
        config = ModelConfig("m", ill.url, fallbacks=(ModelConfig("n", well.url),))
        asked = ChatModel(
            session, config, sleep=no_pause, random=lambda: 0, observe=lambda *end: ends.append(end)
        )
        await asked.complete(PLAIN)
        stream = asked.stream(PLAIN)
        await anext(stream)
        await stream.aclose()
        origins = [there.url.removesuffix("/v1") for there in (ill, well)]
    failed, ok = ("m", origins[0], "model_failed"), ("n", origins[1], "ok")
    assert ends == [failed] * 3 + [ok] + [failed] * 2 + [("n", origins[1], "cancelled")]


# Headers


async def test_headers_are_sent_and_read_at_each_request(session: aiohttp.ClientSession) -> None:
    keys = iter(["one", "two\n"])
    headers = {"api-key": lambda: next(keys), "X-Team": lambda: "blue"}
    async with upstream_server(hello) as there:
        asked = model(session, ModelConfig("m", f"{there.url}?api-version=1", headers=headers))
        await asked.complete(PLAIN)
        await asked.complete(PLAIN)
        assert [sent["api-key"] for sent in there.headers] == ["one", "two"]
        assert there.headers[0]["x-team"] == "blue"
        assert "authorization" not in there.headers[0]
        assert there.paths[0] == "/v1/chat/completions?api-version=1"


async def test_a_header_without_its_secret_sends_nothing(session: aiohttp.ClientSession) -> None:
    async with upstream_server(hello) as there:
        asked = model(session, ModelConfig("m", there.url, headers={"api-key": lambda: None}))
        with pytest.raises(ModelError, match="header api-key is missing") as caught:
            await asked.complete(PLAIN)
        assert (caught.value.code, there.requests) == ("model_unauthorized", [])


@pytest.mark.parametrize("status", [200, 400])
async def test_no_error_tells_a_header(
    session: aiohttp.ClientSession, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    answer = refusal(error(f"bad {CANARY} here"), status)
    async with upstream_server(lambda _: answer) as there:
        asked = model(session, ModelConfig("m", there.url, headers={"api-key": lambda: CANARY}))
        with pytest.raises(ModelError) as caught, caplog.at_level(logging.WARNING):
            await asked.complete(PLAIN)
    # The words of a refusal are the caller's business, those of a failure are for the log.
    assert ("bad … here" in caught.value.message) == (status == 400)
    assert ("bad … here" in caplog.text) == (status != 400)
    assert CANARY not in caught.value.message + caplog.text


# Addresses


@pytest.mark.parametrize(
    ("suffix", "paths"),
    [
        pytest.param("/v1", ["/v1/chat/completions"] * 2, id="a base"),
        pytest.param("/v1/chat/completions", ["/v1/chat/completions"] * 2, id="the whole path"),
        pytest.param(
            "/openai/deployments/d/chat/completions?api-version=2024-10-21",
            ["/openai/deployments/d/chat/completions?api-version=2024-10-21"] * 2,
            id="Azure",
        ),
        pytest.param("", ["/v1/chat/completions"] * 2, id="a bare host"),
    ],
)
async def test_an_endpoint_may_be_written_in_many_ways(
    session: aiohttp.ClientSession, suffix: str, paths: list[str]
) -> None:
    async with upstream_server(hello) as there:
        asked = model(session, ModelConfig("m", there.url.removesuffix("/v1") + suffix))
        for _ in paths:
            await asked.complete(PLAIN)
        assert there.paths == paths


@pytest.mark.parametrize("status", [404, 405])
async def test_a_bare_host_without_v1_is_found_and_remembered(
    session: aiohttp.ClientSession, status: int
) -> None:
    async with upstream_server(hello) as there:
        there.respond = lambda body: (
            refusal(b"not found", status) if there.paths[-1].startswith("/v1") else hello(body)
        )
        asked = model(session, ModelConfig("m", there.url.removesuffix("/v1")))
        await asked.complete(PLAIN)
        await asked.complete(PLAIN)
        assert there.paths == [
            "/v1/chat/completions", "/chat/completions", "/chat/completions",
        ]  # fmt: skip


async def test_a_model_that_is_not_there_is_told_in_the_servers_words(
    session: aiohttp.ClientSession,
) -> None:
    def respond(server: UpstreamServer) -> Answer:
        if server.paths[-1].startswith("/v1"):
            return refusal(error('model "x" not found, try pulling it first'), 404)
        return refusal(b"404 page not found", 404)

    async with upstream_server(hello) as there:
        there.respond = lambda _: respond(there)
        asked = model(session, ModelConfig("x", there.url.removesuffix("/v1")))
        with pytest.raises(ModelError, match="try pulling it first"):
            await asked.complete(PLAIN)
