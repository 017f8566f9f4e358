"""An Agent of the cluster as kubectl reads it: what it is, how it does, and finding it by name.

Not here: how it is shown (`sheet`), talking to it (`reached`).
"""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diptych.cli.cluster.errors import ClusterError, Missing, NotInstalled
from diptych.cli.cluster.kubectl import Kubectl
from diptych.errors import ConfigError

AGENTS = "agents.diptych.dev"
PORT = 8000
_NAME = re.compile(
    r"(?:(?P<namespace>[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)/)?(?P<name>[a-z]([-a-z0-9]{0,61}[a-z0-9])?)"
)
_MOST_NAMES = 5
_NOT_SEEN = "No operator has seen it yet; `diptych status` tells whether one is at work."
_NEXT_SHORTAGE = re.compile(r"; (?=(?:server|agent|key) \S+: )")


@dataclass(frozen=True, slots=True)
class Condition:
    """One aspect of an Agent's state, as its status has it."""

    type: str
    status: str
    reason: str
    message: str

    @property
    def words(self) -> str:
        """Give reason and message: `ImagePullFailed: The image … cannot be pulled …`."""
        return f"{self.reason}: {self.message}" if self.message else self.reason


class AgentObject:
    """An Agent as the API has it, read with care: a status may not be there yet."""

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
        """Give a condition; one of status Unknown if the operator has not said it."""
        found = (c for c in self.conditions if c.type == kind)
        return next(found, Condition(kind, "Unknown", "NotSeen", _NOT_SEEN))

    @property
    def is_ready(self) -> bool:
        return self.condition("Ready").status == "True"

    @property
    def selector(self) -> str:
        """Give the labels that choose its pods; none while the operator has not said them."""
        return str(self.status.get("selector", ""))

    @property
    def trouble(self) -> str:
        """Say why it is not ready: its manifest's fault first, if that is one."""
        accepted, ready = self.condition("Accepted"), self.condition("Ready")
        return accepted.words if accepted.status == "False" else ready.words


@dataclass(frozen=True, slots=True)
class Reference:
    """An Agent by name: `helper`, or `legal/helper`."""

    name: str
    namespace: str | None

    @classmethod
    def of(cls, text: str) -> "Reference | None":
        """Read a reference; None if the text cannot be one."""
        found = _NAME.fullmatch(text)
        return cls(found["name"], found["namespace"]) if found else None

    @classmethod
    def typed(cls, text: str) -> "Reference":
        """Read what a person typed. Raises `ConfigError` if it cannot be one."""
        if (reference := cls.of(text)) is None:
            raise ConfigError(f"{text}: must be an Agent's name, or namespace/name")
        return reference

    def among(self, kubectl: Kubectl) -> Kubectl:
        """Give kubectl in the namespace that is meant. Raises `ConfigError` if two are."""
        given = kubectl.place.namespace
        if self.namespace is None:
            return kubectl
        if given not in (None, self.namespace):
            raise ConfigError(f"{self.namespace}/{self.name} is not in --namespace {given}")
        return kubectl.within(self.namespace)


def find_agent(kubectl: Kubectl, reference: Reference) -> AgentObject:
    """Read an Agent. Raises `ClusterError`, which lists near names where there is none."""
    kubectl = reference.among(kubectl)
    try:
        return AgentObject(kubectl.read("get", AGENTS, reference.name))
    except Missing as error:
        raise Missing(_not_found(kubectl, reference.name)) from error


def list_agents(kubectl: Kubectl, *, everywhere: bool = False) -> list[AgentObject]:
    """Read the Agents of the namespace, or of all. Raises `ClusterError`."""
    scope = ["--all-namespaces"] if everywhere else []
    return [AgentObject(item) for item in kubectl.read("get", AGENTS, *scope)["items"]]


def pods_of(kubectl: Kubectl, agent: AgentObject) -> list[Mapping[str, Any]]:
    """Read an Agent's pods; none while the operator has not made any. Raises `ClusterError`."""
    if not agent.selector:
        return []
    selector = f"--selector={agent.selector}"
    pods: list[Mapping[str, Any]] = kubectl.within(agent.namespace).read("get", "pods", selector)[
        "items"
    ]
    return pods


def is_pod_ready(pod: Mapping[str, Any]) -> bool:
    """Whether a pod takes work."""
    conditions = (pod.get("status") or {}).get("conditions", ())
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def shortages(degraded: Condition) -> list[str]:
    """Give what an Agent misses, one by one: `server calculator: connection refused`."""
    return _NEXT_SHORTAGE.split(degraded.message) if degraded.status == "True" else []


def _not_found(kubectl: Kubectl, name: str) -> str:
    namespace = kubectl.namespace()
    message = f"there is no Agent {name} in namespace {namespace}"
    near = list(_near(kubectl, name, namespace))
    if near:
        return f"{message}; did you mean {' or '.join(near)}?"
    return f"{message}; `diptych get -A` lists all that there are"


def _near(kubectl: Kubectl, name: str, namespace: str) -> Iterator[str]:
    """Name Agents that may have been meant: alike, or of that name elsewhere; else a few."""
    try:
        there = list_agents(kubectl, everywhere=True)
    except NotInstalled:
        raise
    except ClusterError:  # not everybody may look into all namespaces
        there = list_agents(kubectl)
    here = [agent.name for agent in there if agent.namespace == namespace]
    elsewhere = [f"{a.namespace}/{a.name}" for a in there if a.name == name]
    alike = difflib.get_close_matches(name, here, n=3, cutoff=0.5)
    few = sorted(here) if len(here) <= _MOST_NAMES else []
    yield from [*elsewhere[:3], *alike] or few
