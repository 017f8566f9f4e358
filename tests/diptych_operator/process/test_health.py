"""When /healthz fails: a watch is stale while the API answers."""

import pytest
from aiohttp.test_utils import TestClient, TestServer

from diptych_operator.controller.cache import ObjectCache
from diptych_operator.controller.metrics import Metrics
from diptych_operator.process.health import MAX_STALENESS, Health
from diptych_operator.resources.kinds import AGENT
from diptych_operator.watch.staleness import WatchStaleness


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


PATHS = ("/apis/diptych.dev/v1alpha1/agents", "/api/v1/services")


def leading(clock):
    """The staleness of an operator that has listed everything and begins to watch."""
    staleness = WatchStaleness(clock)
    staleness.note_lists(are_complete=True)
    staleness.expect(PATHS)
    return staleness


def health(clock, *, answers):
    async def api_answers():
        return answers

    return Health(leading(clock), ObjectCache(), Metrics(), api_answers)


@pytest.mark.parametrize(
    ("seconds", "answers", "is_ill"),
    [
        pytest.param(70, True, False, id="as silent as a good watch may be"),
        pytest.param(MAX_STALENESS + 1, True, True, id="silent, and the API answers"),
        pytest.param(MAX_STALENESS + 1, False, False, id="silent, as the API is away"),
    ],
)
async def test_k5_healthz_fails_only_if_a_restart_would_help(clock, seconds, answers, is_ill):
    found = health(clock, answers=answers)
    clock.now += seconds
    assert (await found.problem() is not None) is is_ill


async def test_one_stale_watch_is_enough(clock):
    found = health(clock, answers=True)
    clock.now += MAX_STALENESS + 1
    found.staleness.note_data("/api/v1/services")
    assert await found.problem() == "a watch has been silent for 151 s, while the API answers"


async def test_a_standby_without_watches_is_healthy(clock):
    found = Health(WatchStaleness(clock), ObjectCache(), Metrics(), None)
    assert await found.problem() is None


async def test_health_and_metrics_are_served_over_http(clock):
    found = health(clock, answers=True)
    async with TestClient(TestServer(found.app())) as client:
        assert (await client.get("/healthz")).status == 200
        assert (await client.get("/readyz")).status == 200
        clock.now += MAX_STALENESS + 1
        answer = await client.get("/healthz")
        assert answer.status == 503
        assert "has been silent" in await answer.text()
        found.metrics.count_reconcile("ok", 0.01)
        found.metrics.count_request("PATCH", 200)
        bad = {"type": "Degraded", "status": "True", "reason": "KeyMissing"}
        agent = {
            "metadata": {"namespace": "team", "name": "a", "uid": "1"},
            "status": {"conditions": [bad]},
        }
        found.cache.put(AGENT, agent)
        text = await (await client.get("/metrics")).text()
        found.cache.put(AGENT, {**agent, "status": {}})
        later = await (await client.get("/metrics")).text()
    reason = 'diptych_operator_bad_conditions{condition="Degraded",reason="KeyMissing"} 1.0'
    assert reason in text
    assert "KeyMissing" not in later
    for line in (
        'diptych_operator_reconciles_total{result="ok"} 1.0',
        'diptych_operator_api_requests_total{method="PATCH",status="200"} 1.0',
        'diptych_operator_agents{ready="Unknown"} 1.0',
        "diptych_operator_watch_silence_seconds 151.0",
    ):
        assert line in text


async def test_time_in_which_lists_fail_does_not_count(clock):
    found = health(clock, answers=True)
    clock.now += MAX_STALENESS
    found.staleness.note_lists(are_complete=False)
    clock.now += 600
    assert await found.problem() is None
    found.staleness.note_lists(are_complete=True)
    clock.now += MAX_STALENESS
    assert await found.problem() is None
    clock.now += 1
    assert await found.problem() is not None
