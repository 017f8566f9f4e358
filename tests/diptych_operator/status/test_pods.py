"""What keeps a pod from becoming ready."""

import pytest
from support.live_objects import pod, waiting

from diptych_operator.status.pods import pod_address, pod_problem


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
            "kubectl logs --previous -l app.kubernetes.io/instance=a says why",
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


@pytest.mark.parametrize(
    ("content", "address"),
    [
        pytest.param(pod(phase="Running", podIP="10.0.0.1"), "10.0.0.1", id="it runs"),
        pytest.param(pod(phase="Pending", podIP="10.0.0.1"), None, id="it starts"),
        pytest.param(pod(phase="Succeeded", podIP="10.0.0.1"), None, id="it has ended"),
        pytest.param(pod(phase="Running"), None, id="it has no address yet"),
        pytest.param({"metadata": {}}, None, id="it has no status"),
        pytest.param(
            {
                "metadata": {"deletionTimestamp": "now"},
                "status": {"phase": "Running", "podIP": "10.0.0.1"},
            },
            None,
            id="it is being deleted",
        ),
    ],
)
def test_a_pod_has_an_address_while_it_runs(content, address):
    assert pod_address(content) == address
