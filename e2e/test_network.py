"""NetworkPolicies: what an agent's pods let in and out. Pod Security holds in every test."""

import pytest
from harness.kubectl import AGENT_PODS, eventually
from harness.objects import agent, delegations
from harness.space import Space

HELLO = ["{}", "Hello!"]


@pytest.fixture
def enforcing(space: Space) -> Space:
    """A namespace of a cluster that enforces policies: a denial must be seen to work first."""
    space.serve_tools("target")
    assert space.probe.reaches("target")
    deny = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "deny"},
        "spec": {"podSelector": {"matchLabels": {"app": "target"}}, "policyTypes": ["Ingress"]},
    }
    space.kubectl.apply(deny)
    eventually(
        lambda: not space.probe.reaches("target"),
        seconds=20,
        what="this cluster enforces NetworkPolicies (without that, nothing here means anything)",
    )
    space.kubectl.delete("networkpolicy", "deny")
    eventually(lambda: space.probe.reaches("target"), seconds=20, what="the denial is gone")
    return space


def test_an_agent_reaches_what_its_manifest_names_and_only_its_namespace_reaches_it(
    enforcing: Space, other_space: Space
):
    space = enforcing
    space.serve_tools("stranger")
    space.serve(agent("hello", HELLO, tools=[{"name": "t", "serviceRef": {"name": "target"}}]))
    inside = _inside(space)
    assert inside("target")
    assert not inside("stranger")
    assert not inside("kubernetes.default", 443)
    assert space.probe.ask("hello").content == "Hello!"
    assert not other_space.probe.reaches(f"hello.{space.name}")

    (pod,) = space.kubectl.list("pods", AGENT_PODS)  # in a namespace that enforces `restricted`
    security = pod["spec"]["containers"][0]["securityContext"]
    assert security["readOnlyRootFilesystem"] is True
    assert pod["spec"]["automountServiceAccountToken"] is False
    mounts = [mount["mountPath"] for mount in pod["spec"]["containers"][0]["volumeMounts"]]
    assert not [path for path in mounts if "serviceaccount" in path]


def test_traces_of_a_tree_reach_the_collector_that_variables_name(
    enforcing: Space, other_space: Space
):
    space = enforcing
    other_space.serve_collector()
    url = f"http://collector.{other_space.name}:8000"
    asker = agent(
        "asker", [delegations(helper="Help."), "{}", "Done."], agents=[{"name": "helper"}]
    )
    helper = agent("helper", HELLO)
    for each in (asker, helper):
        each["spec"]["container"]["env"] += [
            {"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": url},
            {"name": "OTEL_BSP_SCHEDULE_DELAY", "value": "200"},
        ]
    space.serve(asker, helper)
    assert not _inside(space)("target")  # which no manifest names
    assert space.probe.ask("asker").content == "Done."

    def spans() -> list[list[str]]:
        lines = other_space.kubectl("logs", "collector").splitlines()
        return [line.split("|") for line in lines]

    eventually(
        lambda: {"asker", "helper"} <= {name for _, name, *_ in spans()},
        seconds=20,
        what="both agents' spans have come",
    )
    assert len({trace for trace, *_ in spans()}) == 1
    pods = {name: pod for _, name, pod, _ in spans()}
    assert pods["asker"] == space.pod_of("asker")


def _inside(space: Space):
    """Give what says whether the pod of the namespace's only Agent reaches a host."""
    pod = space.kubectl.list("pods", AGENT_PODS)[0]["metadata"]["name"]
    return type(space.probe)(space.kubectl, pod).reaches
