"""A shared change rolls so many Agents at a time and stops at harm; edits are paced."""

from dataclasses import replace

import pytest
from support.agents import PLATFORM, agent_object
from support.kubernetes import ErrorResponse, KubernetesApi
from support.reconciler_harness import Harness, served

from diptych_operator.desired.deployment import PodDefaults, RolloutSettings
from diptych_operator.desired.rollout import ROLLOUT_MARK, is_rolled_out, mark_of
from diptych_operator.kubernetes.errors import ApiError
from diptych_operator.resources.kinds import AGENT, DEPLOYMENT, EVENT, ObjectKey
from diptych_operator.status.conditions import MissingDependency

NAMES = [("team", f"agent-{number}") for number in range(6)]
AT_ONCE = 2


def platform(image="diptych:1", at_once=AT_ONCE, edits_at_once=0):
    rollout = RolloutSettings(at_once=at_once, edits_at_once=edits_at_once)
    return replace(PLATFORM, pods=PodDefaults(image, rollout=rollout))


def ask(harness, **missing):
    """Do what the readiness poll does; `missing` says what the pods of some Agents lack."""
    for name, deployment in list(harness.cache.all(DEPLOYMENT)):
        key, mark = ObjectKey(AGENT, *name), mark_of(deployment)
        harness.cache.asked[key] = mark.template if mark and is_rolled_out(deployment) else ""
        lacks = missing.get(name[1].replace("-", "_"))
        found = [MissingDependency("model", "gpt", lacks)] if lacks else []
        harness.cache.missing_dependencies[key] = tuple(found)


async def settle(harness, **missing):
    harness.api.settle()
    await harness.observe()
    ask(harness, **missing)


@pytest.fixture
async def six():
    """Six Agents, whose pods run image 1."""
    async with served() as harness:
        yield await with_agents(harness)


async def with_agents(harness, settings=None):
    for _, name in NAMES:
        put(harness.api, name)
    harness = Harness(harness.api, harness.client, platform=settings or platform())
    await harness.until_done()
    await settle(harness)
    await harness.until_done()
    return harness


def put(api: KubernetesApi, name, generation=1, **spec):
    content = agent_object(name, **spec)
    content["metadata"]["generation"] = generation
    return api.put(AGENT, content)


async def upgraded(harness, image="diptych:2", at_once=AT_ONCE, **missing):
    """The next operator, of the same API, which has asked all pods."""
    later = Harness(harness.api, harness.client, platform=platform(image, at_once))
    await later.observe()
    ask(later, **missing)
    return later


def image(harness, name):
    pod = harness.api.get(DEPLOYMENT, name)["spec"]["template"]["spec"]
    return pod["containers"][0]["image"]


def on(harness, wanted="diptych:2"):
    return [name for name in NAMES if image(harness, name) == wanted]


def progressing(harness, name):
    return harness.conditions(name)["Progressing"]


async def test_so_many_roll_at_a_time_and_the_others_say_that_they_wait(six):
    later = await upgraded(six)
    await later.until_done()
    assert len(on(later)) == AT_ONCE
    waiting = [name for name in NAMES if name not in on(later)]
    assert {progressing(later, name) for name in waiting} == {("False", "WaitsForOthers")}
    assert later.message("Progressing", waiting[0]) == (
        "The platform's settings changed; this one waits for the rollout of others (2 at a time: "
        "the chart's value agents.rollout.atOnce)."
    )
    conditions = later.conditions(waiting[0])
    assert conditions["Reconciling"] == ("True", "WaitsForOthers")
    assert "Stalled" not in conditions
    assert conditions["Ready"] == ("True", "Ready")
    assert len(waiting) == len(NAMES) - AT_ONCE


async def test_when_some_are_done_the_next_are_queued_until_all_are(six):
    later = await upgraded(six)
    await later.until_done()
    rolled = on(later)
    await settle(later)
    await later.reconciler.reconcile(rolled[0])
    assert len(later.queue) == AT_ONCE
    for done in (4, 6):
        await later.until_done()
        assert len(on(later)) == done
        await settle(later)
    await later.until_done()
    assert {progressing(later, name)[1] for name in NAMES} == {"UpToDate"}


async def test_an_agents_own_change_waits_for_none(six):
    later = await upgraded(six)
    await later.until_done()
    waiting = next(name for name in NAMES if name not in on(later))
    put(later.api, waiting[1], generation=2, instructions="New.")
    await later.until_done()
    assert waiting in on(later)
    assert progressing(later, waiting) == ("True", "RollingOut")
    assert len(on(later)) == AT_ONCE + 1
    put(later.api, "new")
    await later.until_done()
    assert image(later, ("team", "new")) == "diptych:2"


async def test_the_next_operator_goes_on_where_this_one_ended(six):
    later = await upgraded(six)
    await later.until_done()
    rolled = on(later)
    after = await upgraded(six)
    await after.until_done()
    assert on(after) == rolled
    await settle(after)
    await after.until_done()
    assert len(on(after)) == 2 * AT_ONCE


async def test_pods_that_do_not_come_up_hold_the_others_back_and_are_mended_at_once(six):
    broken = await upgraded(six, "diptych:broken")
    await broken.until_done()
    await broken.until_done()
    assert len(on(broken, "diptych:broken")) == AT_ONCE
    mended = await upgraded(six, "diptych:3")
    await mended.until_done()
    assert on(mended, "diptych:broken") == []
    assert len(on(mended, "diptych:3")) == AT_ONCE


async def test_agents_that_did_not_work_before_hold_nobody_back(six):
    put(six.api, "agent-0", generation=2, instructions="It crashes.")
    await six.until_done()
    later = await upgraded(six)
    await later.until_done()
    assert ("team", "agent-0") in on(later)
    assert len(on(later)) == AT_ONCE + 1


async def test_a_paused_rollout_holds_nobody_back(six):
    later = await upgraded(six)
    await later.until_done()
    paused = on(later)[0]
    later.api.edit(DEPLOYMENT, paused, lambda found: found["spec"].update(paused=True))
    await later.until_done()
    assert len(on(later)) == AT_ONCE + 1


async def test_without_a_limit_all_roll_and_no_mark_is_written():
    async with served() as first:
        harness = await with_agents(first, platform(at_once=0))
        annotations = harness.api.get(DEPLOYMENT, NAMES[0])["metadata"]["annotations"]
        assert ROLLOUT_MARK not in annotations
        later = await upgraded(harness, at_once=0)
        await later.until_done()
        assert on(later) == NAMES


async def test_a_limit_that_is_new_marks_all_at_once_and_rolls_none():
    async with served() as first:
        harness = await with_agents(first, platform(at_once=0))
        later = await upgraded(harness, "diptych:1")
        await later.until_done()
        annotations = [later.api.get(DEPLOYMENT, name)["metadata"]["annotations"] for name in NAMES]
        assert all(ROLLOUT_MARK in one for one in annotations)
        rolling = await upgraded(harness)
        await rolling.until_done()
        assert len(on(rolling)) == AT_ONCE


async def test_an_agent_keeps_its_place_until_its_new_pods_were_asked(six):
    later = await upgraded(six)
    await later.until_done()
    later.api.settle()
    await later.until_done()
    assert len(on(later)) == AT_ONCE
    ask(later)
    await later.until_done()
    assert len(on(later)) == 2 * AT_ONCE


async def test_a_wave_stops_when_an_agent_of_it_gets_degraded_until_that_recovers(six):
    later = await upgraded(six)
    await later.until_done()
    await settle(later, agent_0="unreachable")
    await later.until_done()
    assert on(later) == NAMES[:AT_ONCE]
    waiting = NAMES[-1]
    assert later.conditions(waiting)["Stalled"] == ("True", "RolloutStopped")
    assert later.conditions(waiting)["Ready"] == ("True", "Ready")
    assert later.message("Progressing", waiting) == (
        "The rollout of the platform's settings has stopped: since it came to Agent team/agent-0, "
        "that one is Degraded (ModelUnavailable). It goes on when that Agent recovers or is "
        "edited, or when the platform's settings change again."
    )
    events = [event for event in later.api.all(EVENT) if event["reason"] == "RolloutStopped"]
    assert {event["regarding"]["name"] for event in events} == {n for _, n in NAMES[AT_ONCE:]}
    ask(later)
    await later.until_done()
    assert len(on(later)) == 2 * AT_ONCE


@pytest.mark.parametrize("how", ["the change is taken back", "the Agent is edited"])
async def test_a_wave_that_stopped_goes_on(six, how):
    stopped = await upgraded(six)
    await stopped.until_done()
    await settle(stopped, agent_0="unreachable")
    await stopped.until_done()
    if how == "the Agent is edited":
        later = stopped
        put(later.api, "agent-0", generation=2, instructions="New.")
        await later.until_done()
        assert len(on(later)) == 2 * AT_ONCE
    else:
        later = await upgraded(stopped, "diptych:3", agent_0="unreachable")
        await later.until_done()
        assert len(on(later, "diptych:3")) == AT_ONCE
        assert later.conditions(NAMES[-1])["Reconciling"] == ("True", "WaitsForOthers")


async def test_an_agent_that_was_degraded_before_stops_nothing(six):
    await settle(six, agent_0="unreachable")
    await six.until_done()
    later = await upgraded(six, agent_0="unreachable")
    for done in (2, 4, 6):
        await later.until_done()
        assert len(on(later)) == done
        await settle(later, agent_0="unreachable")


async def test_new_pods_that_do_not_come_up_stop_a_wave_that_has_room(six):
    later = await upgraded(six, at_once=3)
    await later.until_done()
    rolling = on(later)
    await settle(later)
    later.api.edit(DEPLOYMENT, rolling[0], refused)
    await later.until_done()
    assert on(later) == rolling
    assert "team/agent-0, that one is not Ready (PodsRefused)" in later.message(
        "Progressing", NAMES[-1]
    )


def refused(deployment):
    failure = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}
    deployment["status"].update(updatedReplicas=0, conditions=[failure])


async def test_edits_are_paced_in_their_namespace_and_stop_at_nothing():
    async with served() as first:
        later = await with_agents(first, platform(edits_at_once=2))
        put(later.api, "new")
        for _, name in NAMES:
            put(later.api, name, generation=2, instructions="New.")
        later.api.put(AGENT, agent_object("alone", namespace="other"))
        await later.until_done()
        states = [progressing(later, name)[1] for name in NAMES]
        assert sorted(states) == ["RollingOut"] * 2 + ["WaitsForOthers"] * 4
        assert "edited Agents of namespace team (2 at a time" in later.message(
            "Progressing", NAMES[-1]
        )
        later.api.settle()
        edited = agent_object("alone", namespace="other", instructions="New.")
        edited["metadata"]["generation"] = 2
        later.api.put(AGENT, edited)
        await later.until_done()
        assert progressing(later, ("other", "alone"))[1] == "RollingOut"
        states = [progressing(later, name)[1] for name in NAMES]
        assert sorted(states) == ["RollingOut"] * 2 + ["UpToDate"] * 2 + ["WaitsForOthers"] * 2


async def test_a_failed_write_gives_its_place_back(six):
    later = await upgraded(six)
    await later.observe()

    def refuse(request, content):
        if request.method == "PATCH" and "/deployments/" in request.path:
            raise ErrorResponse(503, "away")

    later.api.before = refuse
    for name in NAMES:
        with pytest.raises(ApiError):
            await later.reconciler.reconcile(name)
    later.api.before = lambda request, content: None
    await later.until_done()
    assert len(on(later)) == AT_ONCE
