"""The operator dies, at every moment that matters, or is away: agents and their objects do not."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.dump import differences, normalised
from harness.kubectl import eventually
from harness.lives import lives
from harness.objects import agent
from harness.release import Release
from harness.space import Space
from harness.telling import say

pytestmark = pytest.mark.alone(leaves_release=True)

SETTLING_SECONDS = 5
HELLO = ["{}", "Hello!"]
TEAM = [agent("lead", HELLO, agents=[{"name": "aide"}]), agent("aide", HELLO)]
CHANGED = [agent("lead", HELLO, agents=[{"name": "aide"}, {"name": "other"}]), TEAM[1]]


@pytest.mark.nightly  # tests/ has it against a double: K2
def test_an_operator_that_is_killed_at_each_write_leaves_what_an_undisturbed_one_leaves(
    space: Space, other_space: Space, diptych: Release, tmp_path: Path
):
    for manifests in (TEAM, CHANGED):
        space.serve(*manifests)
    with _away(diptych):
        writes = []
        for manifests in (TEAM, CHANGED):
            other_space.kubectl.apply(*manifests)
            writes += lives(
                diptych, other_space.name, tmp_path, lambda: _is_carried_out(other_space)
            )
    say(f"the operator was killed at {len(writes)} writes")
    for kind in ("configmaps", "deployments", "services", "networkpolicies", "status"):
        assert any(kind in write for write in writes), f"none of {kind} among {writes}"
    _are_alike(space, other_space)


def test_an_operator_that_is_killed_goes_on_and_agents_are_deleted_while_it_is_away(
    space: Space, other_space: Space, diptych: Release
):
    space.serve(*TEAM)
    for name in ("lead", "aide"):
        space.kubectl.wait_for_condition(name, "Degraded", "False")
    before = _versions(space)
    other_space.kubectl.apply(*TEAM)
    diptych.kubectl.kill("-l", diptych.operator)
    other_space.kubectl.wait_until_ready("lead", "aide")
    _are_alike(space, other_space)
    time.sleep(SETTLING_SECONDS)
    assert _versions(space) == before  # where nothing was left to do, it wrote nothing

    with _away(diptych):
        space.kubectl("delete", "agents.diptych.dev", "--all", "--timeout=20s")
        owned = "app.kubernetes.io/managed-by=diptych-operator"
        kinds = "deployments,services,configmaps,networkpolicies,serviceaccounts,pods"
        eventually(lambda: not space.kubectl.list(kinds, owned), seconds=60, what="all is gone")


@contextlib.contextmanager
def _away(diptych: Release) -> Iterator[None]:
    """Scale the operator down while a block lasts."""
    diptych.kubectl("scale", "deployment", "diptych", "--replicas=0")
    try:
        eventually(lambda: not diptych.kubectl.list("pods", diptych.operator), seconds=60)
        yield
    finally:
        diptych.kubectl("scale", "deployment", "diptych", "--replicas=1")
        diptych.kubectl("rollout", "status", "deployment", "diptych", "--timeout=120s")


def _is_carried_out(space: Space) -> bool:
    """Whether each Agent's newest generation is ready, and nothing of an older one is left."""
    agents = space.kubectl.list("agents.diptych.dev")
    configs = space.kubectl.list("configmaps", "app.kubernetes.io/managed-by=diptych-operator")
    return len(configs) == 2 * len(agents) and all(  # a manifest and an access file each
        any(
            (condition["type"], condition["status"]) == ("Ready", "True")
            and condition["observedGeneration"] == agent["metadata"]["generation"]
            for condition in agent.get("status", {}).get("conditions", ())
        )
        for agent in agents
    )


def _versions(space: Space) -> dict[str, str]:
    """Give what changes with each write, by object."""
    kinds = "agents.diptych.dev,deployments,services,configmaps,networkpolicies,serviceaccounts"
    return {
        f"{found['kind']}/{found['metadata']['name']}": found["metadata"]["resourceVersion"]
        for found in space.kubectl.list(kinds)
    }


def _are_alike(space: Space, other_space: Space) -> None:
    def unlike() -> list[str]:
        return list(differences(normalised(space.kubectl), normalised(other_space.kubectl)))

    eventually(
        lambda: not unlike(),
        seconds=60,
        what="both are alike",
        otherwise=lambda: "\n".join(unlike()),
    )
