"""Agents in a pool: they come, change, move and go while its pods run; a pod dies under load."""

import pytest
from harness.clusters import Cluster
from harness.kubectl import eventually
from harness.objects import agent, agent_pool, delegations
from harness.pods import crash
from harness.sharing import Run
from harness.space import Space
from harness.streams import Followed, following, streaming

REDIS = {"serviceRef": {"name": "redis"}}
IN_POOL = {"hosting": {"pool": "shared"}}
WORDS = " ".join(f"word{n}" for n in range(30))
SLOW = ["{}", {"content": WORDS, "chunk_ms": 400}]  # 12 s
POOL_PODS = "app.kubernetes.io/name=diptych-pool"


@pytest.fixture
def pooled(space: Space, cluster: Cluster, run: Run) -> Space:
    """A namespace with a Redis, and a pool of two pods."""
    run.once("redis", lambda: cluster.load("redis:7"))
    space.serve_redis()
    space.kubectl.apply(agent_pool("shared", replicas=2, redis=REDIS))
    space.kubectl("wait", "--for=condition=Ready", "agentpools/shared", "--timeout=120s")
    return space


def pool_pods(space: Space) -> list[tuple[str, int]]:
    """Name the pool's pods, each with how often it was restarted."""
    return sorted(
        (pod["metadata"]["uid"], pod["status"]["containerStatuses"][0]["restartCount"])
        for pod in space.kubectl.list("pods", POOL_PODS)
    )


@pytest.mark.long
def test_a_pool_serves_agents_that_come_change_and_go_and_outlives_its_pods(pooled: Space):
    _agents_come_change_and_go_while_the_pods_of_their_pool_run(pooled)
    _a_pod_of_a_pool_is_killed_under_load_and_the_other_goes_on(pooled)


@pytest.mark.long
def test_agents_move_into_a_pool_and_out_and_delegate_to_each_other(pooled: Space):
    _from_own_pods_to_a_pool_and_back_a_conversation_goes_on(pooled)
    _agents_in_and_outside_of_a_pool_delegate_to_each_other(pooled)


def _agents_come_change_and_go_while_the_pods_of_their_pool_run(pooled: Space) -> None:
    before = pool_pods(pooled)
    pooled.serve(*(agent(f"a{n}", ["{}", f"I am {n}."], **IN_POOL) for n in range(5)))
    for n in range(5):
        assert pooled.probe.ask(f"a{n}", "Who?").content == f"I am {n}."
    with streaming(pooled, "a0", 3) as streams:
        pooled.serve(agent("a1", ["{}", "I am new."], **IN_POOL))
        assert pooled.probe.ask("a1", "Who?").content == "I am new."
        pooled.kubectl.delete("agents.diptych.dev", "a2")
        told = streams.ended()
    assert [one["text"] for one in told] == ["I am 0."] * 3
    eventually(
        lambda: pooled.kubectl.get("agentpools", "shared")["status"]["agents"] == 4,
        seconds=60,
        what="the pool has four Agents",
    )
    assert pooled.probe.ask("a3", "Who?").content == "I am 3."
    assert pool_pods(pooled) == before
    assert pooled.kubectl.list("pods", "app.kubernetes.io/name=diptych-agent") == []


def _a_pod_of_a_pool_is_killed_under_load_and_the_other_goes_on(pooled: Space) -> None:
    pooled.serve(agent("talk", SLOW, **IN_POOL), agent("other", ["{}", "Hello!"], **IN_POOL))
    run = pooled.probe.request("http://talk:8000/v1/runs", {"input": "Go."}).json
    with following(pooled, "talk", run["id"]) as reader:
        crash(pooled, pooled.kubectl.list("pods", POOL_PODS)[0])
        got = Followed(**reader.ended())
    assert got.ids == list(range(1, len(got.ids) + 1))
    assert got.text == WORDS
    assert pooled.probe.ask("other", "Hi").content == "Hello!"


def _from_own_pods_to_a_pool_and_back_a_conversation_goes_on(pooled: Space) -> None:
    hello = ["{}", "Hello!"]
    pooled.serve(agent("talk", hello, sessions={"redis": REDIS}))
    assert pooled.probe.ask("talk", "One", session="s").content == "Hello!"
    pooled.serve(agent("talk", hello, sessions={"redis": REDIS}, **IN_POOL))
    eventually(
        lambda: pooled.kubectl.find("deployments", "talk") is None,
        seconds=60,
        what="its own pods go",
    )
    assert pooled.probe.ask("talk", "Two", session="s").content == "Hello!"
    pooled.serve(agent("talk", hello, sessions={"redis": REDIS}))
    assert pooled.probe.ask("talk", "Three", session="s").content == "Hello!"
    asked = [e for e in pooled.probe.events("talk", "s") if e["event_type"] == "user_message"]
    assert [e["content"] for e in asked] == ["One", "Two", "Three"]


def _agents_in_and_outside_of_a_pool_delegate_to_each_other(pooled: Space) -> None:
    ask = [delegations(inside="Go.", outside="Go."), "{}", "Both answered."]
    peers = [{"name": "inside"}, {"name": "outside"}]
    pooled.serve(
        agent("inside", ["{}", "In."], **IN_POOL),
        agent("outside", ["{}", "Out."]),
        agent("top", ask, agents=peers, **IN_POOL),
    )
    pooled.kubectl.wait_for_condition("top", "Degraded", "False", seconds=120)
    answer = pooled.probe.ask("top", "Ask both.", session="t")
    assert answer.content == "Both answered."
    events = pooled.probe.events("top", "t")
    results = [e["content"] for e in events if e["event_type"] == "delegation_response"]
    assert sorted(map(str, results)) == ["In.", "Out."]
