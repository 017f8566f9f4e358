"""How far the rollout of a live Deployment is, and which ConfigMaps its pods use."""

import pytest

from diptych_operator.desired.rollout import (
    is_replacing_pods,
    is_rolled_out,
    mounted_config_maps,
)


def deployment(wanted=None, generation=None, annotations=None, volumes=None, **status):
    """A live Deployment; the API server leaves out counts of zero."""
    spec = {} if wanted is None else {"replicas": wanted}
    metadata = {} if generation is None else {"generation": generation}
    if volumes is not None:
        spec["template"] = {"spec": {"volumes": volumes}}
    if annotations is not None:
        metadata["annotations"] = annotations
    return {"metadata": metadata, "spec": spec, "status": status}


def counts(observed=1, updated=1, total=1, available=1):
    return {
        "observedGeneration": observed,
        "updatedReplicas": updated,
        "replicas": total,
        "availableReplicas": available,
    }


@pytest.mark.parametrize(
    ("live", "expected"),
    [
        pytest.param(None, False, id="no Deployment"),
        pytest.param(deployment(1, 1, **counts()), True, id="all pods are available"),
        pytest.param(deployment(1, 1, **counts(observed=2)), True, id="a newer status"),
        pytest.param(deployment(1, 2, **counts()), False, id="a change is not observed yet"),
        pytest.param(deployment(2, 1, **counts(total=2, available=2)), False, id="an old pod"),
        pytest.param(deployment(1, 1, **counts(total=2)), False, id="a surplus pod"),
        pytest.param(deployment(1, 1, **counts(available=0)), False, id="no pod is available"),
        pytest.param(deployment(1, 1, **counts(available=2)), True, id="a pod goes just now"),
        pytest.param(deployment(0, 1, observedGeneration=1), True, id="scaled to zero"),
        pytest.param(deployment(0, 1), False, id="scaled to zero, not observed yet"),
        pytest.param(deployment(0), True, id="without a generation"),
        pytest.param(deployment(1, 1, observedGeneration=1), False, id="no pod yet"),
        pytest.param(deployment(None, 1, **counts()), True, id="one replica by default"),
        pytest.param(
            deployment(None, 1, observedGeneration=1), False, id="one by default, and no pod yet"
        ),
        pytest.param({"metadata": {}}, False, id="nothing is known"),
    ],
)
def test_a_rollout_is_over_when_all_pods_are_new_and_available(live, expected):
    assert is_rolled_out(live) is expected


def projected(*names):
    sources = [{"configMap": {"name": name}} for name in names]
    return {"name": "diptych", "projected": {"sources": sources}}


def test_the_newest_pods_mount_what_our_volume_has():
    ours = deployment(volumes=[{"name": "tmp"}, projected("a-1", "prompts")])
    assert mounted_config_maps(ours) == ("a-1", "prompts")
    for none in (None, deployment(), deployment(volumes=[{"name": "diptych"}])):
        assert mounted_config_maps(none) == ()


def pod(revision, *, drains=False, phase="Running"):
    metadata = {"labels": {"pod-template-hash": revision} if revision else {}}
    if drains:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return {"metadata": metadata, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        pytest.param([], False, id="no pod is known"),
        pytest.param([pod("new"), pod("new")], False, id="all are new"),
        pytest.param([pod("new"), pod("old", drains=True)], True, id="a former one drains"),
        pytest.param([pod("new"), pod("old")], True, id="a former one, whose deletion is not seen"),
        pytest.param([pod("new"), pod("new", drains=True)], False, id="a new one drains"),
        pytest.param(
            [pod("new"), pod("old", drains=True, phase="Succeeded")], False, id="it has ended"
        ),
        pytest.param([pod("old", drains=True)], True, id="scaled to zero, and one drains"),
        pytest.param([pod("new"), pod(None, drains=True)], False, id="a pod of no Deployment"),
    ],
)
def test_pods_are_being_replaced_until_those_of_the_former_revision_have_drained(pods, expected):
    live = deployment(1, 1, **counts())
    assert is_replacing_pods(live, pods) is expected
    assert is_replacing_pods(deployment(1, 2, **counts()), pods)
