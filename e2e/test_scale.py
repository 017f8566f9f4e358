"""How fast things are; many Agents at once, and one with more or fewer pods."""

import time
from datetime import datetime

import pytest
from harness.kubectl import AGENT_PODS, eventually
from harness.objects import agent
from harness.release import Release
from harness.space import Space
from harness.telling import say

HELLO = ["{}", "Hello!"]
MANY = 100
MADE_SECONDS = 10
READY_SECONDS = 15


@pytest.mark.nightly
@pytest.mark.alone(leaves_release=True)
def test_a_hundred_agents_at_once_have_all_their_objects_within_seconds(
    space: Space, diptych: Release
):
    names = [f"a-{number}" for number in range(MANY)]
    before, began = _operator_seconds(diptych), time.monotonic()
    space.kubectl.apply(*(agent(name, HELLO, replicas=0) for name in names))
    applied = time.monotonic()

    def made() -> bool:
        found = space.kubectl.list(
            "deployments,services", "app.kubernetes.io/managed-by=diptych-operator"
        )
        return len(found) == 2 * MANY

    eventually(made, seconds=60, what="all Deployments and Services are there")
    after = time.monotonic() - applied
    worked = _operator_seconds(diptych) - before
    say(
        f"{MANY} Agents: applied in {applied - began:.1f} s, all is made {after:.1f} s after, by "
        f"{worked:.1f} s of the operator's work"
    )
    assert worked < MADE_SECONDS
    assert after < 2 * MADE_SECONDS  # others may keep the machine busy


@pytest.mark.nightly
@pytest.mark.alone(leaves_release=True)
def test_an_agent_is_ready_within_seconds_of_its_pods_start(space: Space):
    applied = time.monotonic()
    space.kubectl.apply(agent("hello", HELLO))
    space.kubectl.wait_until_ready("hello")
    after = time.monotonic() - applied
    (pod,) = space.kubectl.list("pods", AGENT_PODS)
    ready = space.kubectl.condition("hello", "Ready")["lastTransitionTime"]
    took = (_time(ready) - _time(pod["status"]["startTime"])).total_seconds()
    say(f"an Agent is ready {took:.0f} s after its pod's start, {after:.1f} s after its apply")
    assert took < READY_SECONDS


def test_kubectl_scale_works_in_both_directions(space: Space):
    space.serve(agent("hello", HELLO))
    space.kubectl("scale", "agents.diptych.dev/hello", "--replicas=0")
    space.kubectl.wait_for_condition("hello", "Ready", "True", reason="ScaledToZero")
    eventually(lambda: not space.probe.reaches("hello"), seconds=60, what="nobody answers")
    space.kubectl("scale", "agents.diptych.dev/hello", "--replicas=1")
    space.kubectl.wait_for_condition("hello", "Ready", "True", reason="Ready")

    def answers() -> bool:
        return space.probe.ask("hello", timeout=5).status == 200

    eventually(answers, seconds=20, what="it answers")


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _operator_seconds(diptych: Release) -> float:
    """Give the time that the operator has spent on a processor."""
    told = (
        "import os; ticks = open('/proc/1/stat').read().rsplit(') ', 1)[1].split()[11:13];"
        "print(sum(map(int, ticks)) / os.sysconf('SC_CLK_TCK'))"
    )
    pod = diptych.leader()
    assert pod
    return float(diptych.kubectl("exec", pod, "--", "python", "-c", told))
