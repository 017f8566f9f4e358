"""CronJobs of Agents at an API: made, mended, removed with their account and policy."""

import pytest
from support.agents import agent_object
from support.reconciler_harness import KEY, NAME, served

from diptych_operator.resources.kinds import AGENT, CRON_JOB, NETWORK_POLICY, SERVICE_ACCOUNT

DAILY = {"name": "daily", "cron": "0 7 * * *", "message": "What is new?"}
OWN = ("team", "coordinator.schedules")
KINDS = (CRON_JOB, SERVICE_ACCOUNT, NETWORK_POLICY)


@pytest.fixture
async def harness():
    async with served() as found:
        put(found, DAILY, {**DAILY, "name": "weekly"})
        await found.until_done()
        yield found


def put(harness, *schedules):
    harness.api.put(AGENT, agent_object(schedules=list(schedules)))


async def test_each_schedule_has_a_cron_job_until_it_is_removed(harness):
    daily, _ = harness.names(CRON_JOB)
    assert {"coordinator", OWN[1]} == set(harness.names(SERVICE_ACCOUNT))
    put(harness, DAILY)
    await harness.until_done()
    assert harness.names(CRON_JOB) == [daily]
    put(harness)
    await harness.until_done()
    assert [harness.names(kind) for kind in KINDS] == [[], ["coordinator"], ["coordinator"]]


@pytest.mark.parametrize("kind", KINDS)
async def test_what_somebody_deletes_is_made_again(harness, kind):
    name = ("team", harness.names(CRON_JOB)[0]) if kind is CRON_JOB else OWN
    removed = harness.api.get(kind, name)
    harness.api.remove(kind, name)
    assert harness.cache.remove(kind, removed) == {KEY}
    await harness.until_done()
    assert harness.api.get(kind, name)


async def test_a_change_is_mended_and_the_status_follows_the_cron_job(harness):
    name = ("team", harness.names(CRON_JOB)[0])
    at = "2026-11-21T07:00:00Z"

    def change(content):
        content["spec"]["schedule"] = "* * * * *"
        content["status"] = {"lastScheduleTime": at, "lastSuccessfulTime": at}

    assert harness.cache.put(CRON_JOB, harness.api.edit(CRON_JOB, name, change)) == {KEY}
    await harness.until_done()
    assert harness.api.get(CRON_JOB, name)["spec"]["schedule"] == DAILY["cron"]
    schedules = harness.api.get(AGENT, NAME)["status"]["schedules"]
    tomorrow = "2026-11-22T07:00:00Z"
    assert schedules[0] == {"name": "daily", "last": at, "lastResult": "Started", "next": tomorrow}
    assert schedules[1] == {"name": "weekly", "next": tomorrow}
