"""Whose conversations a Redis holds, and what becomes of them when their Agent is deleted."""

import pytest
from harness.clusters import Cluster
from harness.kubectl import eventually
from harness.objects import agent
from harness.sharing import Run
from harness.space import Space
from harness.telling import say

HELLO = ["{}", "Hello!"]
REDIS = {"redis": {"serviceRef": {"name": "redis"}}}


@pytest.fixture
def stored(space: Space, cluster: Cluster, run: Run) -> Space:
    """A namespace with a Redis in it."""
    run.once("redis", lambda: cluster.load("redis:7"))
    space.serve_redis()
    return space


def keys(space: Space, agent_key: str) -> list[str]:
    told = space.kubectl("exec", "deployment/redis", "--", "redis-cli", "KEYS", f"*{agent_key}*")
    return told.split()


def key_of(space: Space) -> str:
    return str(space.kubectl.get("agents.diptych.dev", "talk")["status"]["sessions"])


def delete(space: Space) -> None:
    """Delete the Agent, which waits for nothing."""
    space.kubectl("delete", "agents.diptych.dev", "talk", timeout=10)
    eventually(
        lambda: not space.kubectl.list("pods", "app.kubernetes.io/instance=talk"),
        seconds=90,
        what="its pod is gone",
    )


@pytest.mark.long
def test_another_agent_of_a_name_reads_its_conversations_only_if_it_adopts_them(stored: Space):
    stored.serve(agent("talk", HELLO, sessions=REDIS))
    stored.probe.ask("talk", "A secret.", session="one")
    first = key_of(stored)
    delete(stored)
    stored.serve(agent("talk", HELLO, sessions=REDIS))
    assert key_of(stored) != first
    assert stored.probe.events("talk", "one") == []
    stored.kubectl.apply(agent("talk", HELLO, sessions={**REDIS, "adopt": first}))
    eventually(lambda: key_of(stored) == first, seconds=20, what="it adopts")
    stored.kubectl("rollout", "status", "deployment/talk", "--timeout=90s")

    def read() -> list[str]:
        events = stored.probe.events("talk", "one")
        return [event["content"] for event in events if event["event_type"] == "user_message"]

    eventually(lambda: read() == ["A secret."], seconds=30, what="it reads what it adopted")


@pytest.mark.long
def test_sessions_are_purged_with_their_agent(stored: Space):
    purged = {**REDIS, "onDelete": "purge"}
    stored.serve(agent("talk", HELLO, sessions=purged))
    stored.probe.ask("talk", "A secret.", session="one")
    key = key_of(stored)
    assert keys(stored, key)
    (job,) = stored.kubectl.list("jobs")
    assert job["spec"]["suspend"] is True
    delete(stored)
    eventually(
        lambda: not keys(stored, key),
        seconds=60,
        what="the sessions are purged",
        otherwise=lambda: stored.kubectl("describe", "jobs"),
    )
    name = job["metadata"]["name"]
    stored.kubectl("wait", "--for=condition=Complete", f"job/{name}", "--timeout=30s")
    say(stored.kubectl("logs", f"job/{name}").strip())


@pytest.mark.long
def test_the_deletion_of_an_agent_does_not_wait_for_its_redis(stored: Space):
    stored.serve(agent("talk", HELLO, sessions={**REDIS, "onDelete": "purge"}))
    stored.kubectl("scale", "deployment/redis", "--replicas=0")
    delete(stored)

    def tried() -> bool:
        (job,) = stored.kubectl.list("jobs")
        return bool(job["status"].get("failed"))

    eventually(tried, seconds=60, what="the Job has failed once, and is tried again")
    stored.kubectl("scale", "deployment/redis", "--replicas=1")
    (job,) = stored.kubectl.list("jobs")
    name = job["metadata"]["name"]
    stored.kubectl("wait", "--for=condition=Complete", f"job/{name}", "--timeout=120s")
