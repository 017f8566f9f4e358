"""What breaks, and mends by itself: pods, objects that somebody edits, manifests that fail."""

from harness.kubectl import AGENT_PODS, eventually
from harness.objects import agent
from harness.space import Space

HELLO = ["{}", "Hello!"]


def test_an_agent_answers_again_after_its_pod_was_killed(space: Space):
    space.serve(agent("hello", HELLO))
    space.kubectl.kill("-l", AGENT_PODS)

    def answers() -> bool:  # the first question may go to the address of the dead pod, and wait
        return space.probe.ask("hello", timeout=5).status == 200

    eventually(answers, seconds=60, what="it answers")
    space.kubectl.wait_until_ready("hello")


def test_owned_objects_that_were_deleted_or_edited_are_made_again(space: Space):
    space.serve(agent("hello", HELLO))
    before = _owned(space)
    kinds = {kind for kind, _ in before}
    assert kinds == {"Deployment", "Service", "ConfigMap", "NetworkPolicy", "ServiceAccount"}
    space.kubectl.delete(OWNED, "-l", MANAGED)

    def are_back() -> bool:
        again = _owned(space)
        return again.keys() == before.keys() and not set(again.values()) & set(before.values())

    eventually(are_back, seconds=90, what="all are back")
    space.kubectl.wait_until_ready("hello")

    patch = '{"spec": {"ports": [{"name": "http", "port": 9999, "targetPort": 9999}]}}'
    space.kubectl("patch", "service", "hello", "--type=merge", "-p", patch)

    def ports() -> list[int]:
        return [port["port"] for port in space.kubectl.get("service", "hello")["spec"]["ports"]]

    eventually(lambda: ports() == [8000], seconds=60, what="the port is mended")


OWNED = "deployments,services,configmaps,networkpolicies,serviceaccounts"
MANAGED = "app.kubernetes.io/managed-by=diptych-operator"


def _owned(space: Space) -> dict[tuple[str, str], str]:
    """Give the uids of what the operator has made."""
    return {
        (found["kind"], found["metadata"]["name"]): found["metadata"]["uid"]
        for found in space.kubectl.list(OWNED, MANAGED)
    }


def test_the_last_good_revision_serves_while_the_new_one_crashes(space: Space):
    space.serve(agent("hello", HELLO))
    broken = agent("hello", None)
    broken["spec"]["container"] = {
        "env": [{"name": "DEBUG_MOCK_RESPONSES", "value": "[this is no JSON"}]
    }
    space.kubectl.apply(broken)
    space.kubectl.wait_for_condition("hello", "Progressing", "True", seconds=30)
    eventually(lambda: _is_crashing(space), seconds=90, what="the new pod crashes")
    assert space.probe.ask("hello").content == "Hello!"


def _is_crashing(space: Space) -> bool:
    return any(
        status["restartCount"] > 0
        for pod in space.kubectl.list("pods", AGENT_PODS)
        for status in pod["status"].get("containerStatuses", [])
    )
