"""Agents in a pool: they come, change, move and go, and their Services follow the pods."""

import json

import pytest
from support.agents import agent_object, mcp_server_object, model_api_object
from support.kubernetes import KubernetesApi
from support.pools import POOL, REDIS, pool_object, serve, with_pods
from support.reconciler_harness import Harness, served

from diptych_operator.resources.kinds import (
    AGENT,
    AGENT_POOL,
    CONFIG_MAP,
    DEPLOYMENT,
    MCP_SERVER,
    MODEL_API,
    NETWORK_POLICY,
    SERVICE,
    ObjectKey,
)
from diptych_operator.status.conditions import MissingDependency

IN_POOL = {"hosting": {"pool": "shared"}}
A, B = ("team", "a"), ("team", "b")
OWN = {"app.kubernetes.io/name": "diptych-agent", "app.kubernetes.io/instance": "a"}
POOLED = {"app.kubernetes.io/name": "diptych-pool", "app.kubernetes.io/instance": "shared"}


@pytest.fixture
async def pooled():
    """A pool with two pods, and Agent `a` in it, whose Service points there."""
    async with served() as harness:
        harness.api.put(AGENT_POOL, pool_object())
        put(harness.api, "a", **IN_POOL)
        await with_pods(harness)
        await serve(harness)
        yield harness


def put(api: KubernetesApi, name, generation=1, **spec):
    content = agent_object(name, **spec)
    content["metadata"]["generation"] = generation
    former = api.get(AGENT, ("team", name)) or {}
    return api.put(AGENT, {**content, "status": former.get("status") or {}})


def points_at(harness, name=A):
    service = harness.api.get(SERVICE, name)
    if service is None:
        return None
    return service["spec"]["selector"], service["spec"]["ports"][0]["targetPort"]


def document(harness, name="a"):
    for config_map in harness.api.all(CONFIG_MAP):
        if text := (config_map.get("data") or {}).get(f"{name}.json"):
            return json.loads(text)
    return None


def pool_template(harness):
    return harness.api.get(DEPLOYMENT, ("team", "shared-pool"))["spec"]["template"]


async def test_a_service_points_at_the_pool_once_every_ready_pod_serves_the_agent():
    async with served() as harness:
        harness.api.put(AGENT_POOL, pool_object())
        put(harness.api, "a", **IN_POOL)
        await with_pods(harness)
        assert harness.api.get(DEPLOYMENT, A) is None
        assert harness.conditions(A)["Ready"] == ("False", "RollingOut")
        await serve(harness, state="starting")
        await serve(harness, pods=["p-0"])
        assert points_at(harness) is None
        await serve(harness)
        assert points_at(harness) == (POOLED, 10000)
        assert harness.conditions(A)["Ready"] == ("True", "Ready")
        found = harness.api.get(AGENT, A)["status"]
        assert (found["pods"], found["url"]) == ("2/2", "http://a.team:8000")
        status = harness.api.get(AGENT_POOL, ("team", "shared"))["status"]
        assert (status["agents"], status["ports"], status["pods"]) == (1, {"a": 0}, "2/2")
        manifest = document(harness)["manifest"]
        assert manifest["spec"]["sessions"] == {"redis": REDIS, "adopt": found["sessions"]}


async def test_one_that_comes_changes_or_goes_leaves_the_pods_and_the_others_alone(pooled):
    template, other = pool_template(pooled), document(pooled, "a")
    put(pooled.api, "b", **IN_POOL)
    await pooled.until_done()
    await serve(pooled)
    assert points_at(pooled, B) == (POOLED, 10001)
    first = document(pooled, "b")
    put(pooled.api, "b", generation=2, instructions="New.", **IN_POOL)
    await pooled.until_done()
    changed = document(pooled, "b")
    assert changed["generation"] > first["generation"]
    assert changed["manifest"]["spec"]["instructions"] == "New."
    assert pooled.conditions(B)["Ready"] == ("False", "RollingOut")
    await serve(pooled, b="starting")
    assert pooled.conditions(B)["Available"][0] == "True"
    assert points_at(pooled, B) == (POOLED, 10001)
    await serve(pooled)
    assert pooled.conditions(B)["Ready"] == ("True", "Ready")
    pooled.api.remove(AGENT, B)
    await pooled.until_done()
    assert document(pooled, "b") is None
    assert pooled.handover.record(POOL).documents.keys() == {"a"}
    assert pool_template(pooled) == template
    assert document(pooled, "a") == other


async def test_from_own_pods_to_a_pool_the_service_switches_first_and_then_the_pods_go():
    async with served() as harness:
        harness.api.put(AGENT_POOL, pool_object())
        put(harness.api, "a", sessions={"redis": REDIS})
        await with_pods(harness)
        assert points_at(harness) == (OWN, 8000)
        former = harness.api.get(DEPLOYMENT, A)["spec"]
        put(harness.api, "a", generation=2, instructions="New.", **IN_POOL)
        await harness.until_done()
        await serve(harness, pods=["p-0"])
        assert points_at(harness) == (OWN, 8000)
        assert harness.api.get(DEPLOYMENT, A)["spec"] == former
        assert harness.conditions(A)["Reconciling"] == ("True", "MovesToPool")
        assert harness.conditions(A)["Ready"] == ("True", "Ready")
        await serve(harness)
        assert points_at(harness) == (POOLED, 10000)
        assert harness.api.get(DEPLOYMENT, A) is None
        assert harness.api.get(NETWORK_POLICY, A) is None
        assert harness.names(CONFIG_MAP) == ["shared-pool-0"]
        assert harness.conditions(A)["Progressing"] == ("False", "UpToDate")


async def test_from_a_pool_to_own_pods_the_pool_serves_until_those_are_ready(pooled):
    put(pooled.api, "a", generation=2)
    await pooled.until_done()
    assert points_at(pooled) == (POOLED, 10000)
    assert document(pooled) is not None
    pooled.api.settle()
    await pooled.until_done()
    assert points_at(pooled) == (OWN, 8000)
    assert document(pooled) is None
    assert pooled.conditions(A)["Ready"] == ("True", "Ready")


async def test_from_one_pool_to_another(pooled):
    pooled.api.put(AGENT_POOL, pool_object("other"))
    put(pooled.api, "a", generation=2, hosting={"pool": "other"})
    await pooled.until_done()
    assert points_at(pooled) == (POOLED, 10000)
    assert pooled.handover.record(POOL).documents.keys() == {"a"}


async def test_what_a_pod_cannot_start_is_the_agents_condition_with_its_words(pooled):
    put(pooled.api, "b", **IN_POOL)
    await pooled.until_done()
    await serve(pooled, b="failed", reason="spec.model: no such thing")
    assert pooled.conditions(B)["Ready"] == ("False", "ConfigError")
    assert "pod p-0: spec.model: no such thing" in pooled.message("Ready", B)
    assert pooled.conditions(A)["Ready"] == ("True", "Ready")
    assert points_at(pooled, B) is None


async def test_a_manifest_that_a_pool_cannot_serve_leaves_the_last_good_one(pooled):
    good = document(pooled)
    put(pooled.api, "a", generation=2, podTemplate={"spec": {}}, replicas=2, **IN_POOL)
    await pooled.until_done()
    assert pooled.conditions(A)["Accepted"] == ("False", "NotInPool")
    assert "spec.podTemplate, spec.replicas need pods of the Agent's own" in pooled.message(
        "Accepted", A
    )
    assert document(pooled) == good
    assert points_at(pooled) == (POOLED, 10000)


async def test_a_pool_that_is_missing_or_full_is_named():
    async with served() as harness:
        put(harness.api, "a", **IN_POOL)
        put(harness.api, "b", **IN_POOL)
        await harness.until_done()
        for kind in ("ResolvedRefs", "Progressing", "Ready"):
            assert harness.conditions(A)[kind] == ("False", "PoolNotFound")
        harness.api.put(AGENT_POOL, pool_object(maxAgents=1))
        await with_pods(harness)
        await serve(harness)
        assert points_at(harness) == (POOLED, 10000)
        assert harness.conditions(A)["ResolvedRefs"][0] == "True"
        for kind in ("ResolvedRefs", "Progressing", "Ready"):
            assert harness.conditions(B)[kind] == ("False", "PoolFull")
        harness.api.remove(AGENT, A)
        await harness.until_done()
        await serve(harness)
        await serve(harness)
        assert points_at(harness, B)[0] == POOLED


async def test_one_that_the_pool_does_not_have_says_why(pooled):
    put(pooled.api, "b", model={"apiRef": {"name": "house"}}, **IN_POOL)
    await pooled.until_done()
    assert document(pooled, "b") is None
    assert pooled.conditions(B)["Ready"] == ("False", "ModelAPINotFound")


async def test_advice_names_the_pods_of_the_pool(pooled):
    key = ObjectKey(AGENT, *A)
    pooled.cache.missing_dependencies[key] = [MissingDependency("model", "m", "away")]
    pooled.queue.add(key)
    await pooled.until_done()
    assert "-l app.kubernetes.io/instance=shared." in pooled.api.get(AGENT, A)["status"]["advice"]


async def test_a_callee_knows_pooled_callers_by_the_pools_account(pooled):
    put(pooled.api, "a", generation=2, agents=[{"name": "own"}, {"name": "b"}], **IN_POOL)
    put(pooled.api, "own")
    put(pooled.api, "b", **IN_POOL)
    await pooled.until_done()
    access = pooled.api.get(CONFIG_MAP, ("team", "own-access"))["data"]["platform.json"]
    known = ["team/a", {"name": "team/a", "pool": "team/shared-pool"}]
    assert json.loads(access)["agents"] == known
    assert document(pooled, "b")["access"]["agents"] == known
    egress = pooled.api.get(NETWORK_POLICY, ("team", "shared-pool"))["spec"]["egress"]
    to_b = {"protocol": "TCP", "port": 10001}
    assert any(rule["ports"] == [to_b] for rule in egress)


async def test_a_token_that_is_not_mounted_yet_rolls_the_pods_before_they_get_the_document(pooled):
    put(pooled.api, "own")
    former = document(pooled)
    put(pooled.api, "a", generation=2, agents=[{"name": "own"}], **IN_POOL)
    await pooled.until_done()
    volumes = {volume["name"]: volume for volume in pool_template(pooled)["spec"]["volumes"]}
    [source] = volumes["tokens"]["projected"]["sources"]
    assert source["serviceAccountToken"]["audience"] == "diptych.dev/team/own"
    assert document(pooled) == former
    pooled.api.settle()
    await pooled.until_done()
    assert document(pooled)["manifest"]["spec"]["agents"][0]["name"] == "own"
    template = pool_template(pooled)
    put(pooled.api, "a", generation=3, **IN_POOL)
    await pooled.until_done()
    assert "agents" not in document(pooled)["manifest"]["spec"]
    assert pool_template(pooled) == template


async def test_what_an_agent_uses_lets_in_the_pods_of_its_pool(pooled):
    ref = {"name": "house", "namespace": "platform"}
    house = model_api_object(proxy={"replicas": 1}, allowedNamespaces={"from": "All"})
    pooled.api.put(MODEL_API, house)
    pooled.api.put(MCP_SERVER, mcp_server_object("calc"))
    await pooled.until_done()
    tools = [{"name": "calc", "ref": {"name": "calc"}}]
    put(pooled.api, "a", generation=2, model={"apiRef": ref, "name": "m"}, tools=tools, **IN_POOL)
    await pooled.until_done()
    pooled.api.settle()
    await pooled.until_done()
    found = document(pooled)
    assert found["manifest"]["spec"]["tools"][0]["url"] == "http://calc-tools.team.svc:8000/mcp"
    token = "tokens/modelapi.platform.house"
    assert found["model"]["apiKey"] == {"file": token}
    [source] = next(
        volume["projected"]["sources"]
        for volume in pool_template(pooled)["spec"]["volumes"]
        if volume["name"] == "tokens"
    )
    wanted = "diptych.dev/platform/modelapi/house", token.partition("/")[2]
    token = source["serviceAccountToken"]
    assert (token["audience"], token["path"]) == wanted
    [proxy] = [
        one["data"]["proxy.json"]
        for one in pooled.api.all(CONFIG_MAP)
        if "proxy.json" in (one.get("data") or {})
    ]
    assert '"*/*"' in proxy  # also the pool's account
    for name in (("team", "calc-tools"), ("platform", "house-model")):
        policy = pooled.api.get(NETWORK_POLICY, name)
        peers = [peer for rule in policy["spec"]["ingress"] for peer in rule["from"]]
        assert POOLED in [peer["podSelector"]["matchLabels"] for peer in peers]
    egress = pooled.api.get(NETWORK_POLICY, ("team", "shared-pool"))["spec"]["egress"]
    assert "house" in json.dumps(egress)


async def test_an_operator_that_starts_anew_writes_nothing(pooled):
    again = Harness(pooled.api, pooled.client)
    pooled.api.writes.clear()
    await again.observe()
    record = again.handover.record(POOL)
    record.reports = pooled.handover.record(POOL).reports
    await again.until_done()
    assert pooled.api.writes == []


async def test_a_pool_that_is_deleted_takes_its_objects_along(pooled):
    pooled.api.remove(AGENT_POOL, ("team", "shared"))
    await pooled.until_done()
    assert pooled.api.get(DEPLOYMENT, ("team", "shared-pool")) is None
    assert pooled.conditions(A)["ResolvedRefs"] == ("False", "PoolNotFound")
