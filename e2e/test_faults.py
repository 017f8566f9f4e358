"""What breaks, and mends by itself: pods, objects that somebody edits, manifests that fail."""

import pytest
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


@pytest.mark.parametrize(
    "kind",
    ["deployment", "service", "configmap", "networkpolicy", "serviceaccount"],
)
def test_an_owned_object_that_was_deleted_is_made_again(space: Space, kind: str):
    space.serve(agent("hello", HELLO))
    owned = space.kubectl.list(kind, "app.kubernetes.io/managed-by=diptych-operator")
    assert owned
    before = {found["metadata"]["uid"] for found in owned}
    space.kubectl.delete(kind, *(found["metadata"]["name"] for found in owned))

    def is_back() -> bool:
        again = space.kubectl.list(kind, "app.kubernetes.io/managed-by=diptych-operator")
        uids = {found["metadata"]["uid"] for found in again}
        return len(uids) == len(before) and not uids & before

    eventually(is_back, seconds=90, what=f"the {kind} is back")
    space.kubectl.wait_until_ready("hello")


def test_an_owned_object_that_was_edited_is_mended(space: Space):
    space.serve(agent("hello", HELLO))
    patch = '{"spec": {"ports": [{"name": "http", "port": 9999, "targetPort": 9999}]}}'
    space.kubectl("patch", "service", "hello", "--type=merge", "-p", patch)

    def ports() -> list[int]:
        return [port["port"] for port in space.kubectl.get("service", "hello")["spec"]["ports"]]

    eventually(lambda: ports() == [8000], seconds=60, what="the port is mended")


def test_a_name_that_somebody_else_owns_is_left_alone(space: Space):
    theirs = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "hello", "labels": {"whose": "theirs"}},
        "spec": {"ports": [{"port": 80}]},
    }
    space.kubectl.apply(theirs)
    space.kubectl.apply(agent("hello", HELLO))
    accepted = space.kubectl.wait_for_condition("hello", "Accepted", "False", reason="NameConflict")
    assert "Service" in accepted["message"]
    service = space.kubectl.get("service", "hello")
    assert service["spec"]["ports"][0]["port"] == 80
    assert service["metadata"]["labels"] == {"whose": "theirs"}
    space.kubectl.delete("service", "hello")
    space.kubectl.wait_until_ready("hello")


def test_an_image_that_cannot_be_pulled_is_told_in_a_condition(space: Space):
    bad = agent("hello", HELLO)
    bad["spec"]["container"]["image"] = "registry.invalid/nothing:none"
    space.kubectl.apply(bad)

    def told() -> str:
        condition = space.kubectl.condition("hello", "Ready")
        if condition.get("status") != "False":
            return ""
        message = condition["message"]
        return message if "registry.invalid/nothing:none" in message else ""

    message = eventually(
        told,
        seconds=90,
        what="Ready=False names the image",
        otherwise=lambda: space.kubectl.story("hello"),
    )
    described = space.kubectl("describe", "agents.diptych.dev", "hello")
    assert message in described
    assert "Warning" in described.partition("Events:")[2]


def test_a_pod_template_that_does_not_fit_is_refused_in_a_condition(space: Space):
    space.serve(agent("hello", HELLO))
    template = {"metadata": {"labels": {"app.kubernetes.io/instance": "another"}}}
    space.kubectl.apply(agent("hello", HELLO, podTemplate=template))
    accepted = space.kubectl.wait_for_condition("hello", "Accepted", "False")
    assert "podTemplate" in accepted["message"]
    ready = space.kubectl.condition("hello", "Ready")
    assert (ready["status"], ready["reason"]) == ("True", "LastGoodRevision")
    assert space.probe.ask("hello").content == "Hello!"


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
