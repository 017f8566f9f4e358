"""What the operator tells every pod of an agent about its callers, as JSON in a mounted file.

    {"issuers": [{"url", "audience", "userClaim"?, "groupsClaim"?, "jwks"?: {"keys": [...]},
                  "ca"?, "isCluster"?}],
     "grants": [{"to": [{"kind", "name"}], "may": ["ask", ...]}],
     "agents": ["<namespace>/<name>", ...]}

`agents` are the Agents of the cluster that may ask. The file changes while the pod runs.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from diptych.access.grants import Grant, Grantee, Right
from diptych.manifest.access_settings import IssuerConfig
from diptych.manifest.secret_sources import constant_value


@dataclass(frozen=True, slots=True)
class PlatformAccess:
    """The file's content."""

    issuers: tuple[IssuerConfig, ...] = ()
    grants: tuple[Grant, ...] = ()
    agents: frozenset[str] = frozenset()


def read_platform_access(text: str) -> PlatformAccess:
    """Read the file. Raises `ValueError` if it does not have the form above."""
    try:
        content = json.loads(text)
        agents = frozenset(str(name) for name in content.get("agents", ()))
        return PlatformAccess(
            tuple(map(_issuer, content.get("issuers", ()))),
            (*map(_grant, content.get("grants", ())), *_grants_of(agents)),
            agents,
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it lacks {error}") from error


def _issuer(content: Mapping[str, Any]) -> IssuerConfig:
    jwks, ca = content.get("jwks"), content.get("ca")
    return IssuerConfig(
        content["url"],
        content["audience"],
        content.get("userClaim", "sub"),
        content.get("groupsClaim", "groups"),
        tuple(jwks["keys"]) if jwks else None,
        bool(content.get("isCluster")),
        constant_value(ca) if ca else None,
    )


def _grant(content: Mapping[str, Any]) -> Grant:
    to = tuple(Grantee(one["kind"], one["name"]) for one in content["to"])
    return Grant(to, frozenset(map(Right, content["may"])))


def _grants_of(agents: frozenset[str]) -> tuple[Grant, ...]:
    to = tuple(Grantee("agent", name) for name in sorted(agents))
    return (Grant(to, frozenset({Right.ASK})),) if to else ()
