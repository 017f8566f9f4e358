"""What keeps a pod from becoming ready."""

from datetime import datetime

import pytest
from support.live_objects import deployment, pod, waiting

from diptych_operator.desired.drift import ADDED
from diptych_operator.status.condition import Problem
from diptych_operator.status.pods import is_held_up, pod_problem, start_problem

UNREADY = {"type": "Ready", "status": "False"}
CONTAINERS_READY = {"type": "ContainersReady", "status": "True"}


@pytest.mark.parametrize(
    ("broken", "reason", "words"),
    [
        pytest.param(
            waiting("ImagePullBackOff", 'Back-off pulling image "x:1": ErrImagePull: not found'),
            "ImagePullFailed",
            "spec.container.image, or make the image available. not found",
            id="an image that is not there",
        ),
        pytest.param(
            pod(
                initContainerStatuses=[
                    {
                        "name": "certificates",
                        "image": "y:1",
                        "state": {"waiting": {"reason": "ErrImagePull", "message": "no"}},
                    }
                ]
            ),
            "ImagePullFailed",
            "y:1 of container certificates of spec.podTemplate cannot be pulled; correct it there,",
            id="the image of an init container",
        ),
        pytest.param(
            waiting(
                "CrashLoopBackOff",
                name="proxy",
                lastState={"terminated": {"exitCode": 2, "message": "usage: proxy"}},
            ),
            "CrashLooping",
            "The container proxy of spec.podTemplate ends with exit code 2: `kubectl logs "
            "--previous -l app.kubernetes.io/instance=a -c proxy` says why",
            id="a sidecar that crashes",
        ),
        pytest.param(
            waiting("CreateContainerConfigError", 'secret "s" not found'),
            "ContainerNotMade",
            'secret "s" not found',
            id="a variable's Secret that is missing",
        ),
        pytest.param(
            waiting(
                "CrashLoopBackOff",
                lastState={"terminated": {"exitCode": 2, "message": "spec.tools: is wrong\n"}},
            ),
            "ConfigError",
            "does not start: spec.tools: is wrong",
            id="a manifest that the pod cannot use",
        ),
        pytest.param(
            waiting(
                "CrashLoopBackOff",
                lastState={"terminated": {"exitCode": 1, "message": "a secret in a stack"}},
            ),
            "CrashLooping",
            "kubectl logs --previous -l app.kubernetes.io/instance=a -c agent` says why",
            id="a crash, whose last words are not repeated",
        ),
        pytest.param(
            pod(
                containerStatuses=[
                    {
                        "ready": False,
                        "state": {"running": {}},
                        "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
                    }
                ]
            ),
            "OutOfMemory",
            "raise spec.container.resources.limits.memory",
            id="too little memory, between two starts",
        ),
        pytest.param(
            pod(
                containerStatuses=[
                    {
                        "ready": False,
                        "state": {
                            "terminated": {
                                "exitCode": 128,
                                "reason": "StartError",
                                "message": "runc create failed: container init was OOM-killed "
                                "(memory limit too low?): unknown",
                            }
                        },
                    }
                ]
            ),
            "OutOfMemory",
            "raise spec.container.resources.limits.memory",
            id="too little memory to start",
        ),
        pytest.param(
            pod(
                conditions=[
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "0/1 nodes are available",
                    }
                ]
            ),
            "Unschedulable",
            "0/1 nodes are available",
            id="no node",
        ),
        pytest.param(
            {
                **pod(conditions=[{**UNREADY, "lastTransitionTime": "9:00"}, CONTAINERS_READY]),
                "spec": {"nodeName": "worker"},
            },
            "NodeSilent",
            "Its node worker does not report since 9:00.",
            id="a node that is silent",
        ),
        pytest.param(
            pod(phase="Failed", message="Evicted"), "PodFailed", "Evicted", id="an evicted pod"
        ),
    ],
)
def test_a_problem_of_a_pod_is_reported_with_what_to_do(broken, reason, words):
    problem = pod_problem(broken)
    assert problem.reason == reason
    assert words in problem.message


@pytest.mark.parametrize(
    "fine",
    [
        pytest.param(waiting("ContainerCreating"), id="a pod that has just begun"),
        pytest.param(pod(phase="Succeeded"), id="a pod that is done"),
        pytest.param(
            pod(
                containerStatuses=[{"state": {"terminated": {"exitCode": 0}}}],
            ),
            id="a container that has ended without an error",
        ),
        pytest.param(
            pod(
                conditions=[
                    {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
                ]
            ),
            id="a pod that is not scheduled yet",
        ),
        pytest.param(
            pod(conditions=[{"type": "PodScheduled", "status": "True", "reason": "Unschedulable"}]),
            id="a pod that has been scheduled at last",
        ),
        pytest.param(
            pod(conditions=[UNREADY, {**CONTAINERS_READY, "status": "False"}]),
            id="a pod that is not ready yet, as its kubelet says",
        ),
        pytest.param(
            pod(conditions=[{**UNREADY, "reason": "ReadinessGatesNotReady"}, CONTAINERS_READY]),
            id="a pod that waits for a readiness gate",
        ),
        pytest.param(
            {"metadata": {"deletionTimestamp": "now"}, "status": {"phase": "Failed"}},
            id="a pod that is being deleted",
        ),
        pytest.param({"metadata": {}}, id="a pod without a status"),
        pytest.param(
            pod(
                containerStatuses=[
                    {"ready": True, "lastState": {"terminated": {"exitCode": 1}}, "state": {}}
                ]
            ),
            id="a pod that has recovered",
        ),
    ],
)
def test_a_pod_without_a_problem_has_none(fine):
    assert pod_problem(fine) is None


def test_only_the_end_of_a_containers_output_is_repeated():
    output = "beginning " + "x" * 200 + "\n" + "y" * 199
    problem = pod_problem(waiting("CreateContainerError", output))
    last = "x" * 200 + " " + "y" * 199
    assert problem.message == f"The container cannot be made: {last}"


CRASHED = {"terminated": {"exitCode": 1}}


@pytest.mark.parametrize(
    ("name", "whose"),
    [
        ("own", "of spec.podTemplate"),
        ("vault", "of the platform (agents.podTemplate of the chart)"),
        ("edited", "which kubectl-edit has added to the Deployment"),
        ("mesh", "which a webhook of the cluster injects and the Agent does not name"),
    ],
)
def test_it_is_said_whose_a_container_is_that_crashes(name, whose):
    live = deployment()
    live["metadata"][ADDED] = {"spec.containers[edited]": "kubectl-edit"}
    names = ("agent", "own", "vault", "edited")
    live["spec"]["template"] = {"spec": {"containers": [{"name": one} for one in names]}}
    broken = pod(containerStatuses=[{"name": name, "lastState": CRASHED}])
    broken["metadata"]["namespace"] = "team"
    assert pod_problem(broken, live, {"own"}).message == (
        f"The container {name} {whose} ends with exit code 1: `kubectl logs --previous -n team "
        f"-l app.kubernetes.io/instance=a -c {name}` says why."
    )


def test_a_program_that_the_image_lacks_is_said_with_the_image():
    said = 'exec: "tool": executable file not found in $PATH: unknown'
    assert pod_problem(waiting("RunContainerError", said, name="side")).message == (
        f"The container side of spec.podTemplate (image x:1) cannot be made: {said}"
    )


def pending(since, **status):
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": since}
    return pod(**{"phase": "Pending", "conditions": [scheduled], **status})


def test_a_pod_that_does_not_start_is_asked_about_after_a_moment():
    now = datetime.fromisoformat("2026-11-27T12:01:00Z").timestamp()
    long, short = "2026-11-27T12:00:45Z", "2026-11-27T12:00:55Z"
    assert is_held_up(pending(long), now)
    says_why = waiting("ErrImagePull")["status"]
    fine = [pending(short), pending(long, phase="Running"), pending(long, conditions=[])]
    assert not any(is_held_up(one, now) for one in (*fine, pending(long, **says_why)))


@pytest.mark.parametrize(
    ("reason", "note", "found"),
    [
        ("FailedMount", 'volume "ca": configmap "corporate-ca" not found', "VolumeNotMounted"),
        ("FailedMount", 'volume "key": secret "tls" not found', "VolumeNotMounted"),
        ("FailedAttachVolume", "Multi-Attach error", "VolumeNotMounted"),
        ("FailedCreatePodSandBox", "the network plugin is not ready", "PodNotStarted"),
    ],
)
def test_the_newest_event_that_names_a_cause_says_why_a_pod_does_not_start(reason, note, found):
    named = {"metadata": {"name": "a-1", "creationTimestamp": "12:00"}}
    said = [
        ("FailedMount", "an older one", "12:01"),
        (reason, note, "12:02"),
        ("FailedMount", "Unable to attach or mount volumes: timed out", "12:03"),
    ]
    warnings = [{"reason": r, "note": n, "deprecatedLastTimestamp": at} for r, n, at in said]
    message = f"Pod a-1, made 12:00, does not start: {note}"
    assert start_problem(named, warnings) == Problem(found, message)
    assert start_problem(named, []) is None
