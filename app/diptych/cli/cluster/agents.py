"""Agents of a cluster, read by kubectl: finding one, its pods, and tokens to ask it with."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diptych.cli.cluster.kubectl import AgentName, ClusterError, Forbidden, Kubectl, NotFound
from diptych.core.errors import ConfigError

AGENTS = "agents.diptych.dev"
PORT = 8000
TOKEN_DURATION = "1h"  # noqa: S105 - a time
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
        """Reason and message: `ImagePullFailed: The image … cannot be pulled …`."""
        return f"{self.reason}: {self.message}" if self.message else self.reason


class AgentObject:
    """An Agent, or an object of another kind of ours, as the API shows it.

    The status may still be empty.
    """

    def __init__(self, content: Mapping[str, Any]) -> None:
        self.name: str = content["metadata"]["name"]
        self.namespace: str = content["metadata"]["namespace"]
        self.status: Mapping[str, Any] = content.get("status") or {}
        self.is_open = (content.get("spec", {}).get("access") or {}).get("mode") == "open"
        self._generation = content["metadata"].get("generation", 0)

    @property
    def full_name(self) -> str:
        return f"{self.namespace}/{self.name}"

    def condition(self, kind: str) -> Condition:
        """Return a condition; its status is Unknown if the operator has not set it."""
        for c in self.status.get("conditions", ()):
            if c["type"] == kind:
                return Condition(kind, c["status"], c.get("reason", ""), c.get("message", ""))
        return Condition(kind, "Unknown", "NotSeen", _NOT_OBSERVED)

    @property
    def schedules(self) -> Sequence[Mapping[str, str]]:
        """Each schedule's name, last and next time, and how its last run was started and ended."""
        schedules: Sequence[Mapping[str, str]] = self.status.get("schedules", ())
        return schedules

    @property
    def is_ready(self) -> bool:
        """Whether it is Ready, with a status for its newest generation."""
        return self.condition("Ready").status == "True" and not self.staleness

    @property
    def staleness(self) -> str:
        """Why its status cannot be trusted; empty if it is of the newest manifest."""
        seen = self.status.get("observedGeneration", 0)
        if not self.status or seen >= self._generation:
            return ""
        return (
            f"StatusIsOld: the status is of generation {seen} and the manifest is of "
            f"{self._generation}; `diptych status` tells whether an operator is at work."
        )

    @property
    def problem(self) -> str:
        """Why it is not ready; an old status comes first, then an error in its manifest."""
        if self.staleness:
            return self.staleness
        is_refused = self.condition("Accepted").status == "False"
        return self.advised("Accepted" if is_refused else "Ready")

    def advised(self, kind: str) -> str:
        """A condition's reason with the operator's advice; without advice, its text."""
        condition = self.condition(kind)
        advice = "" if self.staleness else self.status.get("advice", "")
        return f"{condition.reason}: {advice}" if advice else condition.text


def find_agent(kubectl: Kubectl, name: AgentName) -> AgentObject:
    """Read an Agent. Raises `ClusterError`; `NotFound` suggests other names."""
    given = kubectl.flags.namespace
    if name.namespace is not None:
        if given not in (None, name.namespace):
            raise ConfigError(f"{name.namespace}/{name.name} is not in --namespace {given}")
        kubectl = kubectl.in_namespace(name.namespace)
    try:
        return AgentObject(kubectl.json("get", AGENTS, name.name))
    except NotFound as error:
        namespace = kubectl.namespace()
        known = [agent.name for agent in list_agents(kubectl)]
        similar = difflib.get_close_matches(name.name, known, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(similar)}?" if similar else ""
        hint = hint or "`kubectl get agents -A` lists them"
        message = f"there is no Agent {name.name} in namespace {namespace}; {hint}"
        raise NotFound(message) from error


def list_agents(
    kubectl: Kubectl, *, all_namespaces: bool = False, kind: str = AGENTS
) -> list[AgentObject]:
    """Read the Agents of the namespace, or of all namespaces, or objects of another `kind`.

    Raises `ClusterError`.
    """
    scope = ["--all-namespaces"] if all_namespaces else []
    return [AgentObject(item) for item in kubectl.json("get", kind, *scope)["items"]]


def request_token(kubectl: Kubectl, agent: AgentObject, duration: str = TOKEN_DURATION) -> str:
    """Have the cluster make a token to ask an Agent with, by TokenRequest.

    It is one of `--as-service-account`, else of the Agent's own ServiceAccount, which may always
    ask it. Raises `ClusterError`; `Forbidden` says what helps.
    """
    namespace, _, name = (kubectl.flags.service_account or agent.name).rpartition("/")
    namespace = namespace or agent.namespace
    audience = f"--audience=diptych.dev/{agent.full_name}"
    arguments = ("create", "token", name, audience, f"--duration={duration}")
    try:
        token = kubectl.in_namespace(namespace).text(*arguments).strip()
    except Forbidden as error:
        raise Forbidden(
            f"{error}; a token of ServiceAccount {name} is needed to ask Agent "
            f"{agent.full_name}: the role `edit` in namespace {namespace} gives that "
            "right; or name another ServiceAccount with --as-service-account, or set DIPTYCH_TOKEN"
        ) from error
    if not token:
        raise ClusterError("kubectl printed no token; is it older than 1.24?")
    return token
