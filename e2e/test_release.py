"""The chart's life: its own test, high availability, upgrade, rollback, uninstall."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from harness.clusters import Cluster
from harness.kubectl import AGENT_PODS, eventually
from harness.objects import agent, namespace
from harness.pods import ready_pods
from harness.release import CRD, PART, Release
from harness.space import Space
from harness.telling import say
from harness.versions import other_chart, other_image

HELLO = ["{}", "Hello!"]


def test_helm_test_makes_and_asks_an_agent(diptych: Release):
    told = diptych.helm("test", diptych.name)
    assert "Phase:          Succeeded" in told


@pytest.mark.nightly  # tests/ has it against a double: K10
@pytest.mark.alone
def test_of_two_releases_one_serves_and_the_other_stands_back_and_both_say_so(
    diptych: Release, cluster: Cluster, space: Space, tmp_path: Path
):
    """For five minutes with E2E_SIDE_BY_SIDE=300; the bound of writes is that of the time.

    The second is of another version and image: its operator would replace every pod.
    """
    seconds = int(os.environ.get("E2E_SIDE_BY_SIDE", "60"))
    space.serve(agent("hello", HELLO), agent("aide", HELLO))
    image, (chart, number) = other_image(cluster, diptych.image), other_chart(tmp_path)
    second = Release(diptych.kubectl.within("diptych-e2e-second"), image, "second")
    second.kubectl.apply(namespace(second.kubectl.namespace))
    try:
        second.install("crds.install=false", chart=chart)
        serves = "serves namespace " + space.name
        logs = {one.name: _says(one, serves) for one in (diptych, second)}
        say("\n".join(logs.values()))
        assert "stands back" in logs["second"]
        assert len(set(re.findall(r"operator \S+ (\S+) ", logs["second"]))) == 2  # versions
        assert f"operator {second.kubectl.namespace}/second-diptych {number} " in logs["second"]
        before, renewals = _versions(space), 0
        lease, until = _lease(space), time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(1)
            renewals += lease != (lease := _lease(space))
        assert _versions(space) == before
        say(f"two releases side by side: {renewals} writes in {seconds} s, all of one Lease")
        assert renewals <= 20 * seconds / 300 + 1
        events = space.kubectl("get", "events", "--field-selector=reason=StandsBack")
        assert "lease/diptych-agents" in events
        told = _diptych_status(space)
        assert f"diptych-e2e/diptych  serves {space.name}" in told
        assert "diptych-e2e-second/second-diptych  stands back" in told
    finally:
        second.helm("uninstall", second.name, "--wait")
        second.kubectl("delete", "namespace", second.kubectl.namespace, "--wait=false")


def _says(release: Release, words: str) -> str:
    """Wait until a release's operator has logged a sentence; give the line."""

    def line() -> str:
        log = release.kubectl("logs", "-l", release.operator, "--tail=-1")
        return next((line for line in log.splitlines() if words in line), "")

    return str(eventually(line, seconds=90, what=f"{release.name} logs: {words}"))


def _lease(space: Space) -> str:
    found = space.kubectl.get("lease", "diptych-agents")
    return str(found["metadata"]["resourceVersion"])


def _versions(space: Space) -> dict[str, str]:
    """Give what changes with each write, by object; all but the Lease."""
    kinds = "agents.diptych.dev,deployments,services,configmaps,networkpolicies,serviceaccounts"
    return {
        f"{found['kind']}/{found['metadata']['name']}": found["metadata"]["resourceVersion"]
        for found in space.kubectl.list(kinds)
    }


def _diptych_status(space: Space) -> str:
    command = (sys.executable, "-m", "diptych", "status", "--namespace", space.name)
    env = {**os.environ, **space.kubectl.env, "COLUMNS": "2000"}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False).stdout


@pytest.mark.alone
def test_an_operator_of_some_namespaces_and_the_redis_of_the_chart(
    diptych: Release, cluster: Cluster, space: Space, other_space: Space
):
    if not cluster.load("redis:7"):
        pytest.skip("docker has no image redis:7, and this cluster may not pull one")
    settings = (
        f"watchNamespaces={{{space.name}}}",
        "rbac.aggregate=false",
        "redis.enabled=true",
        f"redis.namespaces={{{space.name}}}",
    )
    diptych.install(*settings)  # which waits for Redis
    other_space.kubectl.apply(agent("hello", HELLO))
    assert not diptych.kubectl.permissions_of("diptych")("list", "deployments.apps")
    assert not diptych.kubectl.permissions_of("diptych")("list", "namespaces")
    url = {"secretKeyRef": {"name": "diptych-redis", "key": "url"}}
    space.serve(agent("kept", HELLO, replicas=2, sessions={"redis": {"urlFrom": url}}))
    # Its neighbour was applied before, and was not served; so it will not be.
    assert "status" not in other_space.kubectl.get("agents.diptych.dev", "hello")
    _a_conversation_outlives_its_pods(space)

    host = f"diptych-redis.{diptych.kubectl.namespace}"
    ask = f"import redis; print(redis.Redis(host='{host}').ping())"
    with pytest.raises(AssertionError, match="uthenticat"):
        space.kubectl("exec", "deployment/kept", "--", "python", "-c", ask)
    assert not space.probe.reaches(host, 6379)  # it is for agents only
    before = diptych.kubectl.get("secret", "diptych-redis")["data"]
    diptych.install(*settings, "operator.logLevel=debug")
    assert diptych.kubectl.get("secret", "diptych-redis")["data"] == before
    diptych.install()
    assert not diptych.kubectl.find("deployment", "diptych-redis")
    assert not space.kubectl.find("secret", "diptych-redis")
    other_space.kubectl.wait_until_ready("hello")


def _a_conversation_outlives_its_pods(space: Space) -> None:
    assert space.probe.ask("kept", session="s").content == "Hello!"
    space.kubectl.kill("-l", AGENT_PODS)
    ready_pods(space, 2)

    def answers() -> bool:  # the first question may go to the address of a pod that is gone
        return space.probe.ask("kept", session="s", timeout=5).status == 200

    eventually(answers, seconds=60, what="it answers")
    asked = [one for one in space.probe.event_types("kept", "s") if one == "user_message"]
    assert len(asked) >= 2


@pytest.mark.alone
def test_agents_serve_through_upgrade_rollback_and_uninstall(diptych: Release, space: Space):
    space.serve(agent("hello", HELLO))
    _an_upgrade_to_two_operators_and_a_rollback_keep_agents_and_their_pods(diptych, space)
    _uninstall_leaves_agents_serving_and_then_nothing(diptych, space)


def _an_upgrade_to_two_operators_and_a_rollback_keep_agents_and_their_pods(
    diptych: Release, space: Space
) -> None:
    pods = _pod_names(space)
    crd = diptych.kubectl.get("crd", CRD)
    properties = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    del properties["properties"]["examples"]  # an older CRD; the Agent has no such field to lose
    diptych.kubectl("replace", "-f", "-", stdin=json.dumps(crd))
    diptych.install("ha.enabled=true")
    crd = diptych.kubectl.get("crd", CRD)
    properties = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert "examples" in properties["properties"]

    leader = eventually(lambda: diptych.leader(of=2), seconds=90, what="one of two leads")
    diptych.kubectl.kill(leader)
    space.kubectl.apply(agent("after", HELLO, replicas=0))
    space.kubectl.wait_until_ready("after")  # the other one takes over
    assert diptych.leader(of=2) != leader
    space.kubectl.delete("agents.diptych.dev", "after")

    diptych.helm("rollback", diptych.name, "--wait")
    space.kubectl.wait_until_ready("hello")
    assert _pod_names(space) == pods
    assert space.probe.ask("hello").content == "Hello!"


def _uninstall_leaves_agents_serving_and_then_nothing(diptych: Release, space: Space) -> None:
    diptych.helm("uninstall", diptych.name, "--wait")
    eventually(lambda: not diptych.kubectl.list("pods", diptych.operator), seconds=60)
    assert space.probe.ask("hello").content == "Hello!"  # its pods need no operator
    space.kubectl.delete("agents.diptych.dev", "hello")
    diptych.kubectl.delete("crd", "-l", PART)

    kinds = (
        "deployments,services,configmaps,serviceaccounts,networkpolicies,roles,rolebindings,"
        "poddisruptionbudgets,pods,leases"
    )

    def left() -> list[str]:
        found = diptych.kubectl.list(kinds, PART, everywhere=True)
        clusterwide = diptych.kubectl.list("clusterroles,clusterrolebindings,crds", PART)
        return [f"{o['kind']}/{o['metadata']['name']}" for o in (*found, *clusterwide)]

    eventually(
        lambda: not left(), seconds=180, what="nothing is left", otherwise=lambda: str(left())
    )


def _pod_names(space: Space) -> list[str]:
    return [pod["metadata"]["name"] for pod in space.kubectl.list("pods", "app!=probe")]
