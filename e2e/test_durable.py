"""Runs in Redis, on several pods: what outlives a pod, and what all of them share."""

import pytest
from harness.clusters import Cluster
from harness.objects import agent
from harness.pods import crash, owner, ready_pods
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


@pytest.mark.long
def test_streams_survive_the_death_of_a_pod_and_are_not_cut_while_pods_restart(shared: Space):
    shared.serve(agent("durable", SLOW, replicas=2, sessions=REDIS))
    ready_pods(shared, 2)
    run = shared.probe.request("http://durable:8000/v1/runs", {"input": "Go."}).json
    with following(shared, "durable", run["id"]) as reader:
        crash(shared, owner(shared, "durable", seconds=10))
        got = Followed(**reader.ended())
    assert got.ids == list(range(1, len(got.ids) + 1))
    assert got.text == WORDS
    assert got.types.count("owner_changed") == 1
    assert got.types[-2:] == ["agent_response", "completed"]

    ready_pods(shared, 2)
    with streaming(shared, "durable", 20) as streams:
        shared.kubectl("rollout", "restart", "deployment/durable")
        told = streams.ended()
    assert [one for one in told if one != {"text": WORDS, "ended": True, "wrong": ""}] == []
    assert len(told) == 20


@pytest.mark.long
def test_one_conversation_is_held_over_all_replicas_and_outlives_them(shared: Space):
    shared.serve(agent("talk", HELLO, sessions=REDIS))
    shared.kubectl("scale", "agents.diptych.dev/talk", "--replicas=3")
    for number, pod in enumerate(ready_pods(shared, 3)):
        url = f"http://{pod['status']['podIP']}:8000/v1/chat/completions"
        body = {"messages": [{"role": "user", "content": f"Question {number}"}]}
        answer = shared.probe.request(url, body, headers={"x-session-id": "one"}, agent="talk")
        assert answer.content == "Hello!"
    shared.kubectl("scale", "agents.diptych.dev/talk", "--replicas=1")
    ready_pods(shared, 1)
    assert shared.probe.ask("talk", "Question 3", session="one").content == "Hello!"
    asked = [e for e in shared.probe.events("talk", "one") if e["event_type"] == "user_message"]
    assert [e["content"] for e in asked] == [f"Question {n}" for n in range(4)]
