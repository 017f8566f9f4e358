"""The key of an Agent's sessions, and the Job that deletes them."""

import json
from dataclasses import replace

import pytest
from support.agents import PLATFORM, agent, child, children

from diptych_operator.desired.children import desired_children
from diptych_operator.desired.deployment import PodDefaults
from diptych_operator.desired.purge import purge_policy, started
from diptych_operator.desired.references import ObservedState
from diptych_operator.resources.kinds import CONFIG_MAP

FROM_SECRET = {"urlFrom": {"secretKeyRef": {"name": "redis", "key": "url"}}}
FROM_SERVICE = {"serviceRef": {"name": "redis"}}
SERVED = {"observedGeneration": 1}


def redis_agent(status=None, redis=FROM_SECRET, **sessions):
    return replace(agent(sessions={"redis": redis, **sessions}), status=status or {})


def manifest_sessions(given):
    text = child(given, CONFIG_MAP)["data"]["agent.yaml"]
    return json.loads(text)["spec"]["sessions"]


@pytest.mark.parametrize(
    ("given", "key"),
    [
        pytest.param(redis_agent(), "coordinator-1", id="a new Agent"),
        pytest.param(
            redis_agent({**SERVED, "sessions": "coordinator-1"}), "coordinator-1", id="a known one"
        ),
        pytest.param(redis_agent(SERVED, adopt="one-before"), "one-before", id="an adopting one"),
        pytest.param(redis_agent(SERVED, adopt="old/old-1"), "old/old-1", id="a renamed one"),
        pytest.param(
            redis_agent({**SERVED, "sessions": "one-before"}), "coordinator-1", id="no longer"
        ),
        pytest.param(
            replace(agent(), status=SERVED), "coordinator-1", id="one without a Redis until now"
        ),
    ],
)
def test_an_agent_has_the_sessions_that_it_began_or_adopts(given, key):
    assert given.sessions_key == key


def test_a_pod_reads_the_key_in_its_manifest():
    assert manifest_sessions(redis_agent(onDelete="purge"))["adopt"] == "coordinator-1"
    assert "onDelete" not in manifest_sessions(redis_agent(onDelete="purge"))


def test_sessions_that_are_kept_need_no_job():
    assert children(redis_agent()).purge_job is None
    assert children(agent()).purge_job is None


def test_the_job_waits_and_outlives_its_agent():
    job = children(redis_agent(onDelete="purge")).purge_job
    assert job["spec"]["suspend"] is True
    assert "ownerReferences" not in job["metadata"]
    container = job["spec"]["template"]["spec"]["containers"][0]
    assert container["args"] == [
        "purge-sessions",
        "team/coordinator",
        "--sessions",
        "coordinator-1",
    ]
    secret = {"secretKeyRef": {"name": "redis", "key": "url"}}
    assert container["env"] == [{"name": "REDIS_URL", "valueFrom": secret}]
    assert started(job)["spec"] == {"suspend": False}


def test_the_job_asks_the_service_of_a_redis():
    job = children(redis_agent(SERVED, FROM_SERVICE, onDelete="purge")).purge_job
    container = job["spec"]["template"]["spec"]["containers"][0]
    assert container["env"] == [{"name": "REDIS_URL", "value": "redis://redis.team:6379"}]


def test_no_service_of_an_agent_selects_the_job_s_pod():
    labels = children(redis_agent(onDelete="purge")).purge_job["spec"]["template"]["metadata"]
    assert "app.kubernetes.io/instance" not in labels["labels"]


def test_the_job_s_name_says_what_it_purges_and_fits():
    long = replace(redis_agent(onDelete="purge"), name="a" * 43 + "-" + "b" * 19)
    other = replace(redis_agent(onDelete="purge"), uid="coordinator-2")
    names = [children(one).purge_job["metadata"]["name"] for one in (long, other)]
    names.append(children(redis_agent(onDelete="purge")).purge_job["metadata"]["name"])
    assert len(set(names)) == 3
    assert all(len(name) <= 63 and "--" not in name for name in names)


def test_the_policy_lets_the_job_reach_redis_and_name_servers_only():
    job = children(redis_agent(onDelete="purge")).purge_job
    job["metadata"]["uid"] = "job-1"
    policy = purge_policy(job)
    assert policy["metadata"]["ownerReferences"][0]["uid"] == "job-1"
    ports = {p["port"] for rule in policy["spec"]["egress"] for p in rule["ports"]}
    assert ports == {53, 6379, 26379}
    wanted = policy["spec"]["podSelector"]["matchLabels"]
    assert wanted == job["spec"]["template"]["metadata"]["labels"]


def test_a_proxy_of_the_platform_s_template_does_not_keep_the_job_from_ending():
    template = {"spec": {"nodeSelector": {"a": "b"}, "containers": [{"name": "proxy"}]}}
    platform = replace(PLATFORM, pods=PodDefaults("image", template=template))
    job = desired_children(redis_agent(onDelete="purge"), ObservedState(), platform).purge_job
    pod = job["spec"]["template"]["spec"]
    assert [one["name"] for one in pod["containers"]] == ["agent"]
    assert pod["nodeSelector"] == {"a": "b"}
