"""The status of an Agent's schedules, from their CronJobs and its pods' answers. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from diptych_cron import Cron, InvalidCron
from diptych_operator.desired.schedules import cron_job_name
from diptych_operator.resources.agent import Agent
from diptych_operator.resources.kinds import Object


def schedule_status(
    agent: Agent, cron_jobs: Sequence[Object], ends: Mapping[str, Object], now: str
) -> list[dict[str, str]]:
    """Return name, last time, whether a run was started then, the last run's end, and next time.

    `ends` has the pods' answers since the operator started; without one the former status holds.
    """
    by_name = {live["metadata"]["name"]: live for live in cron_jobs}
    former = {each["name"]: each for each in agent.status.get("schedules", ())}
    return [
        {
            "name": schedule["name"],
            **dict(_last(by_name.get(cron_job_name(agent, schedule["name"]), {}))),
            **_end(
                ends.get(cron_job_name(agent, schedule["name"])),
                former.get(schedule["name"], {}),
            ),
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


def _end(newest: Object | None, former: Mapping[str, str]) -> dict[str, str]:
    if newest:
        return {"lastRun": newest["run_id"], "lastEnd": newest["end"]}
    return {field: former[field] for field in ("lastRun", "lastEnd") if field in former}


def failure(schedule: Mapping[str, str]) -> str:
    """Return what went wrong the last time; empty if nothing is known."""
    if schedule.get("lastResult") == "Failed":
        return f"no run was started at {schedule['last']}; the pods of its Job log why"
    if schedule.get("lastEnd") == "failed":
        return f"its last run failed: {schedule['lastRun']}"
    return ""


def _next(schedule: Mapping[str, Any], now: str) -> Iterator[tuple[str, str]]:
    try:
        cron = Cron.parse(schedule["cron"], schedule.get("timeZone", "Etc/UTC"))
    except InvalidCron:  # the manifest is rejected for it
        return
    if following := cron.next_after(datetime.fromisoformat(now).timestamp()):
        yield "next", datetime.fromtimestamp(following, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
