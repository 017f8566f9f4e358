"""The ConfigMaps that the operator may make and delete, and not read."""

import asyncio

import pytest
from support.agents import agent_object
from support.kubernetes import Refused
from support.reconciling import NAME, served

from diptych_operator.controller import config_maps as configs
from diptych_operator.controller.config_maps import Configs
from diptych_operator.controller.work_queue import Due
from diptych_operator.desired.resolved_manifest import FILE
from diptych_operator.resources.kinds import AGENT, CONFIG_MAP, DEPLOYMENT


@pytest.fixture
async def setting():
    async with served() as found:
        found.api.put(AGENT, agent_object())
        await found.until_done()
        found.api.settle()
        await found.until_done()
        yield found


def looking_after(setting):
    return Configs(setting.cluster, setting.world, Due())


def only(setting):
    [name] = setting.names(CONFIG_MAP)
    return "team", name


def theirs(name, **metadata):
    return {"metadata": {"namespace": name[0], "name": name[1], **metadata}, "data": {"a": "b"}}


def squat(setting, **metadata):
    """Put somebody else's ConfigMap in the place of the agent's."""
    name = only(setting)
    setting.api.remove(CONFIG_MAP, name)
    setting.api.put(CONFIG_MAP, theirs(name, **metadata))
    return name


async def test_one_that_was_deleted_is_made_again(setting):
    name = only(setting)
    held = setting.api.get(CONFIG_MAP, name)["data"]
    setting.api.remove(CONFIG_MAP, name)
    await looking_after(setting).look_after(NAME)
    assert setting.api.get(CONFIG_MAP, name)["data"] == held


async def test_one_that_is_there_is_left_alone_and_looked_into_once(setting):
    before = setting.api.get(CONFIG_MAP, only(setting))
    asked = []
    setting.api.before = lambda request, content: asked.append(request.method)
    keeper = looking_after(setting)
    for _ in range(3):
        await keeper.look_after(NAME)
    assert asked == ["POST", "DELETE", "POST", "POST"]  # the deletion is shown, not carried out
    assert setting.api.get(CONFIG_MAP, only(setting)) == before


async def test_one_that_was_exchanged_later_is_found_out_in_time(setting):
    now = [0.0]
    keeper = Configs(setting.cluster, setting.world, Due(), lambda: now[0])
    await keeper.look_after(NAME)
    squat(setting)
    await keeper.look_after(NAME)
    assert setting.world.squatted == set()
    now[0] += configs.TRUST
    await keeper.look_after(NAME)
    assert setting.world.squatted == {NAME}


async def test_one_of_somebody_else_is_told_and_left_alone(setting):
    name = squat(setting)
    await looking_after(setting).look_after(NAME)
    assert await setting.reconcile() == 30
    assert setting.conditions()["Accepted"] == ("False", "NameConflict")
    assert f"There is a ConfigMap called {name[1]} that" in setting.message("Accepted")
    assert setting.api.get(CONFIG_MAP, name)["data"] == {"a": "b"}
    setting.api.remove(CONFIG_MAP, name)
    await setting.reconcile()
    assert setting.conditions()["Accepted"] == ("True", "Accepted")
    assert FILE in setting.api.get(CONFIG_MAP, name)["data"]


async def test_a_name_that_somebody_else_has_taken_first_starts_no_pods(setting):
    name = only(setting)
    setting.api.remove(CONFIG_MAP, name)
    setting.api.remove(DEPLOYMENT, NAME)
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "1", "controller": True}
    setting.api.put(CONFIG_MAP, theirs(name, ownerReferences=[owner]))
    assert await setting.reconcile() == 30
    assert setting.conditions()["Accepted"] == ("False", "NameConflict")
    assert setting.names(DEPLOYMENT) == []
    assert setting.api.get(CONFIG_MAP, name)["data"] == {"a": "b"}


async def test_one_that_has_lost_its_owner_is_made_anew(setting):
    name = only(setting)
    held = setting.api.get(CONFIG_MAP, name)["data"]
    setting.api.edit(CONFIG_MAP, name, lambda c: c["metadata"].pop("ownerReferences"))
    await looking_after(setting).look_after(NAME)
    found = setting.api.get(CONFIG_MAP, name)
    assert found["metadata"]["ownerReferences"][0]["name"] == "coordinator"
    assert found["data"] == held


async def test_what_an_edited_deployment_calls_obsolete_is_deleted_only_if_it_is_the_agents(
    setting,
):
    setting.api.put(CONFIG_MAP, theirs(("team", "precious")))
    note = {"diptych.dev/former-configs": "precious"}
    setting.api.edit(DEPLOYMENT, NAME, lambda c: c["metadata"]["annotations"].update(note))
    await setting.until_done()
    assert setting.api.get(CONFIG_MAP, ("team", "precious"))


async def test_nothing_is_done_during_a_rollout_or_for_an_agent_that_is_going(setting):
    keeper = looking_after(setting)
    setting.api.writes.clear()
    setting.world.configs[NAME]["metadata"]["name"] = "another"
    await keeper.look_after(NAME)
    setting.world.drop(AGENT, setting.api.get(AGENT, NAME))
    await keeper.look_after(NAME)
    assert setting.api.writes == []


async def test_many_that_were_deleted_at_once_are_made_again_a_few_at_a_time(setting, monkeypatch):
    monkeypatch.setattr(configs, "PERIOD", 0.0)
    for number in range(1, 100):
        setting.api.put(AGENT, agent_object(f"a{number}"))
    await setting.until_done()
    for name in setting.names(CONFIG_MAP):
        setting.api.remove(CONFIG_MAP, ("team", name))
    together, most = 0, 0

    async def count(*_):
        nonlocal together, most
        together += 1
        most = max(most, together)
        await asyncio.sleep(0.001)
        together -= 1

    whole = asyncio.Event()
    setting.api.before = count
    setting.api.after = lambda _: whole.set() if len(setting.names(CONFIG_MAP)) == 100 else None
    task = asyncio.create_task(looking_after(setting).run())
    async with asyncio.timeout(20):
        await whole.wait()
    task.cancel()
    assert 1 < most <= 8


async def test_an_api_that_is_away_or_asks_for_time_gets_it(setting, monkeypatch):
    pauses = []

    async def sleep(seconds):
        pauses.append(seconds)
        if len(pauses) == 2:
            raise asyncio.CancelledError

    answers = [Refused(429, "slow down", {"Retry-After": "7"}), Refused(503, "away")]

    def before(request, content):
        raise answers.pop(0)

    setting.api.before = before
    monkeypatch.setattr(configs, "PERIOD", 0.0)
    monkeypatch.setattr(configs.asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await looking_after(setting).run()
    assert pauses == [7, configs.PAUSE]
