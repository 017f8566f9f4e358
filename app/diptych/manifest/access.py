"""Who may do what to an agent (access.md): in its manifest, and in the platform's file."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    Field,
)

from diptych.access.grants import Grant, Grantee, Right
from diptych.manifest.documents import FieldPath
from diptych.manifest.fields import (
    DnsLabel,
    KeyRef,
    NonEmptyList,
    OneLine,
    ShortList,
    TextSource,
    Url,
)
from diptych.manifest.rules import (
    Rule,
    StrictModel,
    UniqueNames,
    pattern,
)
from diptych.manifest.secret_sources import constant_value
from diptych.manifest.settings import IssuerConfig


class AccessKey(StrictModel):
    """An API key, for a program that has no token."""

    name: DnsLabel
    """The name of the key's holder. In grants, records and logs it is `key:<name>`."""
    secret_key_ref: KeyRef
    """The key of a Secret that holds the API key. It is read again when it changes."""


# Whether it is one is said by `diptych check`, and when it is used: a pattern for so long a text
# would take most of what all rules of the CRD may cost together.
Certificates: TypeAlias = Annotated[str, Field(min_length=1, max_length=64 * 1024)]


class JsonWebKeySet(StrictModel):
    """The public keys of an issuer (RFC 7517), in place of asking it for them."""

    keys: Annotated[
        NonEmptyList[dict[str, Any]],
        Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True}),
    ]
    """JSON Web Keys."""


class IssuerSpec(StrictModel):
    """An issuer of tokens whose users may be granted rights."""

    at_most_one_of = ("ca", "caFrom")

    url: Annotated[
        Url, pattern("https://.*", "must start with https://: the keys come from there", 2048)
    ]
    """The issuer, exactly as the `iss` of its tokens says it."""
    audience: OneLine
    """The audience that a token must be for."""
    user_claim: OneLine = "sub"
    """The claim that names the user."""
    groups_claim: OneLine = "groups"
    """The claim that lists the user's groups."""
    jwks: JsonWebKeySet | None = None
    """The issuer's keys, in place of asking it."""
    ca: Certificates | None = None
    """The certificates of the authorities that the issuer's own is signed by, as PEM. They take
    the place of the public ones that every program trusts."""
    ca_from: TextSource | None = None
    """The object that holds these certificates. It is read again when the keys are fetched."""


class ServiceAccountRef(StrictModel):
    """A ServiceAccount of the cluster."""

    name: OneLine
    """Its name; `*` stands for all of the namespace."""
    namespace: DnsLabel | None = None
    """Its namespace; the Agent's own if absent."""


class GranteeSpec(StrictModel):
    """Whom a grant is for: exactly one of these."""

    exactly_one_of = ("serviceAccount", "agent", "group", "user", "key")

    service_account: ServiceAccountRef | None = None
    """A ServiceAccount, or all of a namespace."""
    agent: ServiceAccountRef | None = None
    """An Agent, or all of a namespace."""
    group: OneLine | None = None
    """A group of users, as their issuer says."""
    user: OneLine | None = None
    """A user, as the issuer says."""
    key: DnsLabel | None = None
    """The holder of an API key of `access.keys`."""


class GrantSpec(StrictModel):
    """Some rights for some subjects."""

    to: NonEmptyList[GranteeSpec]
    """The subjects that get the rights."""
    may: NonEmptyList[Literal["ask", "read", "approve", "manage"]]
    """`ask`: start runs, and see, follow, steer, cancel and resume one's own. `read`: see all.
    `approve`: decide approvals of others' runs. `manage`: cancel any run and delete any session."""


class LimitsSpec(StrictModel):
    """Limits of each subject."""

    runs_at_once: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """The most unfinished runs of one subject at a pod."""
    runs_per_minute: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """The most runs that one subject may begin within a minute at a pod."""


class AccessSpec(StrictModel):
    """Who may do what to the agent."""

    rules = (
        Rule(  # `unknown_keys` checks the same, and names the field
            "!has(self.grants) || self.grants.all(g, g.to.all(t, !has(t.key) || "
            "(has(self.keys) && self.keys.exists(k, k.name == t.key))))",
            "grants name a key that is no name of keys",
        ),
    )

    mode: Literal["required", "open"] = "required"
    """`required`: callers must authenticate. `open`: anyone who reaches a pod may do anything;
    `/ready`, the log and a condition say so."""
    keys: Annotated[ShortList[AccessKey], UniqueNames("keys", lambda k: k.name)] = ()
    """API keys that are accepted. Their holders may ask, unless a grant names them."""
    issuers: Annotated[ShortList[IssuerSpec], UniqueNames("issuers", lambda i: i.url, "url")] = ()
    """Issuers whose tokens are accepted, besides the platform's."""
    grants: ShortList[GrantSpec] = ()
    """Who may do what, besides the Agents that `allowedNamespaces` lets in: they may ask."""
    approve_own: bool = False
    """Whether callers with `approve` may also decide on calls of runs that they started."""
    limits: LimitsSpec = Field(default_factory=LimitsSpec)
    """Limits of each subject."""


def unknown_keys(access: AccessSpec) -> Iterator[tuple[FieldPath, str]]:
    """Find grants to keys that do not exist: each with its field, and the problem."""
    known = [key.name for key in access.keys]
    there = f"there is {', '.join(known)}" if known else "there is none"
    for n, grant in enumerate(access.grants):
        for m, grantee in enumerate(grant.to):
            if grantee.key is not None and grantee.key not in known:
                path = ("spec", "access", "grants", n, "to", m, "key")
                yield path, f"{grantee.key} is no name of access.keys; {there}"


def access_grants(access: AccessSpec, namespace: str) -> tuple[Grant, ...]:
    """Return a manifest's grants.

    Without any, the ServiceAccounts of the agent's own namespace may ask. Holders of keys that no
    grant names may always ask.
    """
    grants = [
        Grant(
            tuple(_grantee(one, namespace) for one in grant.to),
            frozenset(Right(right) for right in grant.may),
        )
        for grant in access.grants
    ]
    named = {one.name for grant in grants for one in grant.to if one.kind == "key"}
    others = [Grantee("key", key.name) for key in access.keys if key.name not in named]
    if not access.grants:
        others.append(Grantee("serviceaccount", f"{namespace}/*"))
    return (*grants, Grant(tuple(others), frozenset({Right.ASK})))


def _grantee(grantee: GranteeSpec, namespace: str) -> Grantee:
    if ref := grantee.service_account:
        return Grantee("serviceaccount", f"{ref.namespace or namespace}/{ref.name}")
    if ref := grantee.agent:
        return Grantee("agent", f"{ref.namespace or namespace}/{ref.name}")
    if grantee.group is not None:
        return Grantee("group", grantee.group)
    if grantee.user is not None:
        return Grantee("user", grantee.user)
    return Grantee("key", grantee.key or "")  # exactly one is given


@dataclass(frozen=True, slots=True)
class PlatformAccess:
    """The platform's access rules, which the operator writes for every pod of an agent.

    `agents` are the Agents of the cluster that may ask, as `<namespace>/<name>`; `pooled` those
    that ask from a pool, each with the pool's ServiceAccount.
    """

    issuers: tuple[IssuerConfig, ...] = ()
    grants: tuple[Grant, ...] = ()
    agents: frozenset[str] = frozenset()
    pooled: frozenset[tuple[str, str]] = frozenset()


def read_platform_access(text: str) -> PlatformAccess:
    """Read the mounted file, which changes while the pod runs. Raises `ValueError`.

    It is JSON:

        {"issuers": [{"url", "audience", "userClaim"?, "groupsClaim"?, "jwks"?: {"keys": [...]},
                      "ca"?, "isCluster"?}],
         "grants": [{"to": [{"kind", "name"}], "may": ["ask", ...]}],
         "agents": ["<namespace>/<name>" | {"name": "<namespace>/<name>",
                                            "pool": "<namespace>/<serviceaccount>"}, ...]}
    """
    try:
        content = json.loads(text)
        callers = content.get("agents", ())
        agents = frozenset(each for each in callers if isinstance(each, str))
        pooled = frozenset(
            (str(each["name"]), str(each["pool"])) for each in callers if isinstance(each, dict)
        )
        ask = tuple(Grantee("agent", name) for name in sorted({*agents, *(n for n, _ in pooled)}))
        return PlatformAccess(
            tuple(map(_issuer, content.get("issuers", ()))),
            (*map(_grant, content.get("grants", ())), Grant(ask, frozenset({Right.ASK}))),
            agents,
            pooled,
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
