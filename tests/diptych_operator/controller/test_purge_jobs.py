"""Purge Jobs against the API double: made with an Agent, started when it is gone."""

import pytest
from support.agents import agent_object
from support.kubernetes import ErrorResponse
from support.reconciler_harness import KEY, NAME, Harness, served

from diptych_operator.kubernetes.errors import ApiError
from diptych_operator.resources.kinds import AGENT, JOB, NETWORK_POLICY

REDIS = {"urlFrom": {"secretKeyRef": {"name": "redis", "key": "url"}}}
PURGED = {"redis": REDIS, "onDelete": "purge"}


@pytest.fixture
async def harness():
    async with served() as found:
        found.api.put(AGENT, agent_object(sessions=PURGED))
        await found.until_done()
        yield found


def uid(harness):
    return harness.api.get(AGENT, NAME)["metadata"]["uid"]


def jobs(harness):
    return {job["metadata"]["name"]: job["spec"]["suspend"] for job in harness.api.all(JOB)}


def policies(harness):
    return [name for name in harness.names(NETWORK_POLICY) if "-purge-" in name]


async def successor(harness, **sessions):
    """Put another Agent of the name in the place of the first, and reconcile it."""
    new = agent_object(sessions={"redis": REDIS, **sessions})
    harness.api.remove(AGENT, NAME)
    harness.api.put(AGENT, new)
    await harness.until_done()


async def test_a_suspended_job_is_made_once(harness):
    assert list(jobs(harness).values()) == [True]
    harness.api.writes.clear()
    await harness.until_done()
    assert harness.api.writes == []
    assert policies(harness) == []


async def test_it_starts_when_its_agent_is_gone_with_a_policy_of_its_own(harness):
    harness.api.remove(AGENT, NAME)
    await harness.reconcile()
    [(name, suspended)] = jobs(harness).items()
    assert suspended is False
    assert policies(harness) == [name]
    harness.api.writes.clear()
    await harness.reconcile()
    assert harness.api.writes == []


async def test_an_operator_that_was_away_starts_it_when_it_is_back(harness):
    harness.api.remove(AGENT, NAME)
    later = Harness(harness.api, harness.client)
    queued = set()
    later.queue.add = queued.add
    for kind, content in [(JOB, job) for job in harness.api.all(JOB)]:
        queued |= later.cache.put(kind, content)
    assert queued == {KEY}
    await later.reconcile()
    assert list(jobs(harness).values()) == [False]


async def test_a_failed_start_is_tried_again(harness):
    def refuse(request, content):
        if request.method == "PATCH" and "/jobs/" in request.path:
            raise ErrorResponse(503, "ServiceUnavailable")

    harness.api.remove(AGENT, NAME)
    harness.api.before = refuse
    with pytest.raises(ApiError):
        await harness.reconcile()
    assert list(jobs(harness).values()) == [True]
    harness.api.before = lambda request, content: None
    await harness.reconcile()
    assert list(jobs(harness).values()) == [False]


async def test_a_successor_s_own_job_waits_while_the_former_one_runs(harness):
    [former] = jobs(harness)
    await successor(harness, onDelete="purge")
    states = jobs(harness)
    assert len(states) == 2
    assert states.pop(former) is False
    assert list(states.values()) == [True]


async def test_what_a_successor_adopts_is_not_purged(harness):
    await successor(harness, adopt=uid(harness))
    assert list(jobs(harness).values()) == [True]
    harness.api.remove(AGENT, NAME)  # and then nobody has it any more
    await harness.reconcile()
    assert list(jobs(harness).values()) == [False]


async def test_an_agent_that_keeps_its_sessions_after_all_has_no_job(harness):
    harness.api.edit(AGENT, NAME, lambda a: a["spec"]["sessions"].update(onDelete="keep"))
    await harness.until_done()
    assert jobs(harness) == {}


async def test_another_redis_means_another_job(harness):
    [former] = jobs(harness)
    key = {"name": "redis-2", "key": "url"}
    redis = {"urlFrom": {"secretKeyRef": key}}
    harness.api.edit(AGENT, NAME, lambda a: a["spec"]["sessions"].update(redis=redis))
    await harness.until_done()
    assert list(jobs(harness).values()) == [True]
    assert former not in jobs(harness)
