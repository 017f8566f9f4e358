"""Questions that are asked while pods are replaced: none is lost."""

import pytest
from harness.objects import agent
from harness.space import Space

# Each answer takes a while, so that pods end while they answer.
SLOW = {"delay_ms": 200, "content": "{}"}
SECONDS = 40


@pytest.mark.long
def test_no_question_is_lost_while_the_manifest_changes_and_pods_restart(space: Space):
    space.serve(agent("busy", [SLOW, "Here."]))
    with space.probe.keep_asking("busy", SECONDS) as asking:
        space.serve(agent("busy", [SLOW, "There."]))
        space.kubectl("rollout", "restart", "deployment/busy")
        space.kubectl("rollout", "status", "deployment/busy", "--timeout=60s")
        answers, failures = asking.ended(SECONDS + 60)
    assert not failures
    assert set(answers) == {"Here.", "There."}
    # The restart is an annotation that somebody else has set: it is not taken for drift.
    found = space.kubectl.get("deployment", "busy")["spec"]["template"]["metadata"]["annotations"]
    assert "kubectl.kubernetes.io/restartedAt" in found
