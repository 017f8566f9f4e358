"""Many Agents at once, and one with more or fewer pods."""

import time

from harness.kubectl import eventually
from harness.objects import agent
from harness.space import Space

HELLO = ["{}", "Hello!"]
MANY = 100
SECONDS = 10


def test_a_hundred_agents_at_once_have_all_their_objects_within_seconds(space: Space):
    names = [f"a-{number}" for number in range(MANY)]
    space.kubectl.apply(*(agent(name, HELLO, replicas=0) for name in names))
    applied = time.monotonic()

    def made() -> bool:
        found = space.kubectl.list(
            "deployments,services", "app.kubernetes.io/managed-by=diptych-operator"
        )
        return len(found) == 2 * MANY

    eventually(made, seconds=60, what="all Deployments and Services are there")
    assert time.monotonic() - applied < SECONDS


def test_kubectl_scale_works_in_both_directions(space: Space):
    space.serve(agent("hello", HELLO))
    space.kubectl("scale", "agents.diptych.dev/hello", "--replicas=0")
    space.kubectl.wait_for_condition("hello", "Ready", "False", reason="ScaledToZero")
    eventually(lambda: not space.probe.reaches("hello"), seconds=60, what="nobody answers")
    space.kubectl("scale", "agents.diptych.dev/hello", "--replicas=1")
    space.kubectl.wait_until_ready("hello")
    eventually(lambda: space.probe.ask("hello").status == 200, seconds=5, what="it answers")
