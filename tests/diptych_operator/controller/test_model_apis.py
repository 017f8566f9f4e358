"""ModelAPIs and the Agents that use them, at an API."""

import json

import pytest
from support.agents import agent_object, model_api_object
from support.kubernetes import ErrorResponse
from support.pools import pool_object
from support.reconciler_harness import NAME, served

from diptych_operator.resources.kinds import (
    AGENT,
    AGENT_POOL,
    CONFIG_MAP,
    DEPLOYMENT,
    MODEL_API,
    NAMESPACE,
    NETWORK_POLICY,
    PERSISTENT_VOLUME_CLAIM,
    POD_DISRUPTION_BUDGET,
    SERVICE,
    SERVICE_ACCOUNT,
    ObjectKey,
)
from diptych_operator.resources.labels import POOL_APP, selector_labels

API = ("platform", "house")
KEY = ObjectKey(MODEL_API, *API)
CHILD = ("platform", "house-model")
CHILDREN = (SERVICE_ACCOUNT, NETWORK_POLICY, SERVICE, POD_DISRUPTION_BUDGET, DEPLOYMENT)
SECRET = {"secretKeyRef": {"name": "models", "key": "api-key"}}
REF = {"apiRef": {"name": "house", "namespace": "platform"}, "name": "m"}
HOSTED = {"engine": "vllm", "image": "vllm:1", "storage": {"size": "1Gi"}}
WELL = {"status": "ready", "endpoint": {"is_ok": True, "reason": ""}, "models": ["m"], "notes": []}


@pytest.fixture
async def harness():
    async with served() as found:
        yield found


def put(harness, name="house", namespace="platform", **spec):
    spec = {"proxy": {"replicas": 2}, "allowedNamespaces": {"from": "All"}, **spec}
    harness.api.put(MODEL_API, model_api_object(name, namespace, apiKey=SECRET, **spec))


def put_agent(harness, name="coordinator", namespace="team", model=REF):
    harness.api.put(AGENT, agent_object(name, namespace, model=model))


def conditions(harness, name=API):
    status = harness.api.get(MODEL_API, name)["status"]
    return {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]}


def model(harness, name="coordinator", namespace="team"):
    pod = template(harness, (namespace, name))["spec"]["volumes"][0]
    names = [one.get("configMap", {}).get("name", "") for one in pod["projected"]["sources"]]
    [mounted] = [one for one in names if one.startswith(f"{name}-model")]
    return json.loads(harness.api.get(CONFIG_MAP, (namespace, mounted))["data"]["model.json"])


def proxy_files(harness, name="house"):
    maps = [one["metadata"]["name"] for one in harness.api.all(CONFIG_MAP)]
    return sorted(one for one in maps if one.startswith(f"{name}-model-proxy"))


def proxy(harness, name="house"):
    [found] = proxy_files(harness, name)
    return json.loads(harness.api.get(CONFIG_MAP, ("platform", found))["data"]["proxy.json"])


def allowed(harness, name="house"):
    """Whose accounts the proxy lets in, by namespace."""
    *_, users = proxy(harness, name)["access"]["grants"]
    return [to["name"] for to in users["to"]]


def template(harness, name=NAME):
    return harness.api.get(DEPLOYMENT, name)["spec"]["template"]


async def test_an_agent_and_its_model_api_find_each_other_in_any_order(harness):
    put_agent(harness)
    await harness.until_done()
    assert harness.conditions()["ResolvedRefs"] == ("False", "ModelAPINotFound")
    assert harness.conditions()["Progressing"] == ("False", "ModelAPINotFound")
    assert harness.api.get(DEPLOYMENT, NAME) is None
    put(harness)
    await harness.until_done()
    assert all(harness.api.get(kind, CHILD) for kind in CHILDREN)
    assert harness.conditions()["ResolvedRefs"] == ("True", "ResolvedRefs")
    assert model(harness)["endpoint"] == "http://house-model.platform.svc:8000/v1"
    assert allowed(harness) == ["*/*"]
    assert harness.api.get(MODEL_API, API)["status"]["agents"] == 1


async def test_the_agents_of_a_pool_are_let_in_as_one_peer(harness):
    put(harness)
    harness.api.put(AGENT_POOL, pool_object())
    for name in ("a", "b"):
        one = agent_object(name, "team", model=REF, hosting={"pool": "shared"})
        harness.api.put(AGENT, one)
    await harness.until_done()
    *_, users = harness.api.get(NETWORK_POLICY, CHILD)["spec"]["ingress"]
    assert [one["podSelector"]["matchLabels"] for one in users["from"]] == [
        selector_labels("shared", POOL_APP)
    ]


async def test_an_endpoint_is_moved_without_a_new_pod(harness):
    put(harness)
    put_agent(harness)
    put(harness, "direct", "team", proxy=None)
    harness.api.edit(MODEL_API, ("team", "direct"), lambda one: one["spec"].pop("proxy"))
    put_agent(harness, "near", model={"apiRef": {"name": "direct"}, "name": "m"})
    await harness.until_done()
    pods = [template(harness), template(harness, ("team", "near")), template(harness, CHILD)]
    for name in (API, ("team", "direct")):
        harness.api.edit(
            MODEL_API, name, lambda one: one["spec"].update(endpoint="http://10.0.0.9:81/v1")
        )
    await harness.until_done()
    assert model(harness, "near")["endpoint"] == "http://10.0.0.9:81/v1"
    assert proxy(harness)["spec"]["endpoint"] == "http://10.0.0.9:81/v1"
    assert pods == [
        template(harness),
        template(harness, ("team", "near")),
        template(harness, CHILD),
    ]
    for name in (("team", "near"), CHILD):  # requests under way may be at either
        egress = json.dumps(harness.api.get(NETWORK_POLICY, name)["spec"]["egress"])
        assert "10.0.0.9/32" in egress
        assert '"port": 443' in egress


async def test_pods_read_of_another_key_only_once_they_mount_it(harness):
    put(harness)
    put(harness, "direct", "team")
    for field in ("proxy", "allowedNamespaces"):
        harness.api.edit(
            MODEL_API, ("team", "direct"), lambda one, field=field: one["spec"].pop(field)
        )
    put_agent(harness, model={"apiRef": {"name": "direct"}, "name": "m"})
    await harness.until_done()
    harness.api.settle()
    await harness.until_done()
    before, files = model(harness), proxy_files(harness)
    other = {"secretKeyRef": {"name": "other", "key": "api-key"}}
    for name in (API, ("team", "direct")):
        harness.api.edit(MODEL_API, name, lambda one: one["spec"].update(apiKey=other))
    await harness.until_done()
    assert before["apiKey"] == {"file": "secrets/models/api-key"}
    assert model(harness)["apiKey"] == {"file": "secrets/other/api-key"}
    former = [one for one in harness.api.all(CONFIG_MAP) if "model.json" in one.get("data", {})]
    assert len(former) == 2  # pods of before may still run
    assert set(files) < set(proxy_files(harness))
    harness.api.settle()
    await harness.until_done()
    assert len(proxy_files(harness)) == 1
    assert not set(files) & set(proxy_files(harness))


async def test_an_agent_that_it_does_not_let_in_keeps_what_it_had(harness):
    put(harness)
    put_agent(harness)
    await harness.until_done()
    before = model(harness)
    selector = {"matchLabels": {"kubernetes.io/metadata.name": "blue"}}
    put(harness, allowedNamespaces={"from": "Selector", "selector": selector})
    await harness.until_done()
    assert harness.conditions()["ResolvedRefs"] == ("False", "ModelAPINotAllowed")
    assert allowed(harness) == ["platform/*"]
    assert model(harness) == before
    ingress = harness.api.get(NETWORK_POLICY, CHILD)["spec"]["ingress"]
    assert "coordinator" not in json.dumps(ingress)


async def test_labels_of_a_namespace_decide_when_they_change(harness):
    labels = {"kubernetes.io/metadata.name": "team"}
    harness.api.put(NAMESPACE, {"metadata": {"name": "team", "labels": labels}})
    selector = {"matchLabels": {"tier": "gold"}}
    put(harness, allowedNamespaces={"from": "Selector", "selector": selector})
    put_agent(harness)
    await harness.until_done()
    assert allowed(harness) == ["platform/*"]
    gold = {"metadata": {"name": "team", "labels": {**labels, "tier": "gold"}}}
    changed = harness.api.put(NAMESPACE, gold)
    assert KEY in harness.cache.put(NAMESPACE, changed)
    await harness.until_done()
    assert allowed(harness) == ["platform/*", "team/*"]


TEAM_ONLY = {
    "from": "Selector",
    "selector": {"matchLabels": {"kubernetes.io/metadata.name": "team"}},
}


async def test_the_proxy_of_a_fallback_lets_the_agent_in_too(harness):
    put(harness, "spare", default="small", allowedNamespaces=TEAM_ONLY)
    put(harness, fallbacks=[{"apiRef": {"name": "spare"}}])
    put_agent(harness)
    await harness.until_done()
    assert allowed(harness, "spare") == ["platform/*", "team/*"]
    put_agent(harness, "second")  # of a namespace that the proxy lets in already
    await harness.until_done()
    policy = harness.api.get(NETWORK_POLICY, ("platform", "spare-model"))
    assert '"app.kubernetes.io/instance": "second"' in json.dumps(policy["spec"]["ingress"])
    assert harness.api.get(MODEL_API, ("platform", "spare"))["status"]["agents"] == 2
    harness.api.edit(
        MODEL_API, ("platform", "spare"), lambda one: one["spec"].update(default="tiny")
    )
    await harness.until_done()
    assert model(harness)["fallbacks"][0]["name"] == "tiny"


async def test_a_new_agent_queues_the_proxy_of_the_fallback(harness):
    put(harness, "spare", default="small", allowedNamespaces=TEAM_ONLY)
    put(harness, fallbacks=[{"apiRef": {"name": "spare"}}])
    await harness.until_done()
    put_agent(harness)
    await harness.observe()
    for _ in range(len(harness.queue)):
        harness.queue._queue.popleft()
    await harness.reconciler.reconcile(NAME)
    assert ObjectKey(MODEL_API, "platform", "spare") in harness.queue._queue


async def test_children_are_put_right_and_go_when_they_are_not_needed(harness):
    put(harness, hosted=HOSTED)
    harness.api.edit(MODEL_API, API, lambda one: one["spec"].pop("endpoint"))
    await harness.until_done()
    for kind in CHILDREN:
        harness.api.remove(kind, CHILD)
    [file] = proxy_files(harness)
    harness.api.edit(
        CONFIG_MAP, ("platform", file), lambda one: one.update(data={"proxy.json": "{}"})
    )
    await harness.until_done()
    assert all(harness.api.get(kind, CHILD) for kind in CHILDREN)
    assert allowed(harness) == ["*/*"]
    server = ("platform", "house-llm")
    assert harness.api.get(PERSISTENT_VOLUME_CLAIM, server)
    for field in ("proxy", "allowedNamespaces"):
        harness.api.edit(MODEL_API, API, lambda one, field=field: one["spec"].pop(field))
    await harness.until_done()
    assert not any(harness.api.get(kind, CHILD) for kind in CHILDREN)
    assert proxy_files(harness) == []
    assert harness.api.get(DEPLOYMENT, server)
    url = harness.api.get(MODEL_API, API)["status"]["url"]
    assert url == "http://house-llm.platform.svc:8000/v1"


async def test_one_that_is_made_again_waits_for_what_is_left_of_the_former(harness):
    put(harness)
    await harness.until_done()
    harness.api.edit(SERVICE, CHILD, _owned_by_another_uid)
    await harness.until_done()
    assert conditions(harness)["Reconciling"] == ("True", "FormerOwner")
    harness.api.remove(SERVICE, CHILD)
    await harness.until_done()
    assert "Reconciling" not in conditions(harness) or harness.api.get(SERVICE, CHILD)


def _owned_by_another_uid(one):
    one["metadata"]["ownerReferences"][0]["uid"] = "former"


async def test_an_agent_and_a_model_api_may_share_a_name(harness):
    put(harness, namespace="team")
    put_agent(harness, "house", model={"apiRef": {"name": "house"}, "name": "m"})
    await harness.until_done()
    assert harness.api.get(DEPLOYMENT, ("team", "house"))
    assert harness.api.get(DEPLOYMENT, ("team", "house-model"))
    assert harness.conditions(("team", "house"))["Accepted"] == ("True", "Accepted")


ANSWERS = [
    ({}, ("Unknown", "NotAsked")),
    ({"a": WELL, "b": WELL}, ("True", "Ready")),
    ({"a": WELL, "b": {"refused": "refuses the operator's token"}}, ("Unknown", "TokenRefused")),
    (
        {"a": {**WELL, "endpoint": {"is_ok": False, "reason": "key_refused: HTTP 401"}}},
        ("False", "KeyRefused"),
    ),
    (
        {"a": {**WELL, "endpoint": {"is_ok": False, "reason": "unreachable: no"}}},
        ("False", "EndpointUnavailable"),
    ),
    ({"a": {**WELL, "notes": ["the budget cannot be counted"]}}, ("False", "ProxyImpaired")),
    ({"a": {"status": "ready"}}, ("Unknown", "NotAsked")),
]


@pytest.mark.parametrize(("answers", "ready"), ANSWERS)
async def test_ready_is_what_the_pods_of_the_proxy_say(harness, answers, ready):
    put(harness)
    await harness.until_done()
    assert conditions(harness)["Ready"] == ("False", "RollingOut")
    harness.api.settle()
    harness.cache.answers[KEY] = answers
    await harness.until_done()
    assert conditions(harness)["Ready"] == ready
    status = harness.api.get(MODEL_API, API)["status"]
    assert status["models"] == (["m"] if any("models" in one for one in answers.values()) else [])
    assert status["pods"] == "2/2"


async def test_a_missing_key_is_named_by_its_secret(harness):
    put(harness)
    await harness.until_done()
    harness.api.settle()
    reason = "key_missing: The model's API key is missing. Provide its secret."
    harness.cache.answers[KEY] = {"a": {**WELL, "endpoint": {"is_ok": False, "reason": reason}}}
    await harness.until_done()
    told = harness.api.get(MODEL_API, API)["status"]["advice"]
    assert told == "Pod a: The model's API key is missing. Provide its secret. See Secret models."


async def test_a_hosted_server_lists_its_models_itself_and_a_direct_endpoint_is_not_asked(harness):
    put(harness, hosted=HOSTED, proxy=None)
    for field in ("endpoint", "proxy", "allowedNamespaces"):
        harness.api.edit(MODEL_API, API, lambda one, field=field: one["spec"].pop(field))
    put(harness, "direct")
    for field in ("proxy", "allowedNamespaces"):
        harness.api.edit(
            MODEL_API, ("platform", "direct"), lambda one, field=field: one["spec"].pop(field)
        )
    await harness.until_done()
    harness.api.settle()
    harness.cache.answers[KEY] = {"a": {"data": [{"id": "qwen3"}]}}
    await harness.until_done()
    assert conditions(harness)["Ready"] == ("True", "Ready")
    assert harness.api.get(MODEL_API, API)["status"]["models"] == ["qwen3"]
    assert conditions(harness, ("platform", "direct"))["Ready"] == ("True", "NotProxied")


async def test_what_the_manifest_or_the_cluster_refuses_is_said(harness):
    put(harness, fallbacks=[{"name": "m", "endpoint": "https://x", "apiKey": SECRET}])
    await harness.until_done()
    assert conditions(harness)["Accepted"] == ("False", "FallbackHasKey")
    put(harness)
    harness.api.before = _deny_deployments
    await harness.observe()
    await harness.apis.reconcile(API)
    assert conditions(harness)["Stalled"] == ("True", "Denied")


def _deny_deployments(request, content):
    if "deployments" in request.path and request.method == "PATCH":
        raise ErrorResponse(403, "denied by a rule")


async def test_nothing_is_written_again_by_an_operator_that_starts(harness):
    put(harness, "spare", default="small")
    put(harness, fallbacks=[{"apiRef": {"name": "spare"}}])
    put_agent(harness)
    await harness.until_done()
    harness.api.writes.clear()
    later = type(harness)(harness.api, harness.client)
    await later.until_done()
    assert harness.api.writes == []
