"""A reconcile against an API: what it writes and what it leaves alone."""

import copy
import json
import logging

import pytest
from support.agents import agent_object, service
from support.kubernetes import ErrorResponse
from support.reconciler_harness import KEY, NAME, served

from diptych_operator.controller import agents
from diptych_operator.controller.obstacles import BLOCKED_SECONDS
from diptych_operator.desired.resolved_manifest import FILE
from diptych_operator.kubernetes.errors import ApiError
from diptych_operator.resources.kinds import (
    AGENT,
    CONFIG_MAP,
    DEPLOYMENT,
    EVENT,
    NETWORK_POLICY,
    POD,
    POD_DISRUPTION_BUDGET,
    SERVICE,
    SERVICE_ACCOUNT,
)
from diptych_operator.status.events import PATIENCE

CHILDREN = (SERVICE_ACCOUNT, NETWORK_POLICY, SERVICE, DEPLOYMENT)


@pytest.fixture
async def harness():
    async with served() as found:
        yield found


def put(harness, **spec):
    return harness.api.put(AGENT, agent_object(**spec))


async def test_an_agent_gets_what_it_needs_in_seven_writes(harness):
    put(harness)
    await harness.reconcile()
    assert len(harness.api.writes) == 7
    assert all(harness.api.get(kind, NAME) for kind in CHILDREN)
    assert len(harness.names(CONFIG_MAP)) == 1
    assert harness.conditions() == {
        "Accepted": ("True", "Accepted"),
        "ResolvedRefs": ("True", "ResolvedRefs"),
        "Progressing": ("True", "RollingOut"),
        "Available": ("False", "NoPodAvailable"),
        "Reconciling": ("True", "RollingOut"),
        "Ready": ("False", "RollingOut"),
        "Degraded": ("Unknown", "NotAsked"),
        "AccessOpen": ("False", "TokenRequired"),
    }


async def test_an_agent_without_drift_costs_no_request(harness):
    put(harness)
    await harness.reconcile()
    await harness.observe()
    harness.api.writes.clear()
    harness.api.reads = 0
    await harness.reconciler.reconcile(NAME)
    assert (harness.api.writes, harness.api.reads) == ([], 0)


def remove_metadata(content):
    content["metadata"].pop("labels")
    content["metadata"].pop("ownerReferences")
    content["metadata"].pop("annotations")


def edit_spec(content):
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


@pytest.mark.parametrize("change", [remove_metadata, edit_spec])
async def test_a_child_that_was_edited_is_restored(harness, change):
    put(harness)
    await harness.reconcile()
    before = children(harness)
    for kind in CHILDREN:
        harness.api.edit(kind, NAME, change)
    edited = children(harness)
    assert edited.keys() == before.keys()
    assert all(edited[kind.name] != before[kind.name] for kind in CHILDREN)
    await harness.reconcile()
    assert children(harness) == before


def children(harness):
    """Give all children by kind, without their generation, which counts the edits."""
    found = {c["kind"]: c for c in harness.api.dump() if c["kind"] != "Agent"}
    for content in found.values():
        content["metadata"].pop("generation")
    return found


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


async def test_a_child_that_is_not_desired_any_more_is_deleted(harness):
    put(harness, replicas=2)
    await harness.until_done()
    assert harness.names(POD_DISRUPTION_BUDGET) == ["coordinator"]
    put(harness, replicas=1)
    await harness.until_done()
    assert harness.names(POD_DISRUPTION_BUDGET) == []


@pytest.mark.parametrize("kind", CHILDREN)
async def test_a_foreign_object_is_never_changed(harness, kind):
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


async def test_a_foreign_object_created_in_between_is_never_changed(harness):
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


async def test_the_children_of_a_former_agent_are_waited_for(harness):
    put(harness)
    await harness.reconcile()
    for kind in CHILDREN:
        harness.api.edit(
            kind, NAME, lambda c: c["metadata"]["ownerReferences"][0].update(uid="former")
        )
    await harness.reconcile()
    assert harness.conditions()["Progressing"] == ("False", "FormerOwner")
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


async def test_an_object_that_the_api_refuses_leaves_the_former_revision_serving(harness):
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
    harness.api.before = lambda *_: None
    put(harness)
    await harness.until_done()
    assert harness.names(CONFIG_MAP) == configs


async def test_an_invalid_url_is_reported(harness):
    put(harness, tools=[{"name": "t", "url": "http://[::::]/"}])
    await harness.reconcile()
    assert harness.conditions()["Accepted"] == ("False", "InvalidUrl")


async def test_a_manifest_that_is_too_large_is_reported(harness):
    tools = [{"name": f"t{n}", "url": "https://t/" + "x" * 2000} for n in range(300)]
    put(harness, tools=tools)
    await harness.reconcile()
    assert harness.conditions()["Accepted"] == ("False", "TooLarge")
    assert harness.names(DEPLOYMENT) == []


async def test_a_missing_right_is_reported_and_tried_again(harness):
    def before(request, content):
        if request.method == "PATCH" and "agents" not in request.path:
            raise ErrorResponse(403, f"cannot patch {request.path}")

    harness.api.before = before
    put(harness)
    assert await harness.reconcile() == BLOCKED_SECONDS
    assert harness.conditions()["Progressing"] == ("False", "Forbidden")
    assert "The operator may not do its work: cannot" in harness.message("Progressing")
    harness.api.before = lambda *_: None
    await harness.until_done()
    assert harness.conditions()["Progressing"] == ("True", "RollingOut")


async def test_a_missing_right_to_write_the_status_stops_nothing_else(harness):
    def before(request, content):
        if request.path.endswith("/status"):
            raise ErrorResponse(403, "cannot patch agents/status")

    harness.api.before = before
    put(harness)
    await harness.reconcile()
    assert harness.names(DEPLOYMENT) == ["coordinator"]


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


async def test_a_peer_of_another_namespace_must_allow_delegation(harness):
    put(harness, agents=[{"name": "lawyer", "namespace": "legal"}])
    harness.api.put(AGENT, agent_object("lawyer", "legal"))
    await harness.reconcile()
    assert harness.conditions()["ResolvedRefs"] == ("False", "AgentNotAllowed")
    harness.api.put(AGENT, agent_object("lawyer", "legal", allowedNamespaces={"from": "All"}))
    await harness.until_done()
    assert harness.conditions()["ResolvedRefs"] == ("True", "ResolvedRefs")
    policy = harness.api.get(NETWORK_POLICY, ("legal", "lawyer"))["spec"]["ingress"]
    agents = {"matchLabels": {"app.kubernetes.io/name": "diptych-agent"}}
    assert {"namespaceSelector": {}, "podSelector": agents} in [
        peer for rule in policy for peer in rule["from"]
    ]


async def test_an_agent_that_is_gone_before_its_status_is_written_is_no_failure(harness):
    def before(request, content):
        if request.path.endswith("/status"):
            harness.api.before = lambda *_: None
            harness.api.remove(AGENT, NAME)

    put(harness)
    harness.api.before = before
    assert await harness.reconcile() is None


def put_pod(harness, name, phase="Running"):
    labels = {
        "app.kubernetes.io/instance": "coordinator",
        "app.kubernetes.io/managed-by": "diptych-operator",
    }
    metadata = {"name": name, "namespace": "team", "labels": labels}
    return harness.api.put(POD, {"metadata": metadata, "status": {"phase": phase}})


async def test_the_network_policy_stays_until_the_last_pod_of_a_deleted_agent_is_gone(harness):
    put(harness)
    await harness.until_done()
    for name in ("one", "two"):
        put_pod(harness, name)
    put_pod(harness, "evicted", "Failed")
    await harness.until_done()
    spec = harness.api.get(NETWORK_POLICY, NAME)["spec"]
    harness.api.remove(AGENT, NAME)
    await harness.reconcile()
    assert harness.names(DEPLOYMENT) == harness.names(SERVICE) == []
    assert harness.api.get(NETWORK_POLICY, NAME)["spec"] == spec
    harness.api.remove(POD, ("team", "one"))
    assert harness.names(NETWORK_POLICY) == ["coordinator"]
    harness.api.remove(POD, ("team", "two"))
    assert harness.names(NETWORK_POLICY) == []


def told(harness):
    return [(event["type"], event["reason"]) for event in harness.api.all(EVENT)]


async def test_what_stays_missing_is_a_warning_after_a_moment_and_its_end_is_told(harness):
    put(harness, agents=[{"name": "researcher"}])
    assert await harness.reconcile() == PATIENCE
    harness.clock.now = "2026-11-21T12:00:07Z"
    await harness.reconcile()
    assert told(harness) == []
    harness.clock.now = "2026-11-21T12:00:08Z"
    assert await harness.reconcile() is None
    assert told(harness) == [("Warning", "AgentNotFound")]
    await harness.reconcile()
    harness.api.put(AGENT, agent_object("researcher"))
    await harness.reconcile()
    assert told(harness) == [("Warning", "AgentNotFound"), ("Normal", "ResolvedRefs")]


async def test_each_change_is_one_line_of_the_log_and_nothing_else_is(harness, caplog):
    put(harness, replicas=0)
    with caplog.at_level(logging.INFO, logger="diptych_operator"):
        await harness.until_done()
        lines = [record.change for record in caplog.records]
        assert [(line["verb"], line["kind"], line["why"]) for line in lines] == [
            ("created", kind, "it was not there")
            for kind in ("ConfigMap", "ConfigMap", *(kind.name for kind in CHILDREN))
        ]
        assert {(line["owner"], line["generation"]) for line in lines} == {(str(KEY), 1)}
        assert caplog.messages[2] == (
            "Agent team/coordinator, generation 1: created ServiceAccount coordinator: it was not "
            "there"
        )
        caplog.clear()
        harness.api.edit(SERVICE, NAME, lambda c: c["spec"].update(selector={"app": "evil"}))
        await harness.until_done()
        put(harness, replicas=1)
        await harness.until_done()
        assert [
            (r.change["generation"], r.change["kind"], r.change["why"]) for r in caplog.records
        ] == [
            (1, "Service", "somebody has changed it"),
            (2, "Deployment", "what the Agent needs has changed"),
        ]


async def test_a_status_speaks_of_the_generation_that_was_reconciled(harness):
    put(harness)
    await harness.until_done()
    harness.api.settle()
    await harness.until_done()
    harness.api.remove(SERVICE, NAME)

    def before(request, content):
        if "/services/" in request.path:
            harness.api.before = lambda *_: None
            edited = harness.api.edit(AGENT, NAME, lambda one: one["spec"].update(replicas=2))
            harness.cache.put(AGENT, copy.deepcopy(edited))  # as a watch does

    harness.api.before = before
    await harness.reconcile()
    status = harness.api.get(AGENT, NAME)["status"]
    assert status["observedGeneration"] == 1
    assert {one["observedGeneration"] for one in status["conditions"]} == {1}
    assert status["pods"] == "1/1"
    await harness.until_done()
    assert harness.api.get(AGENT, NAME)["status"]["observedGeneration"] == 2


async def test_refused_pods_are_tried_again_every_half_minute_until_they_are_not(
    harness, monkeypatch
):
    put(harness)
    await harness.reconcile()
    refused = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}
    harness.api.edit(DEPLOYMENT, NAME, lambda d: d.update(status={"conditions": [refused]}))
    before = harness.api.get(DEPLOYMENT, NAME)
    assert 29 < await harness.reconcile() <= 30
    assert harness.api.get(DEPLOYMENT, NAME) == before
    monkeypatch.setattr(agents, "NUDGE_SECONDS", 0)
    await harness.reconcile()
    nudged = copy.deepcopy(harness.api.get(DEPLOYMENT, NAME))
    assert nudged["metadata"]["annotations"].pop("diptych.dev/pods-retried")
    assert nudged["metadata"]["annotations"] == before["metadata"]["annotations"]
    assert nudged["spec"] == before["spec"]  # no pod is replaced
    harness.api.settle()
    await harness.reconcile()
    harness.api.writes.clear()
    await harness.reconcile()
    assert harness.api.writes == []
