"""Who may ask an agent, as its configuration says it: resolved, checked, frozen."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from diptych.access.grants import Grant
from diptych.access.limits import Limits
from diptych.ports import ValueProvider


@dataclass(frozen=True, slots=True)
class IssuerConfig:
    """An issuer whose tokens are accepted; without `jwks` it is asked for its keys.

    With `is_cluster` its tokens are those of ServiceAccounts. `ca` reads the certificates of the
    authorities (PEM) that it is trusted by, in place of the public ones.
    """

    url: str
    audience: str
    user_claim: str = "sub"
    groups_claim: str = "groups"
    jwks: tuple[Mapping[str, Any], ...] | None = None
    is_cluster: bool = False
    ca: ValueProvider | None = None


@dataclass(frozen=True, slots=True)
class AccessConfig:
    """Who may do what (access.md). `keys` are API keys by the name of their holder.

    With `approve_own` whoever may approve decides on its own runs, too.

    `platform` reads what the operator says for all callers of the agent, as JSON; see
    `config.platform_access`.
    """

    mode: Literal["required", "open"] = "required"
    keys: Mapping[str, ValueProvider] = field(default_factory=dict)
    issuers: tuple[IssuerConfig, ...] = ()
    grants: tuple[Grant, ...] = ()
    limits: Limits = field(default_factory=Limits)
    platform: ValueProvider | None = None
    approve_own: bool = False
