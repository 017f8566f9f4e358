"""The CronJobs of an Agent's schedules; the golden file has one in full."""

import json

import pytest
from support.agents import agent, child, children, observed

from diptych_operator.desired.access import TokenIssuer
from diptych_operator.desired.schedules import cron_job_name
from diptych_operator.resources.kinds import CONFIG_MAP, CRON_JOB
from diptych_operator.resources.owner import ManifestError

DAILY = {"name": "daily", "cron": "0 7 * * *", "message": "What is new?"}
SECRET = {"secretKeyRef": {"name": "hooks", "key": "github"}}
TRIGGER = {"name": "issue", "signature": "github", "secret": SECRET, "message": "body.title"}


def test_a_missed_time_starts_late_only_if_the_schedule_says_so():
    skipping = child(agent(schedules=[DAILY]), CRON_JOB)["spec"]
    assert skipping["startingDeadlineSeconds"] == 60
    assert skipping["timeZone"] == "Etc/UTC"
    once = child(agent(schedules=[{**DAILY, "missed": "once"}]), CRON_JOB)["spec"]
    assert "startingDeadlineSeconds" not in once


def test_an_agent_without_pods_has_no_scheduled_runs():
    assert not child(agent(schedules=[DAILY]), CRON_JOB)["spec"]["suspend"]
    assert child(agent(schedules=[DAILY], replicas=0), CRON_JOB)["spec"]["suspend"]


def test_kubernetes_replaces_nothing_in_a_message():
    given = agent(schedules=[{**DAILY, "message": "$(JOB_NAME) $$5 $(X)"}])
    pod = child(given, CRON_JOB)["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["args"][-1] == "$$(JOB_NAME) $$$$5 $$(X)"


def test_names_fit_and_differ():
    long = "a" * 63
    names = [cron_job_name(agent(a), s) for a, s in [("a-b", "c"), ("a", "b-c"), (long, long)]]
    assert len(set(names)) == 3
    assert max(map(len, names)) <= 52


def test_a_schedule_rolls_no_pods_and_its_account_may_ask():
    state = observed(issuer=TokenIssuer("https://cluster.example", ()))
    without, given = agent(triggers=[TRIGGER]), agent(triggers=[TRIGGER], schedules=[DAILY])
    manifest, other = (child(one, CONFIG_MAP, state) for one in (without, given))
    assert manifest == other
    assert json.loads(manifest["data"]["agent.yaml"])["spec"]["triggers"] == [TRIGGER]

    def askers(one):
        found = [c["data"] for c in children(one, state).to_apply if c["kind"] == "ConfigMap"]
        grants = json.loads(found[1]["platform.json"])["grants"]
        return [to["name"] for grant in grants for to in grant["to"] if grant["may"] == ["ask"]]

    assert askers(without) == ["team/coordinator"]
    assert askers(given) == ["team/coordinator", "team/coordinator.schedules"]


def test_what_ran_a_former_schedule_is_obsolete():
    before = agent(schedules=[DAILY, {**DAILY, "name": "other"}])
    live = tuple(one for one in children(before).to_apply if one["kind"] == "CronJob")
    assert len(live) == 2

    def obsolete(*schedules):
        found = children(agent(schedules=schedules), observed(cron_jobs=live)).obsolete
        return sorted(content["metadata"]["name"] for _, content, _ in found)

    assert obsolete(*before.schedules) == []
    assert obsolete(DAILY) == [cron_job_name(before, "other")]
    assert len(obsolete()) == 2


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"schedules": [{**DAILY, "cron": "0 0 31 2 *"}]}, r"schedules\[0\]: .*never run"),
        ({"schedules": [{**DAILY, "timeZone": "Mars/X"}]}, r"schedules\[0\]: .*Mars/X"),
        ({"triggers": [{**TRIGGER, "when": "body.x ="}]}, r"triggers\[0\].when: column"),
        ({"triggers": [{**TRIGGER, "message": "1 + 1"}]}, r"message: column 1: must be a string"),
        ({"triggers": [{**TRIGGER, "session": "true"}]}, r"session: .* string or a whole number"),
    ],
)
def test_what_the_crd_lets_through_is_rejected(spec, message):
    with pytest.raises(ManifestError, match=message) as error:
        children(agent(**spec))
    assert error.value.reason == "ScheduleInvalid"
