"""What is said of an agent, from what was seen of it."""

from typing import Any

import pytest
from support.agents import agent

from diptych_operator.desired.references import LooseEnd
from diptych_operator.status.conditions import (
    Condition,
    Refusal,
    Shortage,
    View,
    agent_status,
    conditions,
)
from diptych_operator.status.events import transitions

NOW = "2026-11-21T12:00:00Z"
LATER = "2026-11-21T13:00:00Z"


def deployment(wanted=1, updated=1, available=1, total=None, generation=1, **status: Any):
    return {
        "metadata": {"generation": 1},
        "spec": {"replicas": wanted},
        "status": {
            "observedGeneration": generation,
            "replicas": updated if total is None else total,
            "updatedReplicas": updated,
            "availableReplicas": available,
            **status,
        },
    }


def pod(**status: Any):
    return {"metadata": {"labels": {"app.kubernetes.io/instance": "a"}}, "status": status}


def waiting(reason, message="", **container: Any):
    state = {"waiting": {"reason": reason, "message": message}}
    return pod(containerStatuses=[{"image": "x:1", "state": state, **container}])


def told(view, kind):
    return next(c for c in conditions(view) if c.type == kind)


DOWN = deployment(available=0)
REFUSED = Refusal("NameConflict", "There is another.")


@pytest.mark.parametrize(
    ("view", "status", "reason"),
    [
        pytest.param(View(deployment=deployment()), "True", "Ready", id="all is well"),
        pytest.param(View(), "False", "RollingOut", id="nothing is there yet"),
        pytest.param(View(deployment=DOWN), "False", "RollingOut", id="no pod is up"),
        pytest.param(
            View(deployment=deployment(generation=0)), "False", "RollingOut", id="not seen yet"
        ),
        pytest.param(
            View(deployment=deployment(updated=0, total=1)), "False", "RollingOut", id="old pods"
        ),
        pytest.param(
            View(deployment=deployment(total=2)), "False", "RollingOut", id="an old pod besides"
        ),
        pytest.param(
            View(deployment=deployment(0, 0, 0)), "False", "ScaledToZero", id="scaled to none"
        ),
        pytest.param(
            View(deployment=deployment(), shortages=(Shortage("server", "w", "away"),)),
            "True",
            "Degraded",
            id="ready, and misses something",
        ),
        pytest.param(
            View(deployment=deployment(), refusal=REFUSED),
            "True",
            "LastGoodRevision",
            id="the last good revision serves",
        ),
        pytest.param(View(refusal=REFUSED), "False", "NameConflict", id="refused from the start"),
        pytest.param(
            View(obstacle=Refusal("Forbidden", "")), "False", "Forbidden", id="it may not work"
        ),
        pytest.param(
            View(deployment=DOWN, pods=[waiting("ImagePullBackOff")]),
            "False",
            "ImagePullFailed",
            id="an image that cannot be pulled",
        ),
    ],
)
def test_ready_means_that_the_newest_pods_can_take_work(view, status, reason):
    found = told(view, "Ready")
    assert (found.status, found.reason) == (status, reason)


@pytest.mark.parametrize(
    ("view", "status", "reason"),
    [
        pytest.param(View(deployment=deployment()), "False", "UpToDate", id="done"),
        pytest.param(View(deployment=DOWN), "True", "RollingOut", id="rolling out"),
        pytest.param(View(refusal=REFUSED), "False", "NotAccepted", id="refused"),
        pytest.param(
            View(obstacle=Refusal("Forbidden", "")), "False", "Forbidden", id="not allowed to"
        ),
        pytest.param(
            View(
                deployment=deployment(
                    available=0,
                    conditions=[{"type": "Progressing", "reason": "ProgressDeadlineExceeded"}],
                )
            ),
            "False",
            "Stuck",
            id="stuck",
        ),
    ],
)
def test_progressing_says_whether_pods_are_being_changed(view, status, reason):
    found = told(view, "Progressing")
    assert (found.status, found.reason) == (status, reason)


@pytest.mark.parametrize(
    ("shortages", "status", "reason"),
    [
        pytest.param(None, "Unknown", "NotAsked", id="nobody was asked"),
        pytest.param((), "False", "NothingMissing", id="nothing"),
        pytest.param((Shortage("key", "a", "b"),), "True", "KeyMissing", id="a key"),
        pytest.param((Shortage("server", "a", "b"),), "True", "ToolServerUnavailable", id="tools"),
        pytest.param((Shortage("agent", "a", "b"),), "True", "AgentUnavailable", id="an agent"),
        pytest.param(
            (Shortage("agent", "a", "b"), Shortage("key", "c", "d")), "True", "Missing", id="both"
        ),
    ],
)
def test_degraded_says_what_is_missing(shortages, status, reason):
    found = told(View(shortages=shortages), "Degraded")
    assert (found.status, found.reason) == (status, reason)


def test_what_an_earlier_operator_was_told_holds_until_this_one_has_asked():
    former = {"type": "Degraded", "status": "True", "reason": "KeyMissing", "message": "key k"}
    view = View(deployment=deployment(), former=former)
    assert told(view, "Degraded") == Condition("Degraded", "True", "KeyMissing", "key k")
    assert told(view, "Ready").reason == "Degraded"


def test_degraded_names_everything_once():
    shortages = (Shortage("server", "w", "away"), Shortage("key", "k", "gone")) * 2
    message = told(View(shortages=shortages), "Degraded").message
    assert message == "server w: away; key k: gone"


def test_all_loose_ends_are_named_under_the_first_ones_reason():
    ends = (LooseEnd("AgentNotFound", "No b."), LooseEnd("ServiceNotFound", "No w."))
    found = told(View(loose_ends=ends), "ResolvedRefs")
    assert (found.status, found.reason, found.message) == (
        "False",
        "AgentNotFound",
        "No b.; No w.",
    )


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
def test_what_is_wrong_with_a_pod_is_said_with_what_to_do(broken, reason, words):
    found = told(View(deployment=DOWN, pods=[broken]), "Ready")
    assert found.reason == reason
    assert words in found.message


@pytest.mark.parametrize(
    "fine",
    [
        pytest.param(waiting("ContainerCreating"), id="a pod that has just begun"),
        pytest.param(pod(phase="Succeeded"), id="a pod that is done"),
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
def test_a_pod_without_trouble_has_none(fine):
    assert told(View(deployment=DOWN, pods=[fine]), "Ready").reason == "RollingOut"


def test_a_pod_that_the_cluster_refuses_is_told_by_the_deployment():
    failure = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}
    found = told(View(deployment=deployment(available=0, conditions=[failure])), "Ready")
    assert (found.reason, found.message) == (
        "PodsRefused",
        "The cluster refuses the pods: exceeded quota",
    )


def test_a_bad_rollout_says_that_the_revision_before_keeps_serving():
    rolling = deployment(updated=1, total=2, available=1)
    found = told(View(deployment=rolling, pods=[waiting("ErrImagePull")]), "Ready")
    assert found.message.endswith("The revision before it keeps serving meanwhile.")


def test_a_time_stays_as_long_as_the_status_does():
    first = agent_status(agent(), View(deployment=DOWN), NOW)
    same = agent_status(_with(first), View(deployment=DOWN), LATER)
    assert same == first
    other = agent_status(_with(first), View(deployment=deployment()), LATER)
    times = {c["type"]: c["lastTransitionTime"] for c in other["conditions"]}
    assert times["Ready"] == LATER
    assert times["Accepted"] == NOW


def test_the_status_is_of_the_generation_that_was_seen():
    status = agent_status(agent(), View(deployment=deployment()), NOW)
    assert status["observedGeneration"] == 1
    assert {c["observedGeneration"] for c in status["conditions"]} == {1}
    assert status["replicas"] == 1
    assert status["url"] == "http://coordinator.team:8000"
    assert status["selector"] == (
        "app.kubernetes.io/instance=coordinator,app.kubernetes.io/name=diptych-agent"
    )


def test_a_message_never_outgrows_the_crd():
    ends = [LooseEnd("ServiceNotFound", f"{n}" * 50) for n in range(200)]
    status = agent_status(agent(), View(loose_ends=ends), NOW)
    assert max(len(c["message"]) for c in status["conditions"]) <= 4096


def _with(status):
    one = agent()
    return type(one)(**{f: getattr(one, f) for f in one.__slots__} | {"status": status})


def events(before, after):
    old = agent_status(agent(), before, NOW) if before else {}
    new = agent_status(agent(), after, NOW)
    return [(t.reason, "Warning" if t.is_warning else "Normal") for t in transitions(old, new)]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param(None, View(), [], id="a good start is no news"),
        pytest.param(None, View(refusal=REFUSED), [("NameConflict", "Warning")], id="a bad one is"),
        pytest.param(View(), View(deployment=deployment()), [("Ready", "Normal")], id="ready"),
        pytest.param(
            View(deployment=deployment()),
            View(deployment=DOWN),
            [("RollingOut", "Normal")],
            id="roll",
        ),
        pytest.param(
            View(deployment=DOWN),
            View(deployment=DOWN, pods=[waiting("ErrImagePull")]),
            [("ImagePullFailed", "Warning")],
            id="a pod in trouble",
        ),
        pytest.param(
            View(deployment=deployment(), shortages=()),
            View(deployment=deployment(), shortages=(Shortage("key", "k", "gone"),)),
            [("Degraded", "Normal"), ("KeyMissing", "Warning")],
            id="a key has gone",
        ),
        pytest.param(
            View(loose_ends=(LooseEnd("AgentNotFound", ""),)),
            View(),
            [("ResolvedRefs", "Normal")],
            id="an agent has come",
        ),
        pytest.param(View(), View(), [], id="nothing has changed"),
    ],
)
def test_an_event_tells_what_has_changed(before, after, expected):
    assert events(before, after) == expected


def test_an_events_note_is_never_longer_than_the_api_allows():
    status = agent_status(agent(), View(refusal=Refusal("TooLarge", "…" * 2000)), NOW)
    [event] = transitions({}, status)
    assert len(event.note.encode()) <= 1024
