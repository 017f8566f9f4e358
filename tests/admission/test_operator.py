"""The operator's account may touch its own objects only, and that is all that it needs.

It works here with its own token, under the chart's roles and policy.
"""

import itertools
import re

import pytest
from support.admission import add, manifest
from support.chart import rendered
from support.real_api import ErrorResponse, RealApi
from support.reconciler_harness import Harness

from diptych_operator.controller.metrics import Metrics
from diptych_operator.kubernetes.client import KubernetesClient
from diptych_operator.resources.kinds import (
    AGENT,
    CLAIM_NAME,
    CONFIG_MAP,
    CRON_JOB,
    DEPLOYMENT,
    INGRESS,
    LEASE,
    NETWORK_POLICY,
    POD_DISRUPTION_BUDGET,
    SERVICE,
    SERVICE_ACCOUNT,
)

NUMBERS = itertools.count()
OWNED = (SERVICE_ACCOUNT, NETWORK_POLICY, SERVICE, POD_DISRUPTION_BUDGET, DEPLOYMENT)
REDIS = {"redis": {"serviceRef": {"name": "redis"}}}
POD = {"containers": [{"name": "a", "image": "i"}]}
SPECS = {
    SERVICE_ACCOUNT: {},
    NETWORK_POLICY: {"spec": {"podSelector": {}}},
    SERVICE: {"spec": {"ports": [{"port": 80}]}},
    POD_DISRUPTION_BUDGET: {"spec": {"maxUnavailable": 1, "selector": {}}},
    DEPLOYMENT: {
        "spec": {
            "selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": POD},
        }
    },
    CRON_JOB: {
        "spec": {
            "schedule": "0 7 * * *",
            "jobTemplate": {
                "spec": {"template": {"spec": {**POD, "restartPolicy": "Never"}}},
            },
        }
    },
    CONFIG_MAP: {"data": {"secret": "of somebody else"}},
    INGRESS: {"spec": {"defaultBackend": {"service": {"name": "a", "port": {"number": 80}}}}},
}
KINDS = [pytest.param(kind, id=kind.name) for kind in SPECS]


@pytest.fixture(scope="module")
def operator(api: RealApi) -> RealApi:
    """The operator's account, with the rights of the chart in all namespaces."""
    for content in rendered():
        if content["kind"] in {"ClusterRole", "ClusterRoleBinding"}:
            add(api, content)
    return api.as_account("here", "diptych")


@pytest.fixture
async def harness(api, operator):
    """The operator at work, for one Agent with all that an Agent can need."""
    name = f"agent-{next(NUMBERS)}"
    spec = {"replicas": 2, "sessions": REDIS}
    api.create(AGENT, manifest(name, "team", **spec))
    async with KubernetesClient(operator.connection, Metrics().count_request) as client:
        found = Harness(api, client)
        found.name = ("team", name)
        await found.reconcile(found.name)
        yield found


def accepted(harness):
    conditions = harness.api.get(AGENT, harness.name)["status"]["conditions"]
    return next((c["status"], c["reason"]) for c in conditions if c["type"] == "Accepted")


def config_map(harness):
    """The one ConfigMap with the resolved manifest; another says who may ask."""
    (found,) = (
        content for content in harness.api.all(CONFIG_MAP, "team") if manifest_of(harness, content)
    )
    return found


def manifest_of(harness, content):
    return re.fullmatch(rf"{harness.name[1]}-[0-9a-f]{{10}}", content["metadata"]["name"])


def strip(api, kind, name, *parts):
    """Take labels, owners or the operator's field manager from an object, as anybody may."""
    content = api.get(kind, name)
    gone = {"labels": {}, "ownerReferences": [], "managedFields": [{}]}
    content["metadata"] |= {part: gone[part] for part in parts}
    api.ask("PUT", kind.path(*name), content)


async def test_an_agent_is_served_with_all_its_objects(harness):
    assert accepted(harness) == ("True", "Accepted")
    for kind in OWNED:
        assert harness.api.get(kind, harness.name)
    assert config_map(harness)["data"]


@pytest.mark.parametrize(
    "parts", [("labels",), ("ownerReferences",), ("labels", "ownerReferences")]
)
async def test_what_lost_its_label_or_its_owner_is_mended(harness, parts):
    before = {kind: harness.api.get(kind, harness.name)["metadata"] for kind in OWNED}
    for kind in OWNED:
        strip(harness.api, kind, harness.name, *parts)
    strip(harness.api, CONFIG_MAP, ("team", config_map(harness)["metadata"]["name"]), *parts)
    await harness.reconcile(harness.name)
    assert accepted(harness) == ("True", "Accepted")
    for kind in OWNED:
        after = harness.api.get(kind, harness.name)["metadata"]
        for part in ("labels", "ownerReferences"):
            assert after[part] == before[kind][part], kind.name


async def test_what_is_not_needed_any_more_is_deleted(harness):
    former = config_map(harness)["metadata"]["name"]
    change = {"replicas": 1, "description": "another"}
    harness.api.merge(AGENT, harness.name, {"spec": change})
    await harness.reconcile(harness.name)
    with pytest.raises(ErrorResponse, match="NotFound"):
        harness.api.get(POD_DISRUPTION_BUDGET, harness.name)
    found = [c for c in harness.api.all(CONFIG_MAP, "team") if manifest_of(harness, c)]
    assert sorted(c["metadata"]["name"] == former for c in found) == [False, True]
    roll_out(harness)
    await harness.reconcile(harness.name)
    assert config_map(harness)["metadata"]["name"] != former


async def test_a_schedules_objects_are_made_once_and_deleted_with_it(harness):
    def found():
        return {
            (kind.name, one["metadata"]["name"]): one["metadata"]["resourceVersion"]
            for kind in (SERVICE_ACCOUNT, NETWORK_POLICY, CRON_JOB)
            for one in harness.api.all(kind, "team")
            if re.match(rf"{harness.name[1]}[.-]", one["metadata"]["name"])
        }

    daily = {"name": "daily", "cron": "0 7 * * *", "message": "What is new?"}
    harness.api.merge(AGENT, harness.name, {"spec": {"schedules": [daily]}})
    await harness.reconcile(harness.name)
    assert accepted(harness) == ("True", "Accepted")
    made = found()
    assert sorted(kind for kind, _ in made) == ["CronJob", "NetworkPolicy", "ServiceAccount"]
    await harness.reconcile(harness.name)
    assert found() == made
    harness.api.merge(AGENT, harness.name, {"spec": {"schedules": []}})
    await harness.reconcile(harness.name)
    assert not found()


async def test_a_foreign_config_map_of_the_name_is_a_conflict(harness):
    name = ("team", config_map(harness)["metadata"]["name"])
    harness.api.delete(CONFIG_MAP, name)
    metadata = {"namespace": name[0], "name": name[1]}
    harness.api.create(CONFIG_MAP, {"metadata": metadata, "data": {"a": "b"}})
    await harness.reconcile(harness.name)
    assert accepted(harness) == ("False", "NameConflict")
    assert config_map(harness)["data"] == {"a": "b"}


def roll_out(harness):
    """Say what the controllers of a cluster would, when all pods are of the newest revision."""
    live = harness.api.get(DEPLOYMENT, harness.name)
    replicas = live["spec"]["replicas"]
    counts = dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas"), replicas)
    status = {"observedGeneration": live["metadata"]["generation"], **counts}
    path = f"{DEPLOYMENT.path(*harness.name)}/status"
    patch = {"status": {**status, "availableReplicas": replicas}}
    harness.api.ask("PATCH", path, patch, "application/merge-patch+json")


# ---- whoever holds its token


@pytest.mark.parametrize("kind", KINDS)
def test_it_cannot_change_what_is_not_its_own(api, operator, kind):
    name = theirs(api, kind, "changed")
    ours = {"metadata": {"labels": {"app.kubernetes.io/managed-by": "diptych-operator"}}}
    if kind is INGRESS:  # its role has no right to it in the first place
        with pytest.raises(ErrorResponse, match="cannot patch resource"):
            operator.merge(kind, name, ours)
        return
    with pytest.raises(ErrorResponse, match="changes its own only"):
        operator.merge(kind, name, ours)
    applied = {"apiVersion": kind.api_version, "kind": kind.name, **SPECS[kind], **ours}
    path = f"{kind.path(*name)}?fieldManager=diptych&force=true"
    with pytest.raises(ErrorResponse, match="changes its own only"):
        operator.ask("PATCH", path, applied, "application/apply-patch+yaml")


@pytest.mark.parametrize("kind", KINDS)
def test_it_cannot_delete_what_is_not_its_own(api, operator, kind):
    name = theirs(api, kind, "deleted")
    with pytest.raises(ErrorResponse, match="deletes its own only"):
        operator.ask("DELETE", kind.path(*name))
    assert api.get(kind, name)


async def test_it_deletes_its_own_route_where_routes_are_switched_off(api, harness, operator):
    namespace, name = harness.name
    made = api.get(SERVICE, harness.name)["metadata"]
    kept = {part: made[part] for part in ("labels", "ownerReferences")}
    metadata = {"namespace": namespace, "name": name, **kept}
    api.create(INGRESS, {"metadata": metadata, **SPECS[INGRESS]})
    with pytest.raises(ErrorResponse, match="cannot create resource"):
        operator.create(INGRESS, {"metadata": {**metadata, "name": "more"}, **SPECS[INGRESS]})
    await harness.reconcile(harness.name)
    with pytest.raises(ErrorResponse, match="NotFound"):
        api.get(INGRESS, harness.name)


@pytest.mark.parametrize("kind", [kind for kind in SPECS if kind is not INGRESS])
def test_it_makes_nothing_without_its_label(operator, kind):
    content = {"metadata": {"name": "made", "namespace": "team"}, **SPECS[kind]}
    with pytest.raises(ErrorResponse, match="managed-by=diptych-operator only"):
        operator.create(kind, content)


def test_it_cannot_take_its_label_off(api, operator):
    name = ("team", "labelled")
    labels = {"app.kubernetes.io/managed-by": "diptych-operator"}
    metadata = {"namespace": name[0], "name": name[1], "labels": labels}
    api.create(SERVICE, {"metadata": metadata, **SPECS[SERVICE]})
    with pytest.raises(ErrorResponse, match="diptych-operator only"):
        operator.merge(SERVICE, name, {"metadata": {"labels": None}})


def test_it_makes_no_lease_but_its_claim_of_a_namespace(operator):
    spec = {"holderIdentity": "kubelet", "leaseDurationSeconds": 40}
    for metadata in ({"name": "node-1"}, {"generateName": "diptych-agents"}):
        with pytest.raises(ErrorResponse, match="makes no Lease but diptych-agents"):
            operator.create(LEASE, {"metadata": {**metadata, "namespace": "team"}, "spec": spec})
    claim = {"metadata": {"name": CLAIM_NAME, "namespace": "loose"}, "spec": spec}
    operator.create(LEASE, claim)


def theirs(api, kind, name):
    """Make an object of somebody else."""
    metadata = {"namespace": "team", "name": f"theirs-{name}"}
    api.create(kind, {"metadata": metadata, **SPECS[kind]})
    return "team", f"theirs-{name}"
