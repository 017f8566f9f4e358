"""Runs in Redis, on several pods: what outlives a pod, and what all of them share."""

from typing import Any

import pytest
from harness.clusters import Cluster
from harness.kubectl import AGENT_PODS, eventually
from harness.objects import agent
from harness.probe import Probe
from harness.sharing import Run
from harness.space import Space
from harness.streams import Followed, following, streaming

REDIS = {"redis": {"serviceRef": {"name": "redis"}}}
WORDS = " ".join(f"word{n}" for n in range(30))
SLOW = ["{}", {"content": WORDS, "chunk_ms": 400}]  # 12 s
HELLO = ["{}", "Hello!"]


@pytest.fixture
def shared(space: Space, cluster: Cluster, run: Run) -> Space:
    """A namespace with a Redis in it."""
    run.once("redis", lambda: cluster.load("redis:7"))
    space.serve_redis()
    return space


def pods(space: Space, count: int) -> list[dict[str, Any]]:
    """Give the agent's pods once exactly so many are ready."""

    def ready() -> list[dict[str, Any]]:
        found = space.kubectl.list("pods", AGENT_PODS)
        good = [p for p in found if _is_ready(p)]
        return good if len(good) == len(found) == count else []

    return eventually(ready, seconds=90, what=f"{count} pods are ready")


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions", ())
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _owner(space: Space, among: list[dict[str, Any]]) -> str:
    """Name the pod that has the one run that is live."""

    def found() -> str | None:
        for pod in among:
            name = str(pod["metadata"]["name"])
            inside = Probe(space.kubectl, name)  # the NetworkPolicy closes the port of metrics
            asked = inside.request("http://localhost:9090/metrics", agent="durable")
            if "diptych_live_runs 1.0" in asked.text:
                return name
        return None

    return eventually(found, seconds=10, what="a pod has the run")


@pytest.mark.long
def test_a_stream_survives_the_death_of_its_pod(shared: Space):
    shared.serve(agent("durable", SLOW, replicas=2, sessions=REDIS))
    both = pods(shared, 2)
    run = shared.probe.request("http://durable:8000/v1/runs", {"input": "Go."}).json
    with following(shared, "durable", run["id"]) as reader:
        shared.kubectl.kill(_owner(shared, both))
        got = Followed(**reader.ended())
    assert got.ids == list(range(1, len(got.ids) + 1))
    assert got.text == WORDS
    assert got.types.count("owner_changed") == 1
    assert got.types[-2:] == ["agent_response", "completed"]


@pytest.mark.long
def test_one_conversation_is_held_over_all_replicas_and_outlives_them(shared: Space):
    shared.serve(agent("talk", HELLO, sessions=REDIS))
    shared.kubectl("scale", "agents.diptych.dev/talk", "--replicas=3")
    for number, pod in enumerate(pods(shared, 3)):
        url = f"http://{pod['status']['podIP']}:8000/v1/chat/completions"
        body = {"messages": [{"role": "user", "content": f"Question {number}"}]}
        answer = shared.probe.request(url, body, headers={"x-session-id": "one"}, agent="talk")
        assert answer.content == "Hello!"
    shared.kubectl("scale", "agents.diptych.dev/talk", "--replicas=1")
    pods(shared, 1)
    assert shared.probe.ask("talk", "Question 3", session="one").content == "Hello!"
    asked = [e for e in shared.probe.events("talk", "one") if e["event_type"] == "user_message"]
    assert [e["content"] for e in asked] == [f"Question {n}" for n in range(4)]


@pytest.mark.long
def test_no_stream_is_cut_while_pods_restart(shared: Space):
    shared.serve(agent("busy", SLOW, replicas=2, sessions=REDIS))
    pods(shared, 2)
    with streaming(shared, "busy", 20) as streams:
        shared.kubectl("rollout", "restart", "deployment/busy")
        told = streams.ended()
    assert [one for one in told if one != {"text": WORDS, "ended": True, "wrong": ""}] == []
    assert len(told) == 20
