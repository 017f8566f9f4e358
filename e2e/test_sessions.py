"""Whose conversations a Redis holds, and what becomes of them when their Agent is deleted."""

from typing import Any

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
def test_sessions_are_purged_with_their_agent_whose_deletion_does_not_wait_for_redis(
    stored: Space,
):
    purged = agent("talk", HELLO, sessions={**REDIS, "onDelete": "purge"})
    stored.serve(purged)
    stored.probe.ask("talk", "A secret.", session="one")
    key = key_of(stored)
    assert keys(stored, key)
    first = _job(stored)
    assert first["spec"]["suspend"] is True
    delete(stored)
    eventually(
        lambda: not keys(stored, key),
        seconds=60,
        what="the sessions are purged",
        otherwise=lambda: stored.kubectl("describe", "jobs"),
    )
    name = first["metadata"]["name"]
    stored.kubectl("wait", "--for=condition=Complete", f"job/{name}", "--timeout=30s")
    say(stored.kubectl("logs", f"job/{name}").strip())
    stored.kubectl.delete("job", name)

    stored.serve(purged)
    name = _job(stored)["metadata"]["name"]
    stored.kubectl("scale", "deployment/redis", "--replicas=0")
    delete(stored)
    eventually(
        lambda: _job(stored)["status"].get("failed"),
        seconds=60,
        what="the Job has failed once, and is tried again",
    )
    stored.kubectl("scale", "deployment/redis", "--replicas=1")
    stored.kubectl("wait", "--for=condition=Complete", f"job/{name}", "--timeout=120s")


def _job(space: Space) -> dict[str, Any]:
    """Give the Job that purges the Agent's sessions, the only one."""
    (job,) = space.kubectl.list("jobs")
    return job
