"""A schedule starts its runs by a CronJob, whose pods may ask their Agent alone."""

from harness.kubectl import eventually
from harness.objects import agent
from harness.space import Space

EACH_MINUTE = {"name": "each", "cron": "* * * * *", "message": "What's new for $(JOB_NAME)?"}


def test_each_job_of_a_schedule_starts_one_run(space: Space):
    made = agent("hello", ["{}", "Nothing."], schedules=[EACH_MINUTE])
    made["spec"]["access"] = {
        "grants": [{"to": [{"serviceAccount": {"name": "default"}}], "may": ["read"]}]
    }
    space.serve(made)

    def started() -> bool:
        [found] = space.kubectl.get("agent", "hello")["status"]["schedules"]
        assert found.get("lastResult") != "Failed"
        return found.get("lastResult") == "Started" and found.get("lastEnd") == "completed"

    eventually(started, seconds=150, what="a Job has started a run, and its end is told")
    asked = [e for e in space.probe.events("hello") if e["event_type"] == "user_message"]
    assert {e["content"] for e in asked} == {EACH_MINUTE["message"]}
    account = f"serviceaccount:{space.name}/hello.schedules"
    assert {e["metadata"]["subject"] for e in asked} == {account}
    made["spec"]["schedules"] = []
    space.kubectl.apply(made)
    eventually(lambda: not space.kubectl.list("cronjobs"), seconds=30, what="no CronJob is left")
