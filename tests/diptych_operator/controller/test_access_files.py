"""The access files: there before pods, true while they run, and nobody else's."""

import asyncio
import json

import pytest
from support.agents import agent_object
from support.kubernetes import ErrorResponse
from support.operator_process import until
from support.reconciler_harness import NAME, Harness, served

from diptych_operator.controller import access_files, poll_schedule
from diptych_operator.controller.obstacles import BLOCKED_SECONDS
from diptych_operator.resources.kinds import AGENT, CONFIG_MAP, DEPLOYMENT, NAMESPACE

FILE = ("team", "coordinator-access")


@pytest.fixture
async def harness():
    async with served() as found:
        found.api.put(AGENT, agent_object())
        await found.until_done()
        found.api.settle()
        await found.until_done()
        yield found


def held(harness, name=FILE):
    return json.loads(harness.api.get(CONFIG_MAP, name)["data"]["platform.json"])


def says(harness, claim):
    """Whether the file says so; while it is replaced (deleted, and made anew) there is none."""
    return bool(harness.api.get(CONFIG_MAP, FILE)) and claim(held(harness))


def uid(harness):
    return harness.api.get(CONFIG_MAP, FILE)["metadata"]["uid"]


def foreign(**metadata):
    return {
        "metadata": {"namespace": FILE[0], "name": FILE[1], **metadata},
        "data": {"platform.json": "{}"},
    }


async def test_it_is_written_before_the_deployment():
    async with served() as harness:
        harness.api.put(AGENT, agent_object())
        await harness.reconcile()
        paths = [path.split("/")[-1] for _, path, _ in harness.api.writes]
        assert paths[:2] == ["configmaps", "configmaps"]
        assert paths.index("coordinator") > 1
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


async def test_an_operator_that_starts_knows_all_callers_before_it_reconciles_them(harness):
    harness.api.put(AGENT, agent_object("neighbour", agents=[{"name": "coordinator"}]))
    await harness.until_done()
    assert held(harness)["agents"] == ["team/neighbour"]
    later = Harness(harness.api, harness.client)
    await later.observe()
    await later.issuer.refresh()
    harness.api.writes.clear()
    await later.reconciler.reconcile(NAME)
    await later.access_files.look(NAME)
    assert harness.api.writes == []
    assert held(harness)["agents"] == ["team/neighbour"]


async def test_a_namespace_that_gets_the_label_is_let_in_soon(harness, monkeypatch):
    """Only a change can cause a look."""
    monkeypatch.setattr(access_files, "PERIOD", 1000.0)
    monkeypatch.setattr(access_files, "TICK", 0.01)
    selector = {"matchLabels": {"trusted": "yes"}}
    allowed = {"from": "Selector", "selector": selector}
    harness.api.put(AGENT, agent_object(allowedNamespaces=allowed))
    harness.api.put(NAMESPACE, {"metadata": {"name": "other"}})
    peer = [{"name": "coordinator", "namespace": "team"}]
    harness.api.put(AGENT, agent_object("far", "other", agents=peer))
    await harness.until_done()
    assert held(harness)["agents"] == []
    task = asyncio.create_task(harness.access_files.run())
    await asyncio.sleep(0.05)
    labels = {"trusted": "yes"}
    harness.api.put(NAMESPACE, {"metadata": {"name": "other", "labels": labels}})
    await harness.reconcile(("other", "far"))
    await until(lambda: says(harness, lambda file: file["agents"] == ["other/far"]))
    task.cancel()


async def test_rotated_keys_reach_every_file_and_roll_no_pod(harness, monkeypatch):
    monkeypatch.setattr(access_files, "PERIOD", 1000.0)
    monkeypatch.setattr(access_files, "TICK", 0.01)
    before = harness.api.get(DEPLOYMENT, NAME)
    task = asyncio.create_task(harness.access_files.run())
    await asyncio.sleep(0.05)
    harness.api.keys = {"keys": [{"kid": "2"}]}
    await harness.issuer.refresh()
    keys = {"keys": [{"kid": "2"}]}
    await until(lambda: says(harness, lambda file: file["issuers"][0]["jwks"] == keys))
    task.cancel()
    await harness.until_done()
    assert harness.api.get(DEPLOYMENT, NAME) == before


async def test_one_that_is_as_it_should_be_is_left_alone(harness):
    first = uid(harness)
    harness.api.writes.clear()
    for _ in range(3):
        await harness.access_files.look(NAME)
    harness.access_files.forget(NAME)  # as after a restart
    await harness.access_files.look(NAME)
    assert (harness.api.writes, uid(harness)) == ([], first)


@pytest.mark.parametrize("has_restarted", [False, True])
async def test_one_that_somebody_has_edited_is_replaced(harness, has_restarted):
    """It says who is let in: the digest alone would not show it, as the data cannot be read."""
    good = held(harness)
    wrong = {"issuers": [], "grants": [], "agents": ["evil/agent"]}
    data = {"platform.json": json.dumps(wrong)}
    harness.api.edit(CONFIG_MAP, FILE, lambda content: content.update(data=data))
    if has_restarted:
        harness.access_files.forget(NAME)
    await harness.access_files.look(NAME)
    assert held(harness) == good


def deny_new_ones(harness):
    def before(request, content):
        if request.method == "POST" and request.path.endswith("/configmaps"):
            raise ErrorResponse(403, "configmaps is forbidden: exceeded quota: q")

    harness.api.before = before


async def test_an_old_one_stays_while_a_new_one_is_denied_and_the_status_says_so(harness):
    first = uid(harness)
    harness.api.keys = {"keys": [{"kid": "2"}]}
    await harness.issuer.refresh()
    deny_new_ones(harness)
    for _ in range(2):
        await harness.access_files.look(NAME)
    assert len(harness.queue) == 1
    assert uid(harness) == first
    harness.api.edit(AGENT, NAME, lambda agent: agent["spec"].update(replicas=2))
    assert await harness.reconcile() == BLOCKED_SECONDS
    assert harness.conditions()["Progressing"] == ("False", "Denied")
    assert harness.api.get(DEPLOYMENT, NAME)["spec"]["replicas"] == 2
    harness.api.before = lambda *_: None
    await harness.until_done()
    assert harness.conditions()["Progressing"][1] != "Denied"
    assert held(harness)["issuers"][0]["jwks"] == {"keys": [{"kid": "2"}]}


async def test_one_that_somebody_has_edited_goes_though_a_new_one_is_denied(harness, caplog):
    """Pods that start meanwhile wait; else they would let in whom that somebody likes."""
    harness.api.edit(CONFIG_MAP, FILE, lambda content: content.update(data={"platform.json": "{}"}))
    deny_new_ones(harness)
    await harness.access_files.look(NAME)
    assert harness.api.get(CONFIG_MAP, FILE) is None
    assert "its access file is gone, and cannot be made: configmaps is" in caplog.messages[-1]
    assert len(harness.queue) == 1
    assert await harness.reconcile() == BLOCKED_SECONDS
    assert harness.conditions()["Progressing"] == ("False", "Denied")


async def test_one_that_was_deleted_is_made_again(harness):
    harness.api.remove(CONFIG_MAP, FILE)
    await harness.access_files.look(NAME)
    assert held(harness)


async def test_one_of_somebody_else_is_left_alone_and_said(harness):
    harness.api.remove(CONFIG_MAP, FILE)
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "1", "controller": True}
    harness.api.put(CONFIG_MAP, foreign(ownerReferences=[owner]))
    await harness.access_files.look(NAME)
    assert await harness.reconcile() == BLOCKED_SECONDS
    assert harness.conditions()["Accepted"] == ("False", "NameConflict")
    assert "coordinator-access" in harness.message("Accepted")
    assert held(harness) == {}
    harness.api.remove(CONFIG_MAP, FILE)
    await harness.reconcile()
    assert harness.conditions()["Accepted"] == ("True", "Accepted")
    assert held(harness)


async def test_a_name_that_somebody_else_has_taken_first_starts_no_pods():
    """Its content would say who is let in."""
    async with served() as harness:
        harness.api.put(CONFIG_MAP, foreign())
        harness.api.put(AGENT, agent_object())
        assert await harness.reconcile() == BLOCKED_SECONDS
        assert harness.conditions()["Accepted"] == ("False", "NameConflict")
        assert harness.names(DEPLOYMENT) == []


async def test_one_that_an_admission_policy_keeps_from_the_operator_is_somebody_elses(harness):
    def refuse(request, content):
        if request.method == "DELETE":
            raise ErrorResponse(422, "This object is not the operator's")

    harness.api.before = refuse
    await harness.access_files.look(NAME)
    assert await harness.reconcile() == BLOCKED_SECONDS
    assert harness.conditions()["Accepted"] == ("False", "NameConflict")


async def test_one_in_a_namespace_that_another_operator_serves_is_left_alone(harness):
    harness.api.remove(CONFIG_MAP, FILE)
    harness.claims.holds = lambda namespace: False
    await harness.access_files.look(NAME)
    assert harness.api.get(CONFIG_MAP, FILE) is None


async def test_one_of_a_former_agent_of_that_name_is_replaced():
    async with served() as harness:
        owner = {"apiVersion": "diptych.dev/v1alpha1", "kind": "Agent", "name": "coordinator"}
        harness.api.put(
            CONFIG_MAP, foreign(ownerReferences=[{**owner, "uid": "gone", "controller": True}])
        )
        harness.api.put(AGENT, agent_object())
        await harness.until_done()
        assert held(harness)["issuers"]


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


async def test_an_agent_that_is_open_has_none():
    async with served() as harness:
        harness.api.keys = {"keys": []}
        harness.api.put(AGENT, agent_object(access={"mode": "open"}))
        await harness.until_done()
        assert harness.names(DEPLOYMENT) == ["coordinator"]
        assert harness.api.get(CONFIG_MAP, FILE) is None
        assert harness.conditions()["AccessOpen"] == ("True", "AccessOpen")


async def test_an_unavailable_api_gets_the_pause_that_it_asks_for(harness, monkeypatch):
    pauses = []

    async def sleep(seconds):
        pauses.append(seconds)
        raise asyncio.CancelledError

    def before(request, content):
        raise ErrorResponse(429, "slow down", {"Retry-After": "7"})

    harness.api.before = before
    monkeypatch.setattr(access_files, "PERIOD", 0.0)
    monkeypatch.setattr(poll_schedule, "MAX_PER_SECOND", float("inf"))
    monkeypatch.setattr(access_files.asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await harness.access_files.run()
    assert pauses == [7]
