"""The ConfigMaps, which the operator may create and delete but not read."""

import asyncio

import pytest
from support.agents import agent_object
from support.kubernetes import ErrorResponse
from support.reconciler_harness import NAME, served

from diptych_operator.controller import config_maps, poll_schedule
from diptych_operator.controller.obstacles import BLOCKED_SECONDS
from diptych_operator.desired.resolved_manifest import FILE
from diptych_operator.resources.kinds import AGENT, CONFIG_MAP, DEPLOYMENT


@pytest.fixture
async def harness():
    async with served() as found:
        found.api.put(AGENT, agent_object())
        await found.until_done()
        found.api.settle()
        await found.until_done()
        yield found


def only(harness):
    [name] = harness.names(CONFIG_MAP)
    return "team", name


def foreign(name, **metadata):
    return {"metadata": {"namespace": name[0], "name": name[1], **metadata}, "data": {"a": "b"}}


def replace_by_foreign(harness, **metadata):
    """Put somebody else's ConfigMap in the place of the agent's."""
    name = only(harness)
    harness.api.remove(CONFIG_MAP, name)
    harness.api.put(CONFIG_MAP, foreign(name, **metadata))
    return name


async def test_one_that_was_deleted_is_created_again(harness):
    name = only(harness)
    held = harness.api.get(CONFIG_MAP, name)["data"]
    harness.api.remove(CONFIG_MAP, name)
    await harness.config_maps.restore(NAME)
    assert harness.api.get(CONFIG_MAP, name)["data"] == held


async def test_one_that_exists_is_looked_at_and_nothing_is_written(harness):
    before = harness.api.get(CONFIG_MAP, only(harness))
    asked = []
    harness.api.before = lambda request, content: asked.append(
        (request.method, request.query.get("dryRun"))
    )
    harness.api.writes.clear()
    for _ in range(3):
        await harness.config_maps.restore(NAME)
    assert asked == [("DELETE", "All")] * 3
    assert harness.api.writes == []
    assert harness.api.get(CONFIG_MAP, only(harness)) == before


async def test_one_is_restored_where_a_webhook_allows_no_dry_runs(harness):
    name = only(harness)
    harness.api.remove(CONFIG_MAP, name)

    def before(request, content):
        if "dryRun" in request.query:
            raise ErrorResponse(400, "admission webhook does not support dry run")

    harness.api.before = before
    await harness.config_maps.restore(NAME)
    assert harness.api.get(CONFIG_MAP, name)


async def test_one_of_a_namespace_that_another_operator_serves_is_not_looked_at(harness):
    harness.claims.holds = lambda namespace: False
    harness.api.reads = 0
    await harness.config_maps.restore(NAME)
    assert harness.api.reads == 0


async def test_one_that_was_replaced_is_noticed(harness):
    await harness.config_maps.restore(NAME)
    replace_by_foreign(harness)
    await harness.config_maps.restore(NAME)
    assert harness.config_maps._hindered == {NAME}


async def test_a_foreign_one_is_reported_and_left_alone(harness):
    name = replace_by_foreign(harness)
    await harness.config_maps.restore(NAME)
    assert await harness.reconcile() == BLOCKED_SECONDS
    assert harness.conditions()["Accepted"] == ("False", "NameConflict")
    assert f"There is a ConfigMap called {name[1]} that" in harness.message("Accepted")
    assert harness.api.get(CONFIG_MAP, name)["data"] == {"a": "b"}
    harness.api.remove(CONFIG_MAP, name)
    await harness.reconcile()
    assert harness.conditions()["Accepted"] == ("True", "Accepted")
    assert FILE in harness.api.get(CONFIG_MAP, name)["data"]


async def test_a_name_that_somebody_else_has_taken_first_starts_no_pods(harness):
    name = only(harness)
    harness.api.remove(CONFIG_MAP, name)
    harness.api.remove(DEPLOYMENT, NAME)
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "1", "controller": True}
    harness.api.put(CONFIG_MAP, foreign(name, ownerReferences=[owner]))
    assert await harness.reconcile() == BLOCKED_SECONDS
    assert harness.conditions()["Accepted"] == ("False", "NameConflict")
    assert harness.names(DEPLOYMENT) == []
    assert harness.api.get(CONFIG_MAP, name)["data"] == {"a": "b"}


async def test_one_that_has_lost_its_owner_is_recreated(harness):
    name = only(harness)
    held = harness.api.get(CONFIG_MAP, name)["data"]
    harness.api.edit(CONFIG_MAP, name, lambda c: c["metadata"].pop("ownerReferences"))
    await harness.config_maps.restore(NAME)
    found = harness.api.get(CONFIG_MAP, name)
    assert found["metadata"]["ownerReferences"][0]["name"] == "coordinator"
    assert found["data"] == held


@pytest.mark.parametrize("has_lost_its_owner", [False, True])
async def test_one_that_a_rule_of_the_cluster_denies_is_said(harness, has_lost_its_owner):
    name = only(harness)
    if has_lost_its_owner:
        harness.api.edit(CONFIG_MAP, name, lambda c: c["metadata"].pop("ownerReferences"))
    else:
        harness.api.remove(CONFIG_MAP, name)

    def before(request, content):
        is_create = request.method == "POST" and request.path.endswith("/configmaps")
        is_taken = has_lost_its_owner and "dryRun" not in request.query
        if is_create and not is_taken:
            raise ErrorResponse(403, "configmaps is forbidden: exceeded quota: q")

    harness.api.before = before
    for _ in range(2):
        await harness.config_maps.restore(NAME)
    assert len(harness.queue) == 1
    assert bool(harness.api.get(CONFIG_MAP, name)) is has_lost_its_owner
    assert await harness.reconcile() == BLOCKED_SECONDS
    assert harness.conditions()["Progressing"] == ("False", "Denied")
    harness.api.before = lambda *_: None
    await harness.until_done()
    assert harness.conditions()["Progressing"] == ("False", "UpToDate")
    found = harness.api.get(CONFIG_MAP, name)
    assert found["metadata"]["ownerReferences"][0]["name"] == "coordinator"


async def test_where_no_deletion_may_be_tried_the_rest_is_applied_all_the_same(harness):
    def before(request, content):
        if request.method == "DELETE" and "/configmaps/" in request.path:
            raise ErrorResponse(403, "admission: ConfigMaps are not deleted here")

    harness.api.before = before
    await harness.config_maps.restore(NAME)
    await harness.until_done()
    assert harness.conditions()["Progressing"] == ("False", "UpToDate")


async def test_what_an_edited_deployment_calls_obsolete_is_deleted_only_if_it_is_the_agents(
    harness,
):
    harness.api.put(CONFIG_MAP, foreign(("team", "precious")))
    note = {"diptych.dev/former-configs": "precious"}
    harness.api.edit(DEPLOYMENT, NAME, lambda c: c["metadata"]["annotations"].update(note))
    await harness.until_done()
    assert harness.api.get(CONFIG_MAP, ("team", "precious"))


async def test_nothing_is_done_during_a_rollout_or_for_an_agent_that_is_going(harness):
    keeper = harness.config_maps
    harness.api.writes.clear()
    harness.config_maps._desired[NAME]["metadata"]["name"] = "another"
    await keeper.restore(NAME)
    harness.cache.remove(AGENT, harness.api.get(AGENT, NAME))
    await keeper.restore(NAME)
    assert harness.api.writes == []


async def test_many_that_were_deleted_at_once_are_restored_a_few_at_a_time(harness, monkeypatch):
    monkeypatch.setattr(config_maps, "PERIOD", 0.0)
    monkeypatch.setattr(poll_schedule, "MAX_PER_SECOND", float("inf"))
    for number in range(1, 100):
        harness.api.put(AGENT, agent_object(f"a{number}"))
    await harness.until_done()
    for name in harness.names(CONFIG_MAP):
        harness.api.remove(CONFIG_MAP, ("team", name))
    together, most = 0, 0

    async def count(*_):
        nonlocal together, most
        together += 1
        most = max(most, together)
        await asyncio.sleep(0.001)
        together -= 1

    whole = asyncio.Event()
    harness.api.before = count
    harness.api.after = lambda _: whole.set() if len(harness.names(CONFIG_MAP)) == 100 else None
    task = asyncio.create_task(harness.config_maps.run())
    async with asyncio.timeout(20):
        await whole.wait()
    task.cancel()
    assert 1 < most <= 8


async def test_an_unavailable_api_gets_the_pause_that_it_asks_for(harness, monkeypatch):
    pauses = []

    async def sleep(seconds):
        pauses.append(seconds)
        if len(pauses) == 2:
            raise asyncio.CancelledError

    answers = [ErrorResponse(429, "slow down", {"Retry-After": "7"}), ErrorResponse(503, "away")]

    def before(request, content):
        raise answers.pop(0)

    harness.api.before = before
    monkeypatch.setattr(config_maps, "PERIOD", 0.0)
    monkeypatch.setattr(poll_schedule, "MAX_PER_SECOND", float("inf"))
    monkeypatch.setattr(config_maps.asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await harness.config_maps.run()
    assert pauses == [7, config_maps.UNAVAILABLE_PAUSE]
