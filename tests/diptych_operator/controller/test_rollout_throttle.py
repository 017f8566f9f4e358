"""A change of the platform rolls so many Agents at a time; an Agent's own change waits for none."""

from dataclasses import replace

import pytest
from support.agents import PLATFORM, agent_object
from support.kubernetes import ErrorResponse, KubernetesApi
from support.reconciler_harness import Harness, served

from diptych_operator.desired.deployment import PodDefaults, RolloutSettings
from diptych_operator.desired.rollout import ROLLOUT_MARK
from diptych_operator.kubernetes.errors import ApiError
from diptych_operator.resources.kinds import AGENT, DEPLOYMENT

NAMES = [("team", f"agent-{number}") for number in range(6)]
AT_ONCE = 2


def platform(image="diptych:1", at_once=AT_ONCE):
    return replace(PLATFORM, pods=PodDefaults(image, rollout=RolloutSettings(at_once=at_once)))


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
    harness.api.settle()
    await harness.until_done()
    return harness


def put(api: KubernetesApi, name, generation=1, **spec):
    content = agent_object(name, **spec)
    content["metadata"]["generation"] = generation
    return api.put(AGENT, content)


def upgraded(harness, image="diptych:2", at_once=AT_ONCE):
    """The next operator, of the same API."""
    return Harness(harness.api, harness.client, platform=platform(image, at_once))


def image(harness, name):
    pod = harness.api.get(DEPLOYMENT, name)["spec"]["template"]["spec"]
    return pod["containers"][0]["image"]


def on(harness, wanted="diptych:2"):
    return [name for name in NAMES if image(harness, name) == wanted]


def progressing(harness, name):
    return harness.conditions(name)["Progressing"]


async def test_so_many_roll_at_a_time_and_the_others_say_that_they_wait(six):
    later = upgraded(six)
    await later.until_done()
    assert len(on(later)) == AT_ONCE
    waiting = [name for name in NAMES if name not in on(later)]
    assert {progressing(later, name) for name in waiting} == {("False", "WaitsForOthers")}
    assert "2 at a time" in later.message("Progressing", waiting[0])
    conditions = later.conditions(waiting[0])
    assert conditions["Reconciling"] == ("True", "WaitsForOthers")
    assert "Stalled" not in conditions
    assert conditions["Ready"] == ("True", "Ready")
    assert len(waiting) == len(NAMES) - AT_ONCE


async def test_when_some_are_done_the_next_are_queued_until_all_are(six):
    later = upgraded(six)
    await later.until_done()
    rolled = on(later)
    later.api.settle()
    await later.observe()
    await later.reconciler.reconcile(rolled[0])
    assert len(later.queue) == AT_ONCE
    for done in (4, 6):
        await later.until_done()
        assert len(on(later)) == done
        later.api.settle()
    await later.until_done()
    assert {progressing(later, name)[1] for name in NAMES} == {"UpToDate"}


async def test_an_agents_own_change_waits_for_none(six):
    later = upgraded(six)
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
    later = upgraded(six)
    await later.until_done()
    rolled = on(later)
    after = upgraded(six)
    await after.until_done()
    assert on(after) == rolled
    after.api.settle()
    await after.until_done()
    assert len(on(after)) == 2 * AT_ONCE


async def test_pods_that_do_not_come_up_hold_the_others_back_and_are_mended_at_once(six):
    broken = upgraded(six, "diptych:broken")
    await broken.until_done()
    await broken.until_done()
    assert len(on(broken, "diptych:broken")) == AT_ONCE
    mended = upgraded(six, "diptych:3")
    await mended.until_done()
    assert on(mended, "diptych:broken") == []
    assert len(on(mended, "diptych:3")) == AT_ONCE


async def test_agents_that_did_not_work_before_hold_nobody_back(six):
    put(six.api, "agent-0", generation=2, instructions="It crashes.")
    await six.until_done()
    later = upgraded(six)
    await later.until_done()
    assert ("team", "agent-0") in on(later)
    assert len(on(later)) == AT_ONCE + 1


async def test_a_paused_rollout_holds_nobody_back(six):
    later = upgraded(six)
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
        later = upgraded(harness, at_once=0)
        await later.until_done()
        assert on(later) == NAMES


async def test_a_limit_that_is_new_marks_all_at_once_and_rolls_none():
    async with served() as first:
        harness = await with_agents(first, platform(at_once=0))
        later = upgraded(harness, "diptych:1")
        await later.until_done()
        annotations = [later.api.get(DEPLOYMENT, name)["metadata"]["annotations"] for name in NAMES]
        assert all(ROLLOUT_MARK in one for one in annotations)
        rolling = upgraded(harness)
        await rolling.until_done()
        assert len(on(rolling)) == AT_ONCE


async def test_a_failed_write_gives_its_place_back(six):
    later = upgraded(six)
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
