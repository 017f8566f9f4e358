"""A reconcile against an API: what it writes, what it leaves alone, and what it survives."""

import json
from collections.abc import Callable

import pytest
from support.agents import agent_object, service
from support.kubernetes import Refused
from support.reconciling import NAME, Setting, served

from diptych_operator.desired.resolved_manifest import FILE
from diptych_operator.kubernetes.errors import ClusterError
from diptych_operator.resources.kinds import (
    AGENT,
    BUDGET,
    CONFIG_MAP,
    DEPLOYMENT,
    EVENT,
    NETWORK_POLICY,
    SERVICE,
    SERVICE_ACCOUNT,
)

CHILDREN = (SERVICE_ACCOUNT, NETWORK_POLICY, SERVICE, DEPLOYMENT)


@pytest.fixture
async def setting():
    async with served() as found:
        yield found


def put(setting, **spec):
    return setting.api.put(AGENT, agent_object(**spec))


async def test_an_agent_gets_what_it_needs_in_six_writes(setting):
    put(setting)
    await setting.reconcile()
    assert len(setting.api.writes) == 6
    assert all(setting.api.get(kind, NAME) for kind in CHILDREN)
    assert len(setting.names(CONFIG_MAP)) == 1
    assert setting.conditions() == {
        "Accepted": ("True", "Accepted"),
        "ResolvedRefs": ("True", "ResolvedRefs"),
        "Progressing": ("True", "RollingOut"),
        "Ready": ("False", "RollingOut"),
        "Degraded": ("Unknown", "NotAsked"),
    }


async def test_what_is_right_costs_no_request(setting):
    put(setting)
    await setting.reconcile()
    await setting.look()
    setting.api.writes.clear()
    setting.api.reads = 0
    await setting.reconciler.reconcile(NAME)
    assert (setting.api.writes, setting.api.reads) == ([], 0)


async def test_an_operator_that_starts_among_good_agents_writes_nothing(setting):
    put(setting)
    await setting.reconcile()
    setting.api.settle()
    await setting.until_done()
    setting.api.writes.clear()
    again = Setting(setting.api, setting.cluster)
    await again.reconcile()
    assert setting.api.writes == []


async def test_ready_follows_the_pods(setting):
    put(setting)
    await setting.reconcile()
    setting.api.settle()
    await setting.reconcile()
    assert setting.conditions()["Ready"] == ("True", "Ready")
    assert setting.conditions()["Progressing"] == ("False", "UpToDate")
    assert [event["reason"] for event in setting.api.all(EVENT)] == ["Ready"]


async def test_a_child_that_was_deleted_is_made_again(setting):
    put(setting)
    await setting.reconcile()
    before = setting.api.dump()
    for kind in CHILDREN:
        setting.api.remove(kind, NAME)
    await setting.reconcile()
    assert setting.api.dump() == before


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
async def test_a_child_that_was_edited_is_restored(setting, change):
    put(setting)
    await setting.reconcile()
    before = [c for c in setting.api.dump() if c["kind"] != "Agent"]
    for kind in CHILDREN:
        setting.api.edit(kind, NAME, change)
    await setting.reconcile()
    after = [c for c in setting.api.dump() if c["kind"] != "Agent"]
    for content in (*before, *after):
        content["metadata"].pop("generation")
    assert after == before


async def test_a_field_that_is_no_longer_wanted_is_removed(setting):
    put(setting, podTemplate={"metadata": {"labels": {"team": "blue"}}})
    await setting.reconcile()
    put(setting)
    await setting.reconcile()
    template = setting.api.get(DEPLOYMENT, NAME)["spec"]["template"]
    assert "team" not in template["metadata"]["labels"]


async def test_what_others_have_added_stays(setting):
    put(setting)
    await setting.reconcile()
    setting.api.edit(DEPLOYMENT, NAME, lambda d: d["metadata"]["annotations"].update(theirs="x"))
    put(setting, instructions="New.")
    await setting.reconcile()
    assert setting.api.get(DEPLOYMENT, NAME)["metadata"]["annotations"]["theirs"] == "x"


async def test_a_new_config_rolls_the_pods_and_the_old_one_goes_when_they_do(setting):
    put(setting)
    await setting.reconcile()
    setting.api.settle()
    await setting.until_done()
    [first] = setting.names(CONFIG_MAP)
    put(setting, instructions="New.")
    await setting.until_done()
    assert len(setting.names(CONFIG_MAP)) == 2
    assert setting.conditions()["Ready"] == ("False", "RollingOut")
    setting.api.settle()
    await setting.until_done()
    [second] = setting.names(CONFIG_MAP)
    assert first != second
    held = json.loads(setting.api.get(CONFIG_MAP, ("team", second))["data"][FILE])
    assert held["spec"]["instructions"] == "New."


async def test_what_is_not_wanted_any_more_is_deleted(setting):
    put(setting, replicas=2)
    await setting.until_done()
    assert setting.names(BUDGET) == ["coordinator"]
    put(setting, replicas=1)
    await setting.until_done()
    assert setting.names(BUDGET) == []


async def test_scaling_is_one_write_and_rolls_nothing(setting):
    put(setting)
    await setting.reconcile()
    template = setting.api.get(DEPLOYMENT, NAME)["spec"]["template"]
    put(setting, replicas=0)
    setting.api.writes.clear()
    await setting.reconcile()
    assert setting.api.get(DEPLOYMENT, NAME)["spec"]["replicas"] == 0
    assert setting.api.get(DEPLOYMENT, NAME)["spec"]["template"] == template
    assert len([w for w in setting.writes() if w[1][0] == "deployments"]) == 1


async def test_deleting_an_agent_deletes_all_that_it_owns(setting):
    put(setting)
    await setting.reconcile()
    setting.api.remove(AGENT, NAME)
    await setting.reconcile()
    assert setting.api.dump() == []


@pytest.mark.parametrize("kind", CHILDREN)
async def test_another_ones_object_is_never_touched(setting, kind):
    theirs = {"metadata": {"name": "coordinator", "namespace": "team"}, "spec": {"theirs": True}}
    if kind is DEPLOYMENT:
        theirs["spec"]["template"] = {"spec": {"containers": []}}
        theirs["spec"]["replicas"] = 1
    before = json.dumps(setting.api.put(kind, theirs))
    put(setting)
    assert await setting.reconcile() is not None
    assert json.dumps(setting.api.get(kind, NAME)) == before
    assert setting.conditions()["Accepted"] == ("False", "NameConflict")
    assert f"There is a {kind.name} called coordinator" in setting.message("Accepted")
    assert setting.names(CONFIG_MAP) == []
    setting.api.remove(kind, NAME)
    await setting.reconcile()
    assert setting.conditions()["Accepted"] == ("True", "Accepted")


async def test_an_object_that_comes_in_between_is_never_touched_either(setting):
    theirs = {
        "metadata": {
            "name": "coordinator",
            "namespace": "team",
            "labels": {"app.kubernetes.io/managed-by": "Helm"},
        }
    }

    def before(request, content):
        if request.method == "PATCH" and "serviceaccounts" in request.path:
            setting.api.before = lambda *_: None
            setting.api.put(SERVICE_ACCOUNT, theirs)

    put(setting)
    await setting.look()
    setting.api.before = before
    with pytest.raises(ClusterError):
        await setting.reconciler.reconcile(NAME)
    await setting.reconcile()
    assert setting.conditions()["Accepted"] == ("False", "NameConflict")
    owners = setting.api.get(SERVICE_ACCOUNT, NAME)["metadata"].get("ownerReferences")
    assert owners is None


async def test_what_a_former_agent_has_left_is_waited_for(setting):
    put(setting)
    await setting.reconcile()
    for kind in CHILDREN:
        setting.api.edit(
            kind, NAME, lambda c: c["metadata"]["ownerReferences"][0].update(uid="former")
        )
    await setting.reconcile()
    assert setting.conditions()["Progressing"] == ("False", "FormerAgent")
    assert setting.conditions()["Accepted"] == ("True", "Accepted")
    assert all(event["type"] == "Normal" for event in setting.api.all(EVENT))


async def test_overrides_that_do_not_fit_leave_the_last_good_revision_serving(setting):
    put(setting)
    await setting.reconcile()
    setting.api.settle()
    await setting.until_done()
    before = [c for c in setting.api.dump() if c["kind"] != "Agent"]
    put(setting, instructions="New.", podTemplate={"spec": {"containers": [{"image": "x"}]}})
    await setting.reconcile()
    assert setting.conditions()["Accepted"] == ("False", "PodTemplateInvalid")
    assert setting.conditions()["Ready"] == ("True", "LastGoodRevision")
    assert "containers[0] needs a name" in setting.message("Accepted")
    assert [c for c in setting.api.dump() if c["kind"] != "Agent"] == before


async def test_an_object_that_the_api_refuses_leaves_nothing_behind(setting):
    put(setting)
    await setting.reconcile()
    setting.api.settle()
    await setting.until_done()
    configs = setting.names(CONFIG_MAP)

    def before(request, content):
        if request.method == "PATCH" and "deployments" in request.path:
            raise Refused(422, 'Deployment "coordinator" is invalid: spec.template: oh')

    setting.api.before = before
    put(setting, instructions="New.", podTemplate={"spec": {"nodeSelector": {"a": "b"}}})
    assert await setting.reconcile() == 30
    assert setting.conditions()["Accepted"] == ("False", "Refused")
    assert setting.conditions()["Ready"] == ("True", "LastGoodRevision")
    assert "does not take the Deployment" in setting.message("Accepted")
    assert setting.names(CONFIG_MAP) == configs


async def test_a_url_that_is_none_is_told(setting):
    put(setting, tools=[{"name": "t", "url": "http://[::::]/"}])
    await setting.reconcile()
    assert setting.conditions()["Accepted"] == ("False", "InvalidUrl")


async def test_a_manifest_that_is_too_large_is_told(setting):
    tools = [{"name": f"t{n}", "url": "https://t/" + "x" * 2000} for n in range(300)]
    put(setting, tools=tools)
    await setting.reconcile()
    assert setting.conditions()["Accepted"] == ("False", "TooLarge")
    assert setting.names(DEPLOYMENT) == []


@pytest.mark.parametrize("verb", ["POST", "PATCH"])
async def test_a_right_that_is_missing_is_told_and_tried_again(setting, verb):
    def before(request, content):
        if request.method == verb and "agents" not in request.path:
            raise Refused(403, f"cannot {verb} {request.path}")

    setting.api.before = before
    put(setting)
    assert await setting.reconcile() == 30
    assert setting.conditions()["Progressing"] == ("False", "Forbidden")
    assert "The operator may not do its work: cannot" in setting.message("Progressing")
    setting.api.before = lambda *_: None
    await setting.until_done()
    assert setting.conditions()["Progressing"] == ("True", "RollingOut")


async def test_a_status_that_may_not_be_written_stops_nothing(setting):
    def before(request, content):
        if request.path.endswith("/status"):
            raise Refused(403, "cannot patch agents/status")

    setting.api.before = before
    put(setting)
    await setting.reconcile()
    assert setting.names(DEPLOYMENT) == ["coordinator"]


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
        async with served() as setting:
            requests = [0]

            def before(request, content, requests=requests, number=number):
                requests[0] += 1
                if requests[0] == number + 8:  # after the first look
                    if status is None:
                        request.transport.abort()
                        raise Refused(500, "gone")
                    raise Refused(status, "try again", headers)

            put_all(setting)
            setting.api.before = before
            await setting.until_done()
            setting.api.before = lambda *_: None
            setting.api.settle()
            await setting.until_done()
            assert setting.api.dump() == wanted


async def test_k1_the_api_says_when_to_try_again(setting):
    def before(request, content):
        if request.method == "PATCH":
            raise Refused(429, "slow down", {"Retry-After": "7"})

    put(setting)
    setting.api.before = before
    with pytest.raises(ClusterError) as caught:
        await setting.reconcile()
    assert caught.value.retry_after == 7


def put_all(setting):
    setting.api.put(SERVICE, service("wiki"))
    put(setting, agents=[{"name": "researcher"}])
    tools = [{"name": "t", "serviceRef": {"name": "wiki"}}]
    setting.api.put(AGENT, agent_object("researcher", tools=tools, replicas=2))


def change_all(setting):
    put(setting, instructions="New.", agents=[{"name": "researcher"}])
    setting.api.put(AGENT, agent_object("researcher", replicas=1))


async def undisturbed(change: Callable | None = None):
    async with served() as setting:
        put_all(setting)
        await setting.until_done()
        setting.api.settle()
        await setting.until_done()
        if change:
            change(setting)
            await setting.until_done()
            setting.api.settle()
            await setting.until_done()
        return setting.api.dump()


class Killed(BaseException):
    """What happens to an operator that is killed."""


@pytest.mark.parametrize("when", ["before", "after"])
async def test_k2_being_killed_at_any_write_leaves_the_same_in_the_end(when):
    wanted = await undisturbed(change_all)
    killed = True
    number = 0
    while killed:
        killed = False
        async with served() as setting:
            writes = [0]

            original = setting.cluster._ask

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

            setting.cluster._ask = ask
            setting = await live_on(setting, put_all)
            setting = await live_on(setting, change_all)
            assert setting.api.dump() == wanted, number
        number += 1
    assert number > 15


async def live_on(setting, step):
    """Change something and come to rest, with a new operator after each death."""
    step(setting)
    for settle in (False, True):
        if settle:
            setting.api.settle()
        try:
            await setting.until_done()
        except Killed:
            setting = Setting(setting.api, setting.cluster)  # with an empty picture
            await setting.until_done()
    return setting


async def test_order_does_not_matter_coordinator_first(setting):
    tools = [{"name": "t", "serviceRef": {"name": "wiki"}}]
    put(setting, agents=[{"name": "researcher"}], tools=tools)
    await setting.reconcile()
    assert setting.conditions()["ResolvedRefs"] == ("False", "AgentNotFound")
    assert "Agent researcher is not there" in setting.message("ResolvedRefs")
    assert setting.names(DEPLOYMENT) == ["coordinator"]
    [before] = setting.names(CONFIG_MAP)
    setting.api.put(AGENT, agent_object("researcher"))
    await setting.reconcile()
    assert setting.conditions()["ResolvedRefs"] == ("False", "ServiceNotFound")
    setting.api.put(SERVICE, service("wiki"))
    await setting.reconcile()
    assert setting.conditions()["ResolvedRefs"] == ("True", "ResolvedRefs")
    assert setting.names(CONFIG_MAP) == [before]


async def test_a_peer_of_another_namespace_must_agree(setting):
    put(setting, agents=[{"name": "lawyer", "namespace": "legal"}])
    setting.api.put(AGENT, agent_object("lawyer", "legal"))
    await setting.reconcile()
    assert setting.conditions()["ResolvedRefs"] == ("False", "AgentNotAllowed")
    setting.api.put(AGENT, agent_object("lawyer", "legal", allowedNamespaces={"from": "All"}))
    await setting.until_done()
    assert setting.conditions()["ResolvedRefs"] == ("True", "ResolvedRefs")
    policy = setting.api.get(NETWORK_POLICY, ("legal", "lawyer"))["spec"]["ingress"]
    assert {"namespaceSelector": {}} in [peer for rule in policy for peer in rule["from"]]


async def test_an_agent_with_a_name_of_63_characters_is_served(setting):
    name = "a" * 63
    setting.api.put(AGENT, agent_object(name))
    await setting.reconcile(("team", name))
    assert setting.conditions(("team", name))["Accepted"] == ("True", "Accepted")


async def test_an_agent_that_is_gone_before_its_status_is_written_is_no_failure(setting):
    def before(request, content):
        if request.path.endswith("/status"):
            setting.api.before = lambda *_: None
            setting.api.remove(AGENT, NAME)

    put(setting)
    setting.api.before = before
    assert await setting.reconcile() is None
