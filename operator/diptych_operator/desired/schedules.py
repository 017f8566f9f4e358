"""The CronJobs of an Agent's schedules, with an account and a NetworkPolicy for their pods. Pure.

A CronJob's pod starts a run with its Job's name as idempotency key, and ends. The account may only
ask this Agent: the access file grants that, and its token is for no other audience.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from diptych_cel.expressions import InvalidExpression, Result, check_expression
from diptych_cron import Cron, InvalidCron
from diptych_operator.desired.access import TOKEN_SECONDS
from diptych_operator.desired.deployment import PodDefaults
from diptych_operator.desired.drift import digest
from diptych_operator.desired.job_pod import job_pod
from diptych_operator.desired.network_policy import NetworkSettings, schedule_policy_spec
from diptych_operator.desired.references import ObservedState
from diptych_operator.resources.agent import Agent
from diptych_operator.resources.kinds import (
    CRON_JOB,
    NETWORK_POLICY,
    SERVICE_ACCOUNT,
    Kind,
    Object,
    schedules_name,
)
from diptych_operator.resources.labels import schedule_pod_labels
from diptych_operator.resources.owner import ManifestError

_LATE_SECONDS = 60  # up to which a time is not missed; as on a laptop
_ACTIVE_SECONDS = 900  # then a Job is given up: the Agent takes no runs
_MAX_NAME = 42  # with the digest 51, and a CronJob's name has 52 at most
_JOB_NAME = "metadata.labels['batch.kubernetes.io/job-name']"
_TOKENS = "/var/run/diptych"
_FIELDS: Mapping[str, Result] = {"when": "bool", "message": "string", "session": "name"}


def check_schedules(agent: Agent) -> None:
    """Raise `ManifestError` for what the CRD cannot check of schedules and triggers."""
    if mistakes := list(_mistakes(agent)):
        raise ManifestError("ScheduleInvalid", "; ".join(mistakes))


def schedule_children(
    agent: Agent, observed: ObservedState, pods: PodDefaults, network: NetworkSettings
) -> Iterator[tuple[Kind, str, Mapping[str, Any]]]:
    """Yield kind, name and content of the objects that run an Agent's schedules.

    Raises `ManifestError` if the operator's pod template does not fit.
    """
    if not agent.schedules:
        return
    name = schedules_name(agent.name)
    yield SERVICE_ACCOUNT, name, {"automountServiceAccountToken": False}
    yield NETWORK_POLICY, name, {"spec": schedule_policy_spec(agent, observed, network)}
    for schedule in agent.schedules:
        spec = _cron_job_spec(agent, schedule, pods)
        yield CRON_JOB, cron_job_name(agent, schedule["name"]), {"spec": spec}


def cron_job_name(agent: Agent, schedule: str) -> str:
    """Name the CronJob of a schedule; its Jobs' names add a time to it."""
    name = f"{agent.name}-{schedule}"
    mark = digest({"agent": agent.name, "schedule": schedule})[:8]
    return f"{name[:_MAX_NAME].rstrip('-')}-{mark}"


def _cron_job_spec(agent: Agent, schedule: Mapping[str, Any], pods: PodDefaults) -> Object:
    is_missed_run = schedule.get("missed") == "once"
    return {
        "schedule": schedule["cron"],
        "timeZone": schedule.get("timeZone", "Etc/UTC"),
        "concurrencyPolicy": "Allow",  # the session's queue decides on what follows what
        "suspend": agent.replicas == 0,
        **({} if is_missed_run else {"startingDeadlineSeconds": _LATE_SECONDS}),
        "successfulJobsHistoryLimit": 1,
        "failedJobsHistoryLimit": 1,
        "jobTemplate": {
            "spec": {
                "backoffLimit": 6,
                "activeDeadlineSeconds": _ACTIVE_SECONDS,
                "template": _pod_template(agent, schedule, pods),
            }
        },
    }


def _pod_template(agent: Agent, schedule: Mapping[str, Any], pods: PodDefaults) -> Object:
    session = schedule.get("session")
    token = {
        "audience": agent.audience,
        "expirationSeconds": TOKEN_SECONDS,
        "path": "token",
    }
    return job_pod(
        schedule_pod_labels(agent.name),
        {
            "args": [
                *("run", "--detach", "--key", "$(JOB_NAME)"),
                *(("--session", session) if session else ()),
                *("--", agent.url, _literal(schedule["message"])),
            ],
            "env": [
                {"name": "JOB_NAME", "valueFrom": {"fieldRef": {"fieldPath": _JOB_NAME}}},
                {"name": "DIPTYCH_TOKEN_FILE", "value": f"{_TOKENS}/token"},
            ],
            "volumeMounts": [{"name": "token", "mountPath": _TOKENS, "readOnly": True}],
        },
        pods,
        {
            "restartPolicy": "OnFailure",
            "serviceAccountName": schedules_name(agent.name),
            "volumes": [
                {"name": "token", "projected": {"sources": [{"serviceAccountToken": token}]}}
            ],
        },
    )


def _literal(text: str) -> str:
    """Keep Kubernetes from replacing `$(NAME)` in an argument."""
    return text.replace("$", "$$")


def _mistakes(agent: Agent) -> Iterator[str]:
    for n, schedule in enumerate(agent.schedules):
        try:
            Cron.parse(schedule["cron"], schedule.get("timeZone", "Etc/UTC"))
        except InvalidCron as error:
            yield f"spec.schedules[{n}]: {error}"
    for n, trigger in enumerate(_triggers(agent)):
        for field, result in _FIELDS.items():
            if field in trigger:
                try:
                    check_expression(trigger[field], "delivery", result)
                except InvalidExpression as error:
                    yield f"spec.triggers[{n}].{field}: {error}"


def _triggers(agent: Agent) -> Sequence[Mapping[str, Any]]:
    return tuple(agent.spec.get("triggers") or ())
