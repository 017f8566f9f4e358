"""What a pod knows of a model that is unavailable: since when, why, and when it is over."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import orjson
import pytest
from support.redis_server import free_port
from support.upstream_habits import PLAIN, error, hello, refusal
from support.upstream_server import Answer, upstream_server

from diptych.core.catalog import Unavailable
from diptych.core.errors import ModelError
from diptych.manifest.settings import ModelConfig, TimeoutConfig
from diptych.models import health
from diptych.models.chat_model import ChatModel
from diptych.models.connection import open_http_session

LIST = Answer((orjson.dumps({"data": [{"id": "m"}]}),))
CANARY = "canary-0123456789"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "CHECK_PERIOD", 0.02)


async def no_pause(seconds: float) -> None:
    pass


@contextlib.asynccontextmanager
async def model_at(url: str, *, watched: bool = True) -> AsyncIterator[ChatModel]:
    timeouts = TimeoutConfig(connect=1, first_byte=0.5, total=2)
    config = ModelConfig("m", url, lambda: CANARY, timeouts=timeouts)
    async with open_http_session() as session:
        model = ChatModel(session, config, sleep=no_pause, random=lambda: 0)
        task = asyncio.create_task(model.watch.run()) if watched else None
        try:
            yield model
        finally:
            if task:
                task.cancel()


def found(model: ChatModel) -> Unavailable | None:
    troubles = model.watch.unavailable()
    return troubles[0] if troubles else None


async def until(claim: Any) -> None:
    async with asyncio.timeout(5):
        while not claim():  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.01)


async def ask(model: ChatModel) -> None:
    with contextlib.suppress(ModelError):
        await model.complete(PLAIN)


async def test_an_endpoint_that_is_away_is_found_at_the_start_without_a_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    port = free_port()
    with caplog.at_level(logging.WARNING):
        async with model_at(f"http://127.0.0.1:{port}/v1") as model:
            await until(lambda: found(model))
            trouble = found(model)
            assert trouble is not None
            assert (trouble.kind, trouble.name) == ("model", "m")
            assert trouble.reason.startswith("unreachable since 20")
            assert f"at http://127.0.0.1:{port}: " in trouble.reason
            await asyncio.sleep(0.1)
            assert found(model) == trouble  # the time stays that of its beginning
    lines = [line for line in caplog.messages if "is unavailable: " in line]
    assert len(lines) == 1
    assert "nothing listens there. Start the model's server, or change" in lines[0]


async def test_a_key_that_is_refused_is_found_at_the_start_and_is_not_shown() -> None:
    async with upstream_server(hello) as there:
        there.pages["/v1/models"] = refusal(error(f"wrong key {CANARY}"), 401)
        async with model_at(there.url) as model:
            await until(lambda: found(model))
            trouble = found(model)
            assert trouble is not None
            assert trouble.reason.startswith("unauthorized since")
            assert CANARY not in trouble.reason
            there.pages["/v1/models"] = LIST
            await until(lambda: not found(model))
        assert there.requests == []  # no chat, no tokens


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (refusal(error("boom"), 500), "failed"),
        (refusal(error("who are you?"), 401), "unauthorized"),
        (Answer((), end="hang"), "timeout"),
    ],
)
async def test_what_a_run_finds_out_stays_until_a_reply_comes(answer: Answer, code: str) -> None:
    async with upstream_server(lambda body: answer) as there:
        there.pages["/v1/models"] = refusal(error("not for you"), 403)
        async with model_at(there.url, watched=False) as model:
            await ask(model)
            trouble = found(model)
            assert trouble is not None
            assert trouble.reason.startswith(f"{code} since")
            there.respond = hello
            await ask(model)
            assert found(model) is None


async def test_a_look_does_not_end_what_it_cannot_see() -> None:
    times: Iterator[float] = iter([0.0, 1.0, 302.0])
    async with upstream_server(lambda body: refusal(error("boom"), 501)) as there:
        there.pages["/v1/models"] = LIST
        async with model_at(there.url, watched=False) as model:
            model.watch._clock = lambda: next(times)
            await ask(model)
            [endpoint] = model._endpoints
            await model.watch.check(endpoint)
            assert found(model) is not None
            await model.watch.check(endpoint)
            assert found(model) is None
