"""The ConfigMaps: the access file is there before pods, true while they run; none is taken over."""

import json

import pytest
from support.agents import agent_object
from support.kubernetes import ErrorResponse
from support.reconciler_harness import NAME, Harness, served

from diptych_operator.controller.obstacles import BLOCKED_SECONDS
from diptych_operator.resources.kinds import AGENT, CONFIG_MAP, DEPLOYMENT

FILE = ("team", "coordinator-access")


@pytest.fixture
async def harness():
    async with served() as found:
        found.api.put(AGENT, agent_object())
        await found.until_done()
        found.api.settle()
        await found.until_done()
        yield found


def held(harness):
    return json.loads(harness.api.get(CONFIG_MAP, FILE)["data"]["platform.json"])


def manifest(harness):
    [name] = harness.names(CONFIG_MAP)
    return "team", name


def foreign(name, **metadata):
    return {"metadata": {"namespace": name[0], "name": name[1], **metadata}, "data": {"a": "b"}}


async def work_off(harness):
    """Reconcile what is queued, and nothing else."""
    while len(harness.queue):
        key = await harness.queue.get()
        await harness.reconciler.reconcile(key.namespaced_name)
        harness.queue.done(key)


async def test_both_are_written_before_the_deployment():
    async with served() as harness:
        harness.api.put(AGENT, agent_object())
        await harness.reconcile()
        names = [path.split("/")[-1] for _, path, _ in harness.api.writes]
        assert names[1] == FILE[1]
        assert names.index(manifest(harness)[1]) == 0
    assert held(harness)["agents"] == []
    (cluster,) = held(harness)["issuers"]
    assert cluster["url"] == "https://cluster.example"
    assert cluster["audience"] == "diptych.dev/team/coordinator"
    owner = harness.api.get(CONFIG_MAP, FILE)["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"]) == ("Agent", "coordinator")


async def test_agents_that_delegate_to_it_may_call_and_no_others(harness):
    put, everybody = harness.api.put, {"from": "All"}
    put(AGENT, agent_object(allowedNamespaces=everybody))
    peer = [{"name": "coordinator", "namespace": "team"}]
    put(AGENT, agent_object("neighbour", agents=[{"name": "coordinator"}]))
    put(AGENT, agent_object("bystander"))
    put(AGENT, agent_object("far", "other", agents=peer))
    await harness.until_done()
    assert held(harness)["agents"] == ["other/far", "team/neighbour"]
    put(AGENT, agent_object())
    await harness.until_done()
    assert held(harness)["agents"] == ["team/neighbour"]
    harness.api.remove(AGENT, ("team", "neighbour"))
    await harness.until_done()
    assert held(harness)["agents"] == []


@pytest.mark.parametrize("change", ["comes", "goes", "is deleted"])
async def test_a_changed_caller_queues_the_agent_that_it_calls(harness, change):
    calling = agent_object("neighbour", agents=[{"name": "coordinator"}])
    if change != "comes":
        harness.api.put(AGENT, calling)
        await harness.until_done()
    cache, queue = harness.cache, harness.queue
    if change == "is deleted":
        gone = harness.api.get(AGENT, ("team", "neighbour"))
        harness.api.remove(AGENT, ("team", "neighbour"))
        affected = cache.remove(AGENT, gone)
    else:
        new = calling if change == "comes" else agent_object("neighbour")
        affected = cache.put(AGENT, harness.api.put(AGENT, new))
    for name in affected:
        queue.add(name)
    queue.start()
    await work_off(harness)
    assert held(harness)["agents"] == (["team/neighbour"] if change == "comes" else [])


async def test_an_operator_that_starts_knows_all_callers_before_it_reconciles_them(harness):
    harness.api.put(AGENT, agent_object("neighbour", agents=[{"name": "coordinator"}]))
    await harness.until_done()
    later = Harness(harness.api, harness.client)
    await later.observe()
    harness.api.writes.clear()
    await later.reconciler.reconcile(NAME)
    assert harness.api.writes == []
    assert held(harness)["agents"] == ["team/neighbour"]


async def test_rotated_keys_reach_every_file_and_roll_no_pod(harness):
    before = harness.api.get(DEPLOYMENT, NAME)
    harness.api.keys = {"keys": [{"kid": "2"}]}
    await harness.issuer.refresh()
    harness.queue.start()
    await work_off(harness)
    assert held(harness)["issuers"][0]["jwks"] == {"keys": [{"kid": "2"}]}
    await harness.until_done()
    assert harness.api.get(DEPLOYMENT, NAME) == before


@pytest.mark.parametrize("find", [lambda _: FILE, manifest], ids=["access", "manifest"])
@pytest.mark.parametrize("harm", ["deleted", "edited", "disowned", "replaced"])
async def test_one_that_somebody_has_changed_is_put_right(harness, find, harm):
    name = find(harness)
    good = harness.api.get(CONFIG_MAP, name)
    match harm:
        case "deleted":
            harness.api.remove(CONFIG_MAP, name)
        case "edited" if name == FILE:
            harness.api.edit(CONFIG_MAP, name, lambda c: c.update(data={"platform.json": "{}"}))
        case "disowned":
            harness.api.edit(CONFIG_MAP, name, lambda c: c["metadata"].pop("ownerReferences"))
        case _:
            wrong = {**good, "data": dict.fromkeys(good["data"], "{}")}
            harness.api.remove(CONFIG_MAP, name)
            harness.api.put(CONFIG_MAP, wrong)
    await harness.until_done()
    found = harness.api.get(CONFIG_MAP, name)
    assert found["data"] == good["data"]
    assert found["metadata"]["ownerReferences"] == good["metadata"]["ownerReferences"]


async def test_an_old_one_stays_while_a_new_one_is_denied_and_the_status_says_so(harness):
    def before(request, content):
        if request.method == "PATCH" and "/configmaps/" in request.path:
            raise ErrorResponse(403, "configmaps is forbidden: exceeded quota: q")

    harness.api.keys = {"keys": [{"kid": "2"}]}
    await harness.issuer.refresh()
    harness.api.before = before
    harness.api.edit(AGENT, NAME, lambda agent: agent["spec"].update(replicas=2))
    assert await harness.reconcile() == BLOCKED_SECONDS
    assert harness.conditions()["Progressing"] == ("False", "Denied")
    assert harness.api.get(DEPLOYMENT, NAME)["spec"]["replicas"] == 2
    harness.api.before = lambda *_: None
    await harness.until_done()
    assert harness.conditions()["Progressing"][1] != "Denied"
    assert held(harness)["issuers"][0]["jwks"] == {"keys": [{"kid": "2"}]}


@pytest.mark.parametrize("find", [lambda _: FILE, manifest], ids=["access", "manifest"])
async def test_one_of_somebody_else_is_left_alone_and_starts_no_pods(harness, find):
    name = find(harness)
    harness.api.remove(CONFIG_MAP, name)
    harness.api.remove(DEPLOYMENT, NAME)
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "1", "controller": True}
    harness.api.put(CONFIG_MAP, foreign(name, ownerReferences=[owner]))
    assert await harness.reconcile() == BLOCKED_SECONDS
    assert harness.conditions()["Accepted"] == ("False", "NameConflict")
    assert f"There is a ConfigMap called {name[1]} that" in harness.message("Accepted")
    assert harness.names(DEPLOYMENT) == []
    assert harness.api.get(CONFIG_MAP, name)["data"] == {"a": "b"}
    harness.api.remove(CONFIG_MAP, name)
    await harness.until_done()
    assert harness.conditions()["Accepted"] == ("True", "Accepted")
    assert harness.names(DEPLOYMENT) == ["coordinator"]


async def test_without_the_clusters_issuer_no_pod_starts_and_the_status_says_why():
    async with served() as harness:
        harness.api.keys = {"keys": []}
        harness.api.put(AGENT, agent_object())
        assert await harness.reconcile() == BLOCKED_SECONDS
        assert harness.conditions()["Progressing"] == ("False", "IssuerUnknown")
        assert "it holds no keys" in harness.message("Progressing")
        assert harness.names(DEPLOYMENT) == []
        harness.api.keys = {"keys": [{"kid": "1"}]}
        await harness.until_done()
        assert harness.names(DEPLOYMENT) == ["coordinator"]


async def test_an_agent_that_is_open_has_no_access_file():
    async with served() as harness:
        harness.api.keys = {"keys": []}
        harness.api.put(AGENT, agent_object(access={"mode": "open"}))
        await harness.until_done()
        assert harness.names(DEPLOYMENT) == ["coordinator"]
        assert harness.api.get(CONFIG_MAP, FILE) is None
        assert harness.conditions()["AccessOpen"] == ("True", "AccessOpen")
