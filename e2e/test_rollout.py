"""Questions that are asked while pods are replaced: none is lost."""

import pytest
from harness.objects import agent
from harness.space import Space

# Each answer takes a while, so that pods end while they answer.
SLOW = {"delay_ms": 200, "content": "{}"}
SECONDS = 25


@pytest.mark.long
def test_no_question_is_lost_while_the_manifest_changes(space: Space):
    space.serve(agent("busy", [SLOW, "Here."]))
    with space.probe.keep_asking("busy", SECONDS) as asking:
        space.serve(agent("busy", [SLOW, "There."]))
        answers, failures = asking.ended(SECONDS + 60)
    assert not failures
    assert set(answers) == {"Here.", "There."}


@pytest.mark.long
def test_no_question_is_lost_while_pods_restart(space: Space):
    space.serve(agent("busy", [SLOW, "Here."]))
    with space.probe.keep_asking("busy", SECONDS) as asking:
        space.kubectl("rollout", "restart", "deployment/busy")
        answers, failures = asking.ended(SECONDS + 60)
    assert not failures
    assert answers
    # The restart is an annotation that somebody else has set: it is not taken for drift.
    (pod,) = space.kubectl.list("pods", "app.kubernetes.io/instance=busy")
    assert "kubectl.kubernetes.io/restartedAt" in pod["metadata"]["annotations"]
