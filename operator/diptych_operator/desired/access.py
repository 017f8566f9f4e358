"""The access file, which lists an agent's allowed callers, and the tokens for its own calls. Pure.

The access file (`diptych.manifest.access` reads it) lies in a ConfigMap of its own, so
that a new key of the cluster or a new caller restarts no pod. It holds nothing secret.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from diptych_operator.resources.agent import Agent, PeerRef
from diptych_operator.resources.agent_pool import AgentPool
from diptych_operator.resources.kinds import NamespacedName, Object, schedules_name

ACCESS_FILE = "access/platform.json"
"""The file's path in the pod, relative to the mounted folder."""
ACCESS_KEY = "platform.json"
"""Its key in the ConfigMap."""

TOKEN_SECONDS = 3600  # the kubelet renews a token when four fifths of that are over


Callers: TypeAlias = Mapping[NamespacedName, Sequence[NamespacedName]]
"""The accounts of the pools in which each caller runs."""


@dataclass(frozen=True, slots=True)
class TokenIssuer:
    """The issuer of the cluster's ServiceAccount tokens, and its JSON Web Keys."""

    url: str
    keys: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class AccessSettings:
    """The platform's access settings for all Agents.

    `issuers` and `grants` have the form of the access file. `operator` is the operator's own
    ServiceAccount, which asks pods how they are.
    """

    issuers: tuple[Mapping[str, Any], ...] = ()
    grants: tuple[Mapping[str, Any], ...] = ()
    operator: NamespacedName | None = None


def access_config_map_name(agent: Agent) -> str:
    """Name the ConfigMap with the access file of an Agent; no other one of the operator's can be
    called so, as those end in hexadecimal digits.
    """
    return f"{agent.name}-access"


def access_text(
    agent: Agent, callers: Callers, issuer: TokenIssuer, settings: AccessSettings
) -> str:
    """Write the access file, as `access_content` returns it."""
    return json.dumps(access_content(agent, callers, issuer, settings), indent=1)


def access_content(
    agent: Agent, callers: Callers, issuer: TokenIssuer, settings: AccessSettings
) -> Object:
    """Return the access file. `callers` are the Agents that delegate to this one and may.

    One in a pool proves itself by the pool's account, and names itself.

    The Agent's own ServiceAccount may ask: who may create a token of it is Kubernetes' RBAC, and
    `diptych` asks with one.
    """
    own_grants = [_grant(agent.namespaced_name, "ask")]
    if agent.schedules:
        own_grants.append(_grant((agent.namespace, schedules_name(agent.name)), "ask"))
    pooled = [
        {"name": "/".join(name), "pool": "/".join(pool)}
        for name in sorted(callers)
        for pool in callers[name]
    ]
    return {
        "issuers": [cluster_issuer(issuer, agent.audience), *settings.issuers],
        "grants": [*own_grants, *operator_grants(settings), *settings.grants],
        "agents": [*sorted("/".join(name) for name in callers), *pooled],
    }


def pool_access_text(pool: AgentPool, issuer: TokenIssuer, settings: AccessSettings) -> str:
    """Write the access file of a pool's door, at which the grants of the agent that is asked count.

    The operator alone manages its agents.
    """
    content = {
        "issuers": [cluster_issuer(issuer, pool.audience), *settings.issuers],
        "grants": operator_grants(settings),
        "agents": [],
    }
    return json.dumps(content, indent=1)


def cluster_issuer(issuer: TokenIssuer, audience: str) -> Object:
    """Return the cluster's issuer in an access file, for tokens with an audience."""
    keys = {"keys": list(issuer.keys)}
    return {"url": issuer.url, "audience": audience, "jwks": keys, "isCluster": True}


def operator_grants(settings: AccessSettings) -> list[Object]:
    """Return the grants that let the operator ask pods how they are."""
    return [_grant(settings.operator, "status")] if settings.operator else []


def access_source(agent: Agent) -> Object:
    """Return the source of the access file in the pod's volume.

    It is not optional: a file that was there stays in running pods while the ConfigMap is replaced.
    """
    items = [{"key": ACCESS_KEY, "path": ACCESS_FILE}]
    return {"configMap": {"name": access_config_map_name(agent), "items": items}}


def token_sources(peers: Iterable[PeerRef]) -> list[Object]:
    """Return the sources of the tokens with which an Agent asks its peers, one for each of them."""
    names = dict.fromkeys(peer.name for peer in peers)
    return [token_source(Agent.audience_of(name), f"tokens/{name[0]}.{name[1]}") for name in names]


def token_source(audience: str, path: str) -> Object:
    """Return the source of a token of the pod's account for an audience."""
    token = {"audience": audience, "expirationSeconds": TOKEN_SECONDS, "path": path}
    return {"serviceAccountToken": token}


def _grant(account: NamespacedName, right: str) -> Object:
    return {"to": [{"kind": "serviceaccount", "name": "/".join(account)}], "may": [right]}
