"""What others add to a Deployment's pods is named, and undone where it is locked."""

from dataclasses import replace

import pytest
from support.agents import PLATFORM, agent_object
from support.reconciler_harness import NAME, served

from diptych_operator.desired.additions import additions_by_manager
from diptych_operator.desired.locked_fields import locked_field
from diptych_operator.resources.kinds import AGENT, DEPLOYMENT


def preloads(content):
    container = content["spec"]["template"]["spec"]["containers"][0]
    container["env"].append({"name": "LD_PRELOAD", "value": "/tmp/x.so"})


def another_container(content):
    pod = content["spec"]["template"]["spec"]
    pod["containers"].append({"name": "mesh", "image": "mesh:1"})


def a_limit(content):
    resources = content["spec"]["template"]["spec"]["containers"][0]["resources"]
    resources["limits"]["cpu"] = "1"


def a_runtime_class(content):
    content["spec"]["template"]["spec"]["runtimeClassName"] = "gvisor"


def restarted(content):
    metadata = content["spec"]["template"]["metadata"]
    metadata["annotations"] = {"kubectl.kubernetes.io/restartedAt": "2026-11-27T12:00:00Z"}


def annotated(content):
    restarted(content)
    content["spec"]["template"]["metadata"]["annotations"]["example.com/mesh"] = "on"


def scaled(content):
    content["spec"]["replicas"] = 3
    content["metadata"]["labels"]["team"] = "blue"


async def edited(harness, *changes):
    harness.api.put(AGENT, agent_object(replicas=3))
    await harness.until_done()
    harness.api.settle()
    await harness.until_done()
    for change in changes:
        harness.api.edit(DEPLOYMENT, NAME, change)
    await harness.until_done()
    harness.api.settle()
    await harness.until_done()
    status = harness.api.get(AGENT, NAME)["status"]
    return {one["type"]: one for one in status["conditions"]}, status["advice"]


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (preloads, "spec.containers[agent].env[LD_PRELOAD]"),
        (another_container, "spec.containers[mesh]"),
        (a_limit, "spec.containers[agent].resources.limits[cpu]"),
        (a_runtime_class, "spec.runtimeClassName"),
        (annotated, "metadata.annotations[example.com/mesh]"),
    ],
)
async def test_what_others_add_to_the_pods_stays_and_is_named(change, path):
    async with served() as harness:
        conditions, advice = await edited(harness, change)
    drifted = conditions["Drifted"]
    assert (drifted["status"], drifted["reason"]) == ("True", "FieldsAdded")
    assert drifted["message"].endswith(f"added to their Deployment: {path} (by kubectl-edit).")
    assert conditions["Ready"]["status"] == "True"
    assert advice.startswith("Serving, but: The pods have what no manifest says")
    assert "kubectl edit deployment coordinator" in advice


@pytest.mark.parametrize("change", [scaled, restarted])
async def test_what_changes_no_pod_is_no_drift(change):
    async with served() as harness:
        conditions, _ = await edited(harness, change)
    assert "Drifted" not in conditions


@pytest.mark.parametrize(
    ("lock", "change"),
    [
        ("spec.containers[agent].env[LD_*]", preloads),
        ("spec.runtimeClassName", a_runtime_class),
        ("spec.containers[*].image", another_container),
        ("metadata.annotations[example.com/*]", annotated),
    ],
)
async def test_what_is_locked_is_undone(lock, change):
    pods = replace(PLATFORM.pods, locked=(locked_field(lock),))
    async with served(platform=replace(PLATFORM, pods=pods)) as harness:
        conditions, _ = await edited(harness)
        before = harness.api.get(DEPLOYMENT, NAME)["spec"]
        assert "Drifted" not in conditions
        harness.api.edit(DEPLOYMENT, NAME, change)
        await harness.until_done()
        assert harness.api.get(DEPLOYMENT, NAME)["spec"] == before


async def test_a_lock_leaves_other_additions_alone():
    pods = replace(PLATFORM.pods, locked=(locked_field("spec.containers[agent].env[PYTHON*]"),))
    async with served(platform=replace(PLATFORM, pods=pods)) as harness:
        conditions, _ = await edited(harness, preloads)
    assert "LD_PRELOAD" in conditions["Drifted"]["message"]


def test_a_field_that_is_ours_too_is_no_addition():
    def entry(manager, **env):
        keys = {f'k:{{"name":"{name}"}}': {".": {}, "f:value": {}} for name in env}
        container = {'k:{"name":"agent"}': {".": {}, "f:env": {".": {}, **keys}}}
        pod = {"f:spec": {"f:containers": container}}
        return {"manager": manager, "fieldsV1": {"f:spec": {"f:template": pod}}}

    managed = [entry("diptych", PORT=1), entry("kubectl-set", PORT=1, X=1), {"manager": "hpa"}]
    assert additions_by_manager(managed) == [(), ("spec.containers[agent].env[X]",), ()]
