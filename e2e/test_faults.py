"""What breaks, and mends by itself: pods, the operator, objects that somebody edits."""

import pytest
from harness.dump import differences, normalised
from harness.kubectl import AGENT_PODS, eventually
from harness.objects import agent
from harness.release import Release
from harness.space import Space

HELLO = ["{}", "Hello!"]


def test_an_agent_answers_again_after_its_pod_was_killed(space: Space):
    space.serve(agent("hello", HELLO))
    space.kubectl("delete", "pods", "-l", AGENT_PODS, "--grace-period=0", "--force")
    eventually(lambda: space.probe.ask("hello").status == 200, seconds=60, what="it answers")
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

    eventually(
        told,
        seconds=90,
        what="Ready=False names the image",
        otherwise=lambda: space.kubectl.story("hello"),
    )


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


def test_an_operator_that_is_killed_leaves_what_an_undisturbed_one_leaves(
    space: Space, other_space: Space, diptych: Release
):
    agents = [agent(f"a-{number}", HELLO) for number in range(4)]
    agents.append(agent("all", HELLO, agents=[{"name": f"a-{number}"} for number in range(4)]))
    space.serve(*agents)

    other_space.kubectl.apply(*agents)
    for _ in range(3):  # at moments that nobody chose
        diptych.kubectl("delete", "pods", "-l", diptych.operator, "--grace-period=0", "--force")
        eventually(lambda: bool(_running(diptych)), seconds=90, what="a new operator runs")
    other_space.kubectl.wait_until_ready(*(a["metadata"]["name"] for a in agents), seconds=180)

    def unlike() -> list[str]:
        return list(differences(normalised(space.kubectl), normalised(other_space.kubectl)))

    eventually(
        lambda: not unlike(),
        seconds=60,
        what="both are alike",
        otherwise=lambda: "\n".join(unlike()),
    )


def test_an_agent_is_deleted_at_once_while_the_operator_is_down(space: Space, diptych: Release):
    space.serve(agent("hello", HELLO))
    diptych.kubectl("scale", "deployment", "diptych", "--replicas=0")
    try:
        eventually(lambda: not diptych.kubectl.list("pods", diptych.operator), seconds=90)
        space.kubectl("delete", "agents.diptych.dev", "hello", "--timeout=20s")
        owned = "app.kubernetes.io/managed-by=diptych-operator"
        eventually(
            lambda: not space.kubectl.list("deployments,services,configmaps", owned), seconds=60
        )
    finally:
        diptych.kubectl("scale", "deployment", "diptych", "--replicas=1")
        diptych.kubectl("rollout", "status", "deployment", "diptych", "--timeout=120s")


def _running(diptych: Release) -> list[str]:
    return [
        pod["metadata"]["name"]
        for pod in diptych.kubectl.list("pods", diptych.operator)
        if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
    ]


def _is_crashing(space: Space) -> bool:
    return any(
        status["restartCount"] > 0
        for pod in space.kubectl.list("pods", AGENT_PODS)
        for status in pod["status"].get("containerStatuses", [])
    )
