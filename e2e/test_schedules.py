"""A schedule starts its runs by a CronJob, whose pods may ask their Agent alone."""

from typing import Any

import pytest
from harness.clusters import Cluster
from harness.kubectl import eventually
from harness.objects import agent
from harness.pods import crash, ready_pods
from harness.release import Release
from harness.sharing import Run
from harness.space import Space

EACH_MINUTE = {"name": "each", "cron": "* * * * *", "message": "What's new for $(JOB_NAME)?"}
YEARLY = {"name": "yearly", "cron": "0 0 1 1 *", "message": "Go."}
REDIS = {"redis": {"serviceRef": {"name": "redis"}}}
READ = {"grants": [{"to": [{"serviceAccount": {"name": "default"}}], "may": ["read"]}]}
JOBS = [f"job-{number}" for number in range(8)]


def asked(space: Space) -> list[dict[str, Any]]:
    """Give the messages that began the runs of the Agent."""
    return [e for e in space.probe.events("hello") if e["event_type"] == "user_message"]


@pytest.mark.long
def test_each_job_of_a_schedule_starts_one_run(space: Space):
    made = agent("hello", ["{}", "Nothing."], schedules=[EACH_MINUTE], access=READ)
    space.serve(made)

    def started() -> bool:
        [found] = space.kubectl.get("agent", "hello")["status"]["schedules"]
        assert found.get("lastResult") != "Failed"
        return found.get("lastResult") == "Started" and found.get("lastEnd") == "completed"

    eventually(started, seconds=150, what="a Job has started a run, and its end is told")
    found = asked(space)
    assert {e["content"] for e in found} == {EACH_MINUTE["message"]}
    account = f"serviceaccount:{space.name}/hello.schedules"
    assert {e["metadata"]["subject"] for e in found} == {account}
    made["spec"]["schedules"] = []
    space.kubectl.apply(made)
    eventually(lambda: not space.kubectl.list("cronjobs"), seconds=30, what="no CronJob is left")


@pytest.mark.nightly
@pytest.mark.alone(leaves_release=True)
def test_each_job_starts_one_run_while_operator_and_pods_are_killed(
    space: Space, diptych: Release, cluster: Cluster, run: Run
):
    run.once("redis", lambda: cluster.load("redis:7"))
    space.serve_redis()
    slow = ["{}", {"content": "Nothing.", "delay_ms": 3000}]
    space.serve(agent("hello", slow, replicas=2, sessions=REDIS, schedules=[YEARLY], access=READ))
    ready_pods(space, 2)
    (cron_job,) = space.kubectl.list("cronjobs")
    for number, job in enumerate(JOBS):
        source = f"--from=cronjob/{cron_job['metadata']['name']}"
        space.kubectl("create", "job", job, source)
        match number % 3:
            case 0:
                diptych.kubectl.kill("-l", diptych.operator)
            case 1:
                crash(space, ready_pods(space, 2)[0])
            case 2:
                space.kubectl.kill("-l", "batch.kubernetes.io/job-name")
    done = ("--for=condition=Complete", *(f"job/{job}" for job in JOBS))
    space.kubectl("wait", *done, "--timeout=240s", timeout=260)
    assert {e["content"] for e in asked(space)} == {YEARLY["message"]}
    assert len(asked(space)) == len(JOBS)
