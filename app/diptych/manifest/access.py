"""The part of a manifest that says who may do what to an agent (access.md)."""

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, WithJsonSchema

from diptych.manifest.fields import DnsLabel, NonEmptyList, OneLine, ShortList
from diptych.manifest.key_refs import KeyRef, TextSource
from diptych.manifest.rules import CelRule, Pattern, UniqueNames
from diptych.manifest.strict_model import StrictModel
from diptych.manifest.urls import Url


class AccessKey(StrictModel):
    """An API key, for a program that has no token."""

    name: DnsLabel
    """The name of the key's holder. In grants, records and logs it is `key:<name>`."""
    secret_key_ref: KeyRef
    """The key of a Secret that holds the API key. It is read again when it changes."""


JsonWebKey: TypeAlias = Annotated[
    dict[str, Any],
    WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
]


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
        Url, Pattern("https://.*", "must start with https://: the keys come from there", 2048)
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
    """Who gets the rights."""
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

    # `config.grants` checks the same, and names the field.
    cel_rules = (
        CelRule(
            "!has(self.grants) || self.grants.all(g, g.to.all(t, !has(t.key) || "
            "(has(self.keys) && self.keys.exists(k, k.name == t.key))))",
            "grants name a key that is no name of keys",
        ),
    )

    mode: Literal["required", "open"] = "required"
    """`required`: whoever asks must prove who it is. `open`: everybody who reaches a pod may do
    everything; `/ready`, the log and a condition say so."""
    keys: Annotated[ShortList[AccessKey], UniqueNames("keys", lambda k: k.name, "name")] = ()
    """API keys that are accepted. Their holders may ask, unless a grant names them."""
    issuers: Annotated[ShortList[IssuerSpec], UniqueNames("issuers", lambda i: i.url, "url")] = ()
    """Issuers whose tokens are accepted, besides the platform's."""
    grants: ShortList[GrantSpec] = ()
    """Who may do what, besides the Agents that `allowedNamespaces` lets in: they may ask."""
    approve_own: bool = False
    """Whether who may `approve` may also decide on approvals of runs that it began itself."""
    limits: LimitsSpec = Field(default_factory=LimitsSpec)
    """Limits of each subject."""
