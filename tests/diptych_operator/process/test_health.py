"""When the operator calls itself ill: a watch that is silent while the API answers."""

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from diptych_operator.controller.metrics import Metrics
from diptych_operator.controller.store import World
from diptych_operator.kubernetes.connection import Connection
from diptych_operator.process.health import MAX_SILENCE, Health
from diptych_operator.watch.staleness import Silence


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


PATHS = ("/apis/diptych.dev/v1alpha1/agents", "/api/v1/services")


def leading(clock):
    """The silence of an operator that has listed everything and begins to watch."""
    silence = Silence(clock)
    silence.listed(is_whole=True)
    silence.expect(PATHS)
    return silence


def health(clock, *, answers):
    async def api_answers():
        return answers

    return Health(leading(clock), World(), Metrics(), api_answers)


@pytest.mark.parametrize(
    ("seconds", "answers", "is_ill"),
    [
        pytest.param(70, True, False, id="as silent as a good watch may be"),
        pytest.param(MAX_SILENCE + 1, True, True, id="silent, and the API answers"),
        pytest.param(MAX_SILENCE + 1, False, False, id="silent, as the API is away"),
    ],
)
async def test_k5_a_silent_watch_is_an_illness_only_a_restart_would_heal(
    clock, seconds, answers, is_ill
):
    found = health(clock, answers=answers)
    clock.now += seconds
    assert (await found.problem() is not None) is is_ill


async def test_one_silent_watch_is_enough(clock):
    found = health(clock, answers=True)
    clock.now += MAX_SILENCE + 1
    found.silence.heard("/api/v1/services")
    assert await found.problem() == "a watch has told nothing for 151 s, while the API answers"


async def test_a_standby_without_watches_is_well(clock):
    found = Health(Silence(clock), World(), Metrics(), None)
    assert await found.problem() is None


async def test_it_is_told_over_http(clock):
    found = health(clock, answers=True)
    async with TestClient(TestServer(found.app())) as client:
        assert (await client.get("/healthz")).status == 200
        assert (await client.get("/readyz")).status == 200
        clock.now += MAX_SILENCE + 1
        answer = await client.get("/healthz")
        assert answer.status == 503
        assert "told nothing" in await answer.text()
        found.metrics.reconciled("ok", 0.01)
        found.metrics.asked("PATCH", 200)
        text = await (await client.get("/metrics")).text()
    for line in (
        'diptych_operator_reconciles_total{result="ok"} 1.0',
        'diptych_operator_api_requests_total{method="PATCH",status="200"} 1.0',
        'diptych_operator_agents{ready="True"} 0.0',
        "diptych_operator_watch_silence_seconds 151.0",
    ):
        assert line in text


async def test_a_watch_that_never_comes_about_is_an_illness_though_the_sessions_change(clock):
    found = health(clock, answers=True)
    for _ in range(30):  # each session fails, waits 5 s, and the next one begins a second later
        found.silence.expect(PATHS)
        assert await found.problem() is None
        clock.now += 5
        found.silence.rest()
        clock.now += 1
        found.silence.listed(is_whole=True)
    found.silence.expect(PATHS)
    clock.now += 1
    assert await found.problem() is not None


async def test_time_in_which_lists_fail_does_not_count(clock):
    found = health(clock, answers=True)
    clock.now += MAX_SILENCE
    found.silence.listed(is_whole=False)
    clock.now += 600
    assert await found.problem() is None
    found.silence.listed(is_whole=True)
    clock.now += MAX_SILENCE
    assert await found.problem() is None
    clock.now += 1
    assert await found.problem() is not None


async def test_time_on_standby_does_not_count(clock):
    found = health(clock, answers=True)
    clock.now += MAX_SILENCE
    found.silence.rest()
    clock.now += 3600
    assert await found.problem() is None
    found.silence.expect(PATHS)
    assert await found.problem() is None
    clock.now += 1
    assert await found.problem() is not None


async def test_a_watch_that_is_no_longer_wanted_is_not_missed(clock):
    found = health(clock, answers=True)
    clock.now += MAX_SILENCE - 1
    found.silence.rest()
    found.silence.expect(PATHS[:1])
    found.silence.heard(PATHS[0])
    clock.now += 100
    assert await found.problem() is None


async def test_every_piece_of_a_watch_is_heard_and_nothing_else(clock):
    silence = leading(clock)
    silence.expect(["/api/v1/pods"])

    async def stream(request):
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(2):
            await response.write(b"{}\n")
        return response

    app = web.Application()
    app.router.add_get("/{path:.*}", stream)
    async with TestServer(app) as server:
        connection = Connection(str(server.make_url("")).rstrip("/"), True, lambda: "Bearer x")
        async with connection.session(silence) as session:
            async with session.get(f"{connection.server}/api/v1/pods") as answer:
                await answer.read()
            assert silence.longest() == 0.0
            clock.now = 5.0
            async with session.get(f"{connection.server}/api/v1/pods?watch=true") as answer:
                assert answer.request_info.headers["Authorization"] == "Bearer x"
                clock.now = 7.0
                async for _ in answer.content.iter_chunked(10):
                    assert silence.longest() == 0.0
                    clock.now += 1.0


@pytest.mark.parametrize(
    ("status", "silent"),
    [
        pytest.param(403, 0.0, id="a right is missing, which no restart brings"),
        pytest.param(500, 99.0, id="the API has failed"),
    ],
)
async def test_a_watch_that_is_refused_is_heard_only_if_a_restart_would_not_help(
    clock, status, silent
):
    silence = leading(clock)
    silence.expect(["/pods"])

    async def refuse(request):
        return web.Response(status=status)

    app = web.Application()
    app.router.add_get("/{path:.*}", refuse)
    clock.now = 99.0
    async with TestServer(app) as server:
        connection = Connection(str(server.make_url("")).rstrip("/"), True, lambda: None)
        async with connection.session(silence) as session:
            async with session.get(f"{connection.server}/pods?watch=true") as answer:
                assert isinstance(answer, aiohttp.ClientResponse)
    assert silence.longest() == silent
