"""What others add to a Deployment's pods is named, and undone where it is locked."""

from dataclasses import replace

import pytest
from support.agents import PLATFORM, agent_object
from support.reconciler_harness import NAME, served

from diptych_operator.desired.locked_fields import locked_field
from diptych_operator.resources.kinds import AGENT, DEPLOYMENT


def preloads(template):
    variable = {"name": "LD_PRELOAD", "value": "/tmp/x.so"}
    template["spec"]["containers"][0]["env"].append(variable)


def another_container(template):
    template["spec"]["containers"].append({"name": "mesh", "image": "mesh:1"})


def a_limit(template):
    template["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "1"


def a_runtime_class(template):
    template["spec"]["runtimeClassName"] = "gvisor"


def restarted(template):
    template["metadata"]["annotations"] = {"kubectl.kubernetes.io/restartedAt": "2026-11-27"}


def annotated(template):
    restarted(template)
    template["metadata"]["annotations"]["example.com/mesh"] = "on"


async def edited(change, *locks):
    """Have somebody edit a Deployment; give its template before and after, and the status."""
    pods = replace(PLATFORM.pods, locked=tuple(map(locked_field, locks)))
    async with served(platform=replace(PLATFORM, pods=pods)) as harness:
        api = harness.api
        api.put(AGENT, agent_object())
        await harness.until_done()
        api.settle()
        await harness.until_done()
        before = api.get(DEPLOYMENT, NAME)["spec"]["template"]
        api.edit(DEPLOYMENT, NAME, lambda live: change(live["spec"]["template"]))
        await harness.until_done()
        api.settle()
        await harness.until_done()
        return before, api.get(DEPLOYMENT, NAME)["spec"]["template"], api.get(AGENT, NAME)["status"]


def drifted(status):
    return [one["message"] for one in status["conditions"] if one["type"] == "Drifted"]


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (preloads, "spec.containers[agent].env[LD_PRELOAD]"),
        (another_container, "spec.containers[mesh]"),
        (a_limit, "spec.containers[agent].resources.limits.cpu"),
        (a_runtime_class, "spec.runtimeClassName"),
        (annotated, "metadata.annotations.example.com/mesh"),
    ],
)
async def test_what_others_add_to_the_pods_stays_and_is_named(change, path):
    before, after, status = await edited(change, "spec.containers[agent].env[PYTHON*]")
    assert before != after
    (message,) = drifted(status)
    assert message.endswith(f"added to their Deployment: {path} (by kubectl-edit).")
    assert status["advice"].startswith("Serving, but")
    assert "kubectl edit deployment coordinator" in status["advice"]


async def test_a_restart_is_no_drift():
    before, after, status = await edited(restarted)
    assert before != after
    assert not drifted(status)


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
    before, after, status = await edited(change, lock)
    assert after == before
    assert not drifted(status)
