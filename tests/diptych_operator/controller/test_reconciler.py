"""A reconcile against an API: what it writes, what it leaves alone, and what it survives."""

import json
from collections.abc import Callable

import pytest
from support.agents import agent_object, service
from support.kubernetes import ErrorResponse
from support.reconciler_harness import NAME, Harness, served

from diptych_operator.desired.resolved_manifest import FILE
from diptych_operator.kubernetes.errors import ApiError
from diptych_operator.resources.kinds import (
    AGENT,
    CONFIG_MAP,
    DEPLOYMENT,
    EVENT,
    NETWORK_POLICY,
    POD_DISRUPTION_BUDGET,
    SERVICE,
    SERVICE_ACCOUNT,
)

CHILDREN = (SERVICE_ACCOUNT, NETWORK_POLICY, SERVICE, DEPLOYMENT)


@pytest.fixture
async def harness():
    async with served() as found:
        yield found


def put(harness, **spec):
    return harness.api.put(AGENT, agent_object(**spec))


async def test_an_agent_gets_what_it_needs_in_six_writes(harness):
    put(harness)
    await harness.reconcile()
    assert len(harness.api.writes) == 6
    assert all(harness.api.get(kind, NAME) for kind in CHILDREN)
    assert len(harness.names(CONFIG_MAP)) == 1
    assert harness.conditions() == {
        "Accepted": ("True", "Accepted"),
        "ResolvedRefs": ("True", "ResolvedRefs"),
        "Progressing": ("True", "RollingOut"),
        "Ready": ("False", "RollingOut"),
        "Degraded": ("Unknown", "NotAsked"),
    }


async def test_what_is_right_costs_no_request(harness):
    put(harness)
    await harness.reconcile()
    await harness.observe()
    harness.api.writes.clear()
    harness.api.reads = 0
    await harness.reconciler.reconcile(NAME)
    assert (harness.api.writes, harness.api.reads) == ([], 0)


async def test_an_operator_that_starts_among_good_agents_writes_nothing(harness):
    put(harness)
    await harness.reconcile()
    harness.api.settle()
    await harness.until_done()
    harness.api.writes.clear()
    again = Harness(harness.api, harness.client)
    await again.reconcile()
    assert harness.api.writes == []


async def test_ready_follows_the_pods(harness):
    put(harness)
    await harness.reconcile()
    harness.api.settle()
    await harness.reconcile()
    assert harness.conditions()["Ready"] == ("True", "Ready")
    assert harness.conditions()["Progressing"] == ("False", "UpToDate")
    assert [event["reason"] for event in harness.api.all(EVENT)] == ["Ready"]


async def test_a_child_that_was_deleted_is_made_again(harness):
    put(harness)
    await harness.reconcile()
    before = harness.api.dump()
    for kind in CHILDREN:
        harness.api.remove(kind, NAME)
    await harness.reconcile()
    assert harness.api.dump() == before


def strip(content):
    content["metadata"].pop("labels")
    content["metadata"].pop("ownerReferences")
    content["metadata"].pop("annotations")


def scribble(content):
    content["metadata"]["labels"]["app.kubernetes.io/instance"] = "x"
    if content["kind"] == "Deployment":
        content["spec"]["template"]["spec"]["containers"][0]["image"] = "evil"
        content["spec"]["replicas"] = 7
    if content["kind"] == "Service":
        content["spec"]["selector"] = {"app": "evil"}
    if content["kind"] == "NetworkPolicy":
        content["spec"]["ingress"].append({})
    if content["kind"] == "ServiceAccount":
        content["automountServiceAccountToken"] = True


@pytest.mark.parametrize("change", [strip, scribble])
async def test_a_child_that_was_edited_is_restored(harness, change):
    put(harness)
    await harness.reconcile()
    before = [c for c in harness.api.dump() if c["kind"] != "Agent"]
    for kind in CHILDREN:
        harness.api.edit(kind, NAME, change)
    await harness.reconcile()
    after = [c for c in harness.api.dump() if c["kind"] != "Agent"]
    for content in (*before, *after):
        content["metadata"].pop("generation")
    assert after == before


async def test_a_field_that_is_no_longer_wanted_is_removed(harness):
    put(harness, podTemplate={"metadata": {"labels": {"team": "blue"}}})
    await harness.reconcile()
    put(harness)
    await harness.reconcile()
    template = harness.api.get(DEPLOYMENT, NAME)["spec"]["template"]
    assert "team" not in template["metadata"]["labels"]


async def test_what_others_have_added_stays(harness):
    put(harness)
    await harness.reconcile()
    harness.api.edit(DEPLOYMENT, NAME, lambda d: d["metadata"]["annotations"].update(theirs="x"))
    put(harness, instructions="New.")
    await harness.reconcile()
    assert harness.api.get(DEPLOYMENT, NAME)["metadata"]["annotations"]["theirs"] == "x"


async def test_a_new_config_rolls_the_pods_and_the_old_one_goes_when_they_do(harness):
    put(harness)
    await harness.reconcile()
    harness.api.settle()
    await harness.until_done()
    [first] = harness.names(CONFIG_MAP)
    put(harness, instructions="New.")
    await harness.until_done()
    assert len(harness.names(CONFIG_MAP)) == 2
    assert harness.conditions()["Ready"] == ("False", "RollingOut")
    harness.api.settle()
    await harness.until_done()
    [second] = harness.names(CONFIG_MAP)
    assert first != second
    held = json.loads(harness.api.get(CONFIG_MAP, ("team", second))["data"][FILE])
    assert held["spec"]["instructions"] == "New."


async def test_what_is_not_wanted_any_more_is_deleted(harness):
    put(harness, replicas=2)
    await harness.until_done()
    assert harness.names(POD_DISRUPTION_BUDGET) == ["coordinator"]
    put(harness, replicas=1)
    await harness.until_done()
    assert harness.names(POD_DISRUPTION_BUDGET) == []


async def test_scaling_is_one_write_and_rolls_nothing(harness):
    put(harness)
    await harness.reconcile()
    template = harness.api.get(DEPLOYMENT, NAME)["spec"]["template"]
    put(harness, replicas=0)
    harness.api.writes.clear()
    await harness.reconcile()
    assert harness.api.get(DEPLOYMENT, NAME)["spec"]["replicas"] == 0
    assert harness.api.get(DEPLOYMENT, NAME)["spec"]["template"] == template
    assert len([w for w in harness.writes() if w[1][0] == "deployments"]) == 1


async def test_deleting_an_agent_deletes_all_that_it_owns(harness):
    put(harness)
    await harness.reconcile()
    harness.api.remove(AGENT, NAME)
    await harness.reconcile()
    assert harness.api.dump() == []


@pytest.mark.parametrize("kind", CHILDREN)
async def test_another_ones_object_is_never_touched(harness, kind):
    theirs = {"metadata": {"name": "coordinator", "namespace": "team"}, "spec": {"theirs": True}}
    if kind is DEPLOYMENT:
        theirs["spec"]["template"] = {"spec": {"containers": []}}
        theirs["spec"]["replicas"] = 1
    before = json.dumps(harness.api.put(kind, theirs))
    put(harness)
    assert await harness.reconcile() is not None
    assert json.dumps(harness.api.get(kind, NAME)) == before
    assert harness.conditions()["Accepted"] == ("False", "NameConflict")
    assert f"There is a {kind.name} called coordinator" in harness.message("Accepted")
    assert harness.names(CONFIG_MAP) == []
    harness.api.remove(kind, NAME)
    await harness.reconcile()
    assert harness.conditions()["Accepted"] == ("True", "Accepted")


async def test_an_object_that_comes_in_between_is_never_touched_either(harness):
    theirs = {
        "metadata": {
            "name": "coordinator",
            "namespace": "team",
            "labels": {"app.kubernetes.io/managed-by": "Helm"},
        }
    }

    def before(request, content):
        if request.method == "PATCH" and "serviceaccounts" in request.path:
            harness.api.before = lambda *_: None
            harness.api.put(SERVICE_ACCOUNT, theirs)

    put(harness)
    await harness.observe()
    harness.api.before = before
    with pytest.raises(ApiError):
        await harness.reconciler.reconcile(NAME)
    await harness.reconcile()
    assert harness.conditions()["Accepted"] == ("False", "NameConflict")
    owners = harness.api.get(SERVICE_ACCOUNT, NAME)["metadata"].get("ownerReferences")
    assert owners is None


async def test_what_a_former_agent_has_left_is_waited_for(harness):
    put(harness)
    await harness.reconcile()
    for kind in CHILDREN:
        harness.api.edit(
            kind, NAME, lambda c: c["metadata"]["ownerReferences"][0].update(uid="former")
        )
    await harness.reconcile()
    assert harness.conditions()["Progressing"] == ("False", "FormerAgent")
    assert harness.conditions()["Accepted"] == ("True", "Accepted")
    assert all(event["type"] == "Normal" for event in harness.api.all(EVENT))


async def test_overrides_that_do_not_fit_leave_the_last_good_revision_serving(harness):
    put(harness)
    await harness.reconcile()
    harness.api.settle()
    await harness.until_done()
    before = [c for c in harness.api.dump() if c["kind"] != "Agent"]
    put(harness, instructions="New.", podTemplate={"spec": {"containers": [{"image": "x"}]}})
    await harness.reconcile()
    assert harness.conditions()["Accepted"] == ("False", "PodTemplateInvalid")
    assert harness.conditions()["Ready"] == ("True", "LastGoodRevision")
    assert "containers[0] needs a name" in harness.message("Accepted")
    assert [c for c in harness.api.dump() if c["kind"] != "Agent"] == before


async def test_an_object_that_the_api_refuses_leaves_nothing_behind(harness):
    put(harness)
    await harness.reconcile()
    harness.api.settle()
    await harness.until_done()
    configs = harness.names(CONFIG_MAP)

    def before(request, content):
        if request.method == "PATCH" and "deployments" in request.path:
            raise ErrorResponse(422, 'Deployment "coordinator" is invalid: spec.template: oh')

    harness.api.before = before
    put(harness, instructions="New.", podTemplate={"spec": {"nodeSelector": {"a": "b"}}})
    assert await harness.reconcile() == 30
    assert harness.conditions()["Accepted"] == ("False", "Refused")
    assert harness.conditions()["Ready"] == ("True", "LastGoodRevision")
    assert "does not take the Deployment" in harness.message("Accepted")
    assert harness.names(CONFIG_MAP) == configs


async def test_a_url_that_is_none_is_told(harness):
    put(harness, tools=[{"name": "t", "url": "http://[::::]/"}])
    await harness.reconcile()
    assert harness.conditions()["Accepted"] == ("False", "InvalidUrl")


async def test_a_manifest_that_is_too_large_is_told(harness):
    tools = [{"name": f"t{n}", "url": "https://t/" + "x" * 2000} for n in range(300)]
    put(harness, tools=tools)
    await harness.reconcile()
    assert harness.conditions()["Accepted"] == ("False", "TooLarge")
    assert harness.names(DEPLOYMENT) == []


@pytest.mark.parametrize("verb", ["POST", "PATCH"])
async def test_a_right_that_is_missing_is_told_and_tried_again(harness, verb):
    def before(request, content):
        if request.method == verb and "agents" not in request.path:
            raise ErrorResponse(403, f"cannot {verb} {request.path}")

    harness.api.before = before
    put(harness)
    assert await harness.reconcile() == 30
    assert harness.conditions()["Progressing"] == ("False", "Forbidden")
    assert "The operator may not do its work: cannot" in harness.message("Progressing")
    harness.api.before = lambda *_: None
    await harness.until_done()
    assert harness.conditions()["Progressing"] == ("True", "RollingOut")


async def test_a_status_that_may_not_be_written_stops_nothing(harness):
    def before(request, content):
        if request.path.endswith("/status"):
            raise ErrorResponse(403, "cannot patch agents/status")

    harness.api.before = before
    put(harness)
    await harness.reconcile()
    assert harness.names(DEPLOYMENT) == ["coordinator"]


FAULTS = [
    pytest.param(500, {}, id="500"),
    pytest.param(503, {}, id="503"),
    pytest.param(429, {"Retry-After": "7"}, id="429"),
    pytest.param(409, {}, id="409"),
    pytest.param(None, {}, id="a connection that is reset"),
]


@pytest.mark.parametrize(("status", "headers"), FAULTS)
async def test_k1_a_fault_at_any_request_delays_and_changes_nothing(status, headers):
    wanted = await undisturbed()
    for number in range(12):
        async with served() as harness:
            requests = [0]

            def before(request, content, requests=requests, number=number):
                requests[0] += 1
                if requests[0] == number + 8:  # after the first look
                    if status is None:
                        request.transport.abort()
                        raise ErrorResponse(500, "gone")
                    raise ErrorResponse(status, "try again", headers)

            put_all(harness)
            harness.api.before = before
            await harness.until_done()
            harness.api.before = lambda *_: None
            harness.api.settle()
            await harness.until_done()
            assert harness.api.dump() == wanted


async def test_k1_the_api_says_when_to_try_again(harness):
    def before(request, content):
        if request.method == "PATCH":
            raise ErrorResponse(429, "slow down", {"Retry-After": "7"})

    put(harness)
    harness.api.before = before
    with pytest.raises(ApiError) as caught:
        await harness.reconcile()
    assert caught.value.retry_after == 7


def put_all(harness):
    harness.api.put(SERVICE, service("wiki"))
    put(harness, agents=[{"name": "researcher"}])
    tools = [{"name": "t", "serviceRef": {"name": "wiki"}}]
    harness.api.put(AGENT, agent_object("researcher", tools=tools, replicas=2))


def change_all(harness):
    put(harness, instructions="New.", agents=[{"name": "researcher"}])
    harness.api.put(AGENT, agent_object("researcher", replicas=1))


async def undisturbed(change: Callable | None = None):
    async with served() as harness:
        put_all(harness)
        await harness.until_done()
        harness.api.settle()
        await harness.until_done()
        if change:
            change(harness)
            await harness.until_done()
            harness.api.settle()
            await harness.until_done()
        return harness.api.dump()


class Killed(BaseException):
    """What happens to an operator that is killed."""


@pytest.mark.parametrize("when", ["before", "after"])
async def test_k2_being_killed_at_any_write_leaves_the_same_in_the_end(when):
    wanted = await undisturbed(change_all)
    killed = True
    number = 0
    while killed:
        killed = False
        async with served() as harness:
            writes = [0]

            original = harness.client._request

            async def ask(method, *args, original=original, writes=writes, number=number, **kwargs):
                nonlocal killed
                if method == "GET":
                    return await original(method, *args, **kwargs)
                writes[0] += 1
                if writes[0] == number + 1 and when == "before":
                    killed = True
                    raise Killed
                answer = await original(method, *args, **kwargs)
                if writes[0] == number + 1:
                    killed = True
                    raise Killed
                return answer

            harness.client._request = ask
            harness = await live_on(harness, put_all)
            harness = await live_on(harness, change_all)
            assert harness.api.dump() == wanted, number
        number += 1
    assert number > 15


async def live_on(harness, step):
    """Change something and come to rest, with a new operator after each death."""
    step(harness)
    for settle in (False, True):
        if settle:
            harness.api.settle()
        try:
            await harness.until_done()
        except Killed:
            harness = Harness(harness.api, harness.client)  # with an empty picture
            await harness.until_done()
    return harness


async def test_order_does_not_matter_coordinator_first(harness):
    tools = [{"name": "t", "serviceRef": {"name": "wiki"}}]
    put(harness, agents=[{"name": "researcher"}], tools=tools)
    await harness.reconcile()
    assert harness.conditions()["ResolvedRefs"] == ("False", "AgentNotFound")
    assert "Agent researcher is not there" in harness.message("ResolvedRefs")
    assert harness.names(DEPLOYMENT) == ["coordinator"]
    [before] = harness.names(CONFIG_MAP)
    harness.api.put(AGENT, agent_object("researcher"))
    await harness.reconcile()
    assert harness.conditions()["ResolvedRefs"] == ("False", "ServiceNotFound")
    harness.api.put(SERVICE, service("wiki"))
    await harness.reconcile()
    assert harness.conditions()["ResolvedRefs"] == ("True", "ResolvedRefs")
    assert harness.names(CONFIG_MAP) == [before]


async def test_a_peer_of_another_namespace_must_agree(harness):
    put(harness, agents=[{"name": "lawyer", "namespace": "legal"}])
    harness.api.put(AGENT, agent_object("lawyer", "legal"))
    await harness.reconcile()
    assert harness.conditions()["ResolvedRefs"] == ("False", "AgentNotAllowed")
    harness.api.put(AGENT, agent_object("lawyer", "legal", allowedNamespaces={"from": "All"}))
    await harness.until_done()
    assert harness.conditions()["ResolvedRefs"] == ("True", "ResolvedRefs")
    policy = harness.api.get(NETWORK_POLICY, ("legal", "lawyer"))["spec"]["ingress"]
    assert {"namespaceSelector": {}} in [peer for rule in policy for peer in rule["from"]]


async def test_an_agent_with_a_name_of_63_characters_is_served(harness):
    name = "a" * 63
    harness.api.put(AGENT, agent_object(name))
    await harness.reconcile(("team", name))
    assert harness.conditions(("team", name))["Accepted"] == ("True", "Accepted")


async def test_an_agent_that_is_gone_before_its_status_is_written_is_no_failure(harness):
    def before(request, content):
        if request.path.endswith("/status"):
            harness.api.before = lambda *_: None
            harness.api.remove(AGENT, NAME)

    put(harness)
    harness.api.before = before
    assert await harness.reconcile() is None
