"""A namespace in which one test lives, gone when it ends."""

import contextlib
import itertools
import os
import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from harness import objects
from harness.kubectl import AGENT_PODS, Kubectl, eventually
from harness.probe import Probe
from harness.release import Release

_numbers = itertools.count(1)


class Space:
    """`kubectl` is bound to it; `probe` asks from within it."""

    def __init__(self, kubectl: Kubectl, image: str) -> None:
        self.kubectl = kubectl
        self.image = image
        self.name = kubectl.namespace

    @cached_property
    def probe(self) -> Probe:
        """What asks from within; it is made when it is first needed."""
        self.kubectl.apply(objects.probe(self.image))
        self.kubectl.wait_for_pod("probe")
        return Probe(self.kubectl)

    def serve(self, *agents: dict[str, Any]) -> None:
        """Apply Agents and wait until they are ready, and reached through their Services."""
        names = [agent["metadata"]["name"] for agent in agents]
        self.kubectl.apply(*agents)
        self.kubectl.wait_until_ready(*names)
        for name in names:
            self._wait_until_reached(name)

    def serve_tools(self, name: str = "tools") -> None:
        self._run(objects.tool_server(name, self.image))

    def serve_model(self, name: str = "model") -> None:
        self._run(objects.model_server(name, self.image))

    def serve_collector(self, name: str = "collector") -> None:
        self._run(objects.collector(name, self.image))

    def serve_redis(self, name: str = "redis") -> None:
        """Start a Redis, without password and disk; the cluster must have the image `redis:7`."""
        self.kubectl.apply(*objects.redis(name))
        self.kubectl("rollout", "status", f"deployment/{name}", "--timeout=90s")
        eventually(
            lambda: self.probe.reaches(name, 6379), seconds=60, what=f"Service {name} is reached"
        )

    def pods(self) -> list[tuple[str, int]]:
        """Name the agents' pods, each with how often it was restarted."""
        return [
            (pod["metadata"]["uid"], pod["status"]["containerStatuses"][0]["restartCount"])
            for pod in self.kubectl.list("pods", AGENT_PODS)
        ]

    def pod_of(self, agent: str) -> str:
        """Name the one pod of an agent."""
        (pod,) = self.kubectl.list("pods", f"{AGENT_PODS},app.kubernetes.io/instance={agent}")
        return str(pod["metadata"]["name"])

    def token_of_peer(self, agent: str, peer: str) -> str:
        """Read the token that an agent's pod has for a peer, `name` or `name.namespace`."""
        name, _, namespace = peer.partition(".")
        file = f"/etc/diptych/tokens/{namespace or self.name}.{name}"
        return self.kubectl("exec", self.pod_of(agent), "--", "cat", file)

    def look_after_mounts(self, agent: str) -> None:
        """Have the kubelet look after what it has mounted; by itself it does so once a minute.

        It looks when anything about a pod has changed: here, an annotation.
        """
        selector = f"{AGENT_PODS},app.kubernetes.io/instance={agent}"
        mark = f"e2e/looked-at={next(_numbers)}"
        self.kubectl("annotate", "pods", "-l", selector, "--overwrite", mark)

    def _run(self, made: list[dict[str, Any]]) -> None:
        self.kubectl.apply(*made)
        name = made[0]["metadata"]["name"]
        self.kubectl.wait_for_pod(name)
        self._wait_until_reached(name)

    def _wait_until_reached(self, name: str) -> None:
        """Nodes learn of a Service's pods after the API does, usually within a second."""
        eventually(lambda: self.probe.reaches(name), seconds=60, what=f"Service {name} is reached")


@contextlib.contextmanager
def space_of(release: Release, test: str, **labels: str) -> Iterator[Space]:
    """Make a namespace, named for the test."""
    words = re.sub(r"[^a-z0-9]+", "-", test.removeprefix("test_").lower())[:30].strip("-")
    name = f"e2e-{os.getpid() % 10000}-{next(_numbers)}-{words}"
    kubectl = release.kubectl.within(name)
    kubectl.apply(objects.namespace(name, **labels))
    try:
        yield Space(kubectl, release.image)
    finally:
        kubectl("delete", "namespace", name, "--wait=false")
