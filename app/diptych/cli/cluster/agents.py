"""Agents of a cluster, read by kubectl: their objects, their pods, and finding one by name."""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diptych.cli.cluster.errors import ClusterError, CrdNotInstalled, NotFound
from diptych.cli.cluster.kubectl import Kubectl
from diptych.core.errors import ConfigError

AGENTS = "agents.diptych.dev"
PORT = 8000
_NAME = re.compile(
    r"(?:(?P<namespace>[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)/)?(?P<name>[a-z]([-a-z0-9]{0,61}[a-z0-9])?)"
)
_MAX_NAMES = 5
_NOT_OBSERVED = "No operator has seen it yet; `diptych status` tells whether one is at work."


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition of an Agent's status."""

    type: str
    status: str
    reason: str
    message: str

    @property
    def text(self) -> str:
        """Give reason and message: `ImagePullFailed: The image … cannot be pulled …`."""
        return f"{self.reason}: {self.message}" if self.message else self.reason


class AgentObject:
    """An Agent as the API gives it; the status may still be empty."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self.content = content
        self.name: str = content["metadata"]["name"]
        self.namespace: str = content["metadata"]["namespace"]
        self.spec: Mapping[str, Any] = content.get("spec") or {}
        self.status: Mapping[str, Any] = content.get("status") or {}

    @property
    def conditions(self) -> Sequence[Condition]:
        return [
            Condition(c["type"], c["status"], c.get("reason", ""), c.get("message", ""))
            for c in self.status.get("conditions", ())
        ]

    def condition(self, kind: str) -> Condition:
        """Give a condition; its status is Unknown if the operator has not set it."""
        matching = (c for c in self.conditions if c.type == kind)
        return next(matching, Condition(kind, "Unknown", "NotSeen", _NOT_OBSERVED))

    @property
    def is_ready(self) -> bool:
        """Whether it is ready by a status that is of the manifest as it is now."""
        return self.condition("Ready").status == "True" and not self.staleness

    @property
    def staleness(self) -> str:
        """Give why its status cannot be trusted; empty if it is of the newest manifest."""
        seen = self.status.get("observedGeneration", 0)
        newest = self.content["metadata"].get("generation", 0)
        if not self.status or seen >= newest:
            return ""
        return (
            f"StatusIsOld: the status is of generation {seen} and the manifest is of {newest}; "
            "`diptych status` tells whether an operator is at work."
        )

    @property
    def advice(self) -> str:
        """What is wrong and what to do, as the operator says; empty for an older manifest."""
        return "" if self.staleness else str(self.status.get("advice", ""))

    @property
    def is_open(self) -> bool:
        """Whether everybody who reaches it may do everything."""
        return (self.spec.get("access") or {}).get("mode") == "open"

    @property
    def selector(self) -> str:
        """Give the label selector of its pods, empty until the operator has set it."""
        return str(self.status.get("selector", ""))

    @property
    def problem(self) -> str:
        """Give why it is not ready; an old status comes first, then an error in its manifest."""
        if self.staleness:
            return self.staleness
        accepted, ready = self.condition("Accepted"), self.condition("Ready")
        return self.advised((accepted if accepted.status == "False" else ready).type)

    def advised(self, kind: str) -> str:
        """Give a condition's reason, and what the operator advises; else the condition's text."""
        condition = self.condition(kind)
        return f"{condition.reason}: {self.advice}" if self.advice else condition.text


@dataclass(frozen=True, slots=True)
class AgentName:
    """The name of an Agent: `helper`, or `legal/helper` with its namespace."""

    name: str
    namespace: str | None

    @classmethod
    def parse(cls, text: str) -> "AgentName | None":
        """Read a name; None if the text cannot be one."""
        match = _NAME.fullmatch(text)
        return cls(match["name"], match["namespace"]) if match else None

    @classmethod
    def require(cls, text: str) -> "AgentName":
        """Read a name. Raises `ConfigError` if the text cannot be one."""
        if (name := cls.parse(text)) is None:
            raise ConfigError(f"{text}: must be an Agent's name, or namespace/name")
        return name

    def scope(self, kubectl: Kubectl) -> Kubectl:
        """Give kubectl for the Agent's namespace.

        Raises `ConfigError` if the flag and the name give different ones.
        """
        given = kubectl.flags.namespace
        if self.namespace is None:
            return kubectl
        if given not in (None, self.namespace):
            raise ConfigError(f"{self.namespace}/{self.name} is not in --namespace {given}")
        return kubectl.in_namespace(self.namespace)


def find_agent(kubectl: Kubectl, name: AgentName) -> AgentObject:
    """Read an Agent. Raises `ClusterError`; `NotFound` suggests other names."""
    kubectl = name.scope(kubectl)
    try:
        return AgentObject(kubectl.json("get", AGENTS, name.name))
    except NotFound as error:
        raise NotFound(_not_found_message(kubectl, name.name)) from error


def list_agents(kubectl: Kubectl, *, all_namespaces: bool = False) -> list[AgentObject]:
    """Read the Agents of the namespace, or of all namespaces. Raises `ClusterError`."""
    scope = ["--all-namespaces"] if all_namespaces else []
    return [AgentObject(item) for item in kubectl.json("get", AGENTS, *scope)["items"]]


def pods_of(kubectl: Kubectl, agent: AgentObject) -> list[Mapping[str, Any]]:
    """Read an Agent's pods; empty until the operator has created some. Raises `ClusterError`."""
    if not agent.selector:
        return []
    selector = f"--selector={agent.selector}"
    in_namespace = kubectl.in_namespace(agent.namespace)
    pods: list[Mapping[str, Any]] = in_namespace.json("get", "pods", selector)["items"]
    return pods


def is_pod_ready(pod: Mapping[str, Any]) -> bool:
    """Whether a pod has the condition Ready."""
    conditions = (pod.get("status") or {}).get("conditions", ())
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _not_found_message(kubectl: Kubectl, name: str) -> str:
    namespace = kubectl.namespace()
    message = f"there is no Agent {name} in namespace {namespace}"
    suggestions = _suggestions(kubectl, name, namespace)
    if suggestions:
        return f"{message}; did you mean {' or '.join(suggestions)}?"
    return f"{message}; `kubectl get agents -A` lists them"


def _suggestions(kubectl: Kubectl, name: str, namespace: str) -> list[str]:
    """Name Agents of similar names and namesakes in other namespaces, else all if they are few."""
    try:
        agents = list_agents(kubectl, all_namespaces=True)
    except CrdNotInstalled:
        raise
    except ClusterError:  # many people may not read all namespaces
        agents = list_agents(kubectl)
    here = [agent.name for agent in agents if agent.namespace == namespace]
    namesakes = [f"{a.namespace}/{a.name}" for a in agents if a.name == name]
    similar = difflib.get_close_matches(name, here, n=3, cutoff=0.5)
    few = sorted(here) if len(here) <= _MAX_NAMES else []
    return [*namesakes[:3], *similar] or few
