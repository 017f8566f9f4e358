"""The status of schedules, from their CronJobs."""

from dataclasses import replace

import pytest
from support.agents import agent

from diptych_operator.desired.schedules import cron_job_name
from diptych_operator.status.schedules import failure, schedule_status

DAILY = {"name": "daily", "cron": "0 7 * * *", "timeZone": "Europe/Berlin", "message": "?"}
AT_SIX = "2026-11-28T06:00:00Z"  # 7 o'clock in Berlin


@pytest.mark.parametrize(
    ("status", "last"),
    [
        (None, {}),
        ({"lastScheduleTime": AT_SIX, "active": [{}]}, {"last": AT_SIX, "lastResult": "Starting"}),
        (
            {"lastScheduleTime": AT_SIX, "lastSuccessfulTime": "2026-11-28T06:00:09Z"},
            {"last": AT_SIX, "lastResult": "Started"},
        ),
        (
            {"lastScheduleTime": AT_SIX, "lastSuccessfulTime": "2026-11-27T06:00:09Z"},
            {"last": AT_SIX, "lastResult": "Failed"},
        ),
        ({"lastScheduleTime": AT_SIX}, {"last": AT_SIX, "lastResult": "Failed"}),
    ],
)
def test_a_schedule_tells_last_and_next(status, last):
    given = agent(schedules=[DAILY])
    live = {"metadata": {"name": cron_job_name(given, "daily")}, "status": status}
    [found] = schedule_status(given, [live], {}, "2026-11-28T06:01:00Z")
    assert found == {"name": "daily", **last, "next": "2026-11-29T06:00:00Z"}


def test_a_schedule_of_an_agent_without_pods_has_no_next_time():
    given = agent(schedules=[DAILY], replicas=0)
    assert schedule_status(given, [], {}, "2026-11-28T06:01:00Z") == [{"name": "daily"}]


def test_the_last_end_stays_until_pods_tell_another():
    given = agent(schedules=[DAILY], replicas=0)
    ends = {cron_job_name(given, "daily"): {"run_id": "run-1", "end": "failed"}}
    [first] = schedule_status(given, [], ends, AT_SIX)
    assert first == {"name": "daily", "lastRun": "run-1", "lastEnd": "failed"}
    assert failure(first) == "its last run failed: run-1"
    later = replace(given, status={"schedules": [first]})
    [second] = schedule_status(later, [], {}, AT_SIX)
    assert second == first
