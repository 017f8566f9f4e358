"""An Agent's pods: waiting until they are ready, asking which has the run, letting one crash."""

from typing import Any

from harness.commands import CommandFailed, output
from harness.kubectl import AGENT_PODS, eventually
from harness.probe import Probe
from harness.space import Space

Pod = dict[str, Any]


def ready_pods(space: Space, count: int) -> list[Pod]:
    """Give the agents' pods once exactly so many are there, and all of them ready."""

    def ready() -> list[Pod]:
        found = space.kubectl.list("pods", AGENT_PODS)
        return found if len(found) == count and all(map(_is_ready, found)) else []

    return list(eventually(ready, seconds=90, what=f"{count} pods are ready"))


def owner(space: Space, agent: str, *, seconds: float) -> Pod:
    """Give the pod that has the one run that is live, once a pod that is ready has it."""

    def found() -> Pod | None:
        ready = filter(_is_ready, space.kubectl.list("pods", AGENT_PODS))
        return next((pod for pod in ready if _has_the_run(space, pod, agent)), None)

    return dict(eventually(found, seconds=seconds, what="a pod has the run"))


def crash(space: Space, pod: Pod) -> None:
    """Take a pod away with its processes, which hear of nothing: as if its machine had gone.

    A pod that is deleted by force is gone from the API only: its processes hear SIGTERM, and may
    live on for the pod's whole grace. So they are killed before, on the node, where that is one of
    kind's; elsewhere nothing reaches a node.
    """
    node = pod["spec"]["nodeName"]
    containers = pod["status"]["containerStatuses"] if _is_container(node) else ()
    for container in containers:
        _, _, name = container["containerID"].partition("://")
        kill = ("ctr", "--namespace", "k8s.io", "tasks", "kill", "--signal", "SIGKILL", name)
        output("docker", "exec", node, *kill)
    space.kubectl.kill(pod["metadata"]["name"])


def _is_container(node: str) -> bool:
    """Whether a node is a container of this machine's docker, as kind's are."""
    try:
        output("docker", "container", "inspect", node)
    except (CommandFailed, FileNotFoundError):
        return False
    return True


def _is_ready(pod: Pod) -> bool:
    conditions = pod["status"].get("conditions", ())
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _has_the_run(space: Space, pod: Pod, agent: str) -> bool:
    """Ask inside of the pod, as a NetworkPolicy closes its port of metrics."""
    inside = Probe(space.kubectl, pod["metadata"]["name"])
    metrics = inside.request("http://localhost:9090/metrics", agent=agent)
    return "diptych_live_runs 1.0" in metrics.text
