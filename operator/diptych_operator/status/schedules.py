"""The status of an Agent's schedules, from their CronJobs. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from diptych_cron import Cron, InvalidCron
from diptych_operator.desired.schedules import cron_job_name
from diptych_operator.resources.agent import Agent
from diptych_operator.resources.kinds import Object


def schedule_status(agent: Agent, cron_jobs: Sequence[Object], now: str) -> list[dict[str, str]]:
    """Return name, last time, whether a run was started then, and next time of each schedule."""
    by_name = {live["metadata"]["name"]: live for live in cron_jobs}
    return [
        {
            "name": schedule["name"],
            **dict(_last(by_name.get(cron_job_name(agent, schedule["name"]), {}))),
            **(dict(_next(schedule, now)) if agent.replicas else {}),
        }
        for schedule in agent.schedules
    ]


def _last(cron_job: Object) -> Iterator[tuple[str, str]]:
    status = cron_job.get("status") or {}
    if last := status.get("lastScheduleTime"):
        yield "last", last
        if status.get("active"):
            yield "lastResult", "Starting"
        else:  # times of this form sort as texts
            has_started = status.get("lastSuccessfulTime", "") >= last
            yield "lastResult", "Started" if has_started else "Failed"


def _next(schedule: Mapping[str, Any], now: str) -> Iterator[tuple[str, str]]:
    try:
        cron = Cron.parse(schedule["cron"], schedule.get("timeZone", "Etc/UTC"))
    except InvalidCron:  # the manifest is rejected for it
        return
    if following := cron.next_after(datetime.fromisoformat(now).timestamp()):
        yield "next", datetime.fromtimestamp(following, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
