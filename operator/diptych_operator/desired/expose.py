"""How an Agent is reached from outside of the cluster: its HTTPRoute or Ingress. Pure.

The platform enables either, and restricts host names: whoever has a name gets its certificate and
its users' trust.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from diptych_operator.desired.references import ObservedState
from diptych_operator.resources.agent import Agent, ExposeError
from diptych_operator.resources.kinds import (
    HTTP_ROUTE,
    INGRESS,
    PORT,
    Kind,
    NamespacedName,
    Object,
    namespaced_name_of,
)

Way: TypeAlias = Literal["gateway", "ingress"]


@dataclass(frozen=True, slots=True)
class WaySettings:
    """Whether Agents may be exposed in one way; `sources` are the NetworkPolicy peers it uses."""

    is_enabled: bool = False
    sources: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class ExposeSettings:
    """How Agents may be exposed.

    `hosts` are the names that they may take: `*` stands for one label, and `{namespace}` for that
    of the Agent.
    """

    hosts: tuple[str, ...] = ()
    gateway: WaySettings = field(default_factory=WaySettings)
    ingress: WaySettings = field(default_factory=WaySettings)


def check_expose(agent: Agent, observed: ObservedState, settings: ExposeSettings) -> None:
    """Raise `ExposeError` if the platform does not let the Agent be exposed like that."""
    given = agent.expose
    if not given:
        return
    if not _settings(agent, settings).is_enabled:
        way = _way(agent)
        raise ExposeError(
            "ExposeNotAllowed",
            f"spec.expose.{way} is not possible, and the Agent is not reached from outside: the "
            f"platform has not switched it on (the chart's value agents.expose.{way}.enabled)",
        )
    host = given["host"]
    if not _may_have_host(agent, settings):
        allowed = ", ".join(settings.hosts) or "none"
        raise ExposeError(
            "ExposeNotAllowed",
            f"spec.expose.host {host} is not allowed, and the Agent is not reached from outside: "
            f"the platform lets Agents take {allowed} (the chart's value agents.expose.hosts)",
        )
    if holder := _host_holder(agent, observed.exposed_at_host, settings):
        raise ExposeError(
            "HostConflict",
            f"spec.expose.host {host} is taken by Agent {'/'.join(holder)}, which is older, and "
            "this one is not reached from outside; choose another one",
        )


def exposed_at_host(agent: Agent, agents: Iterable[Object]) -> tuple[Object, ...]:
    """Return the Agents that ask for the host name of this one, itself among them."""
    if not agent.expose:
        return ()
    return tuple(content for content in agents if _host(content) == agent.expose["host"])


def ingress_sources(agent: Agent, settings: ExposeSettings) -> tuple[Mapping[str, Any], ...]:
    """Return the NetworkPolicy peers from which an exposed Agent is reached."""
    return _settings(agent, settings).sources if agent.expose else ()


def route(agent: Agent) -> Iterator[tuple[Kind, Mapping[str, Any]]]:
    """Return kind and spec of the object that exposes an Agent, if any."""
    given = agent.expose
    if "gateway" in given:
        yield HTTP_ROUTE, _http_route(agent, given)
    elif given:
        yield INGRESS, _ingress(agent, given)


def _http_route(agent: Agent, given: Mapping[str, Any]) -> Mapping[str, Any]:
    gateway = given["gateway"]
    parent = {"group": HTTP_ROUTE.group, "kind": "Gateway", "name": gateway["name"]}
    if "namespace" in gateway:
        parent["namespace"] = gateway["namespace"]
    if "sectionName" in gateway:
        parent["sectionName"] = gateway["sectionName"]
    return {
        "parentRefs": [parent],
        "hostnames": [given["host"]],
        "rules": [
            {
                "matches": [{"path": {"type": "PathPrefix", "value": "/"}}],
                "backendRefs": [
                    {"group": "", "kind": "Service", "name": agent.name, "port": PORT, "weight": 1}
                ],
            }
        ],
    }


def _ingress(agent: Agent, given: Mapping[str, Any]) -> Mapping[str, Any]:
    backend = {"service": {"name": agent.name, "port": {"number": PORT}}}
    path = {"path": "/", "pathType": "Prefix", "backend": backend}
    spec: dict[str, Any] = {"rules": [{"host": given["host"], "http": {"paths": [path]}}]}
    if name := given["ingress"].get("className"):
        spec["ingressClassName"] = name
    if "tls" in given:
        secret = given["tls"].get("secretName")
        spec["tls"] = [{"hosts": [given["host"]], **({"secretName": secret} if secret else {})}]
    return spec


def _host_holder(
    agent: Agent, others: Iterable[Object], settings: ExposeSettings
) -> NamespacedName | None:
    """Return the oldest other Agent that may have this one's host name, if any.

    Agents that may not have the name are ignored.
    """
    holders = [
        (content["metadata"].get("creationTimestamp", ""), namespaced_name_of(content))
        for content in others
        if _may_be_exposed(Agent.read(content), settings)
    ]
    own = agent.namespaced_name
    oldest = min(holders, default=("", own))[1]
    return None if oldest == own else oldest


def _may_be_exposed(agent: Agent, settings: ExposeSettings) -> bool:
    return _settings(agent, settings).is_enabled and _may_have_host(agent, settings)


def _may_have_host(agent: Agent, settings: ExposeSettings) -> bool:
    host = agent.expose["host"]
    return any(_is_of(host, pattern, agent.namespace) for pattern in settings.hosts)


def _host(content: Object) -> str | None:
    expose = (content.get("spec") or {}).get("expose") or {}
    return expose.get("host")


def _way(agent: Agent) -> Way:
    return "gateway" if "gateway" in agent.expose else "ingress"


def _settings(agent: Agent, settings: ExposeSettings) -> WaySettings:
    return settings.gateway if _way(agent) == "gateway" else settings.ingress


def _is_of(host: str, pattern: str, namespace: str) -> bool:
    wanted = re.escape(pattern.replace("{namespace}", namespace)).replace(r"\*", "[^.]+")
    return bool(re.fullmatch(wanted, host))
