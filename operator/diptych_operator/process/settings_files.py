"""The files that the chart writes for the operator: what the platform sets for all Agents.

The chart's schema has checked them; here a mistake in one that somebody else wrote ends the process
with one line. charts/diptych/values.yaml explains the fields.
"""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias, TypeVar

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic.alias_generators import to_camel

from diptych_operator.desired.access import AccessSettings
from diptych_operator.desired.call_policy import locked_by_policy, policy_mistakes
from diptych_operator.desired.deployment import (
    PodDefaults,
    ProxySettings,
    RolloutSettings,
    pod_template,
)
from diptych_operator.desired.expose import ExposeSettings, WaySettings
from diptych_operator.desired.locked_fields import LockedField, locked_field
from diptych_operator.desired.metadata import MetadataSettings, ObjectMetadata
from diptych_operator.desired.strategic_merge import strategic_merge
from diptych_operator.resources.agent import Agent
from diptych_operator.resources.kinds import NamespacedName, Object
from diptych_operator.resources.owner import ManifestError

_PROXY = re.compile(r"https?://(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\]):[1-9]\d{0,4}/?")
_COUNT = re.compile(r"\d{1,4}|\d{1,3}%", re.ASCII)
_DURATION = re.compile(r"(?=.)(\d{1,9}h)?(\d{1,9}m)?(\d{1,9}s)?(\d{1,9}ms)?", re.ASCII)
_DURATION_PART = re.compile(r"([0-9]+)(h|ms|m|s)")
_MILLISECONDS = {"h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_PEM = "-----BEGIN CERTIFICATE-----"


class SettingsError(ValueError):
    """A flag, variable or file with an invalid value; `str()` is one line."""


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, alias_generator=to_camel)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, content: object) -> object:
        if isinstance(content, dict):
            return {name: value for name, value in content.items() if value is not None}
        return content


_FormT = TypeVar("_FormT", bound=_Form)


def _count(value: int | str) -> int | str:
    if not _COUNT.fullmatch(str(value)):
        raise ValueError("must be a number or a percentage")
    return value


def _proxy_url(url: str) -> str:
    """Refuse a password: the URL stands in every Agent's Deployment."""
    if url and not _PROXY.fullmatch(url):
        raise ValueError("must be like http://proxy.infra:3128, no password")
    return url


def _duration(text: str) -> str:
    if not _DURATION.fullmatch(text):
        raise ValueError("must be a duration, such as 10m")
    parts = _DURATION_PART.findall(text)
    if not 0 < sum(int(number) * _MILLISECONDS[unit] for number, unit in parts) <= 24 * 3_600_000:
        raise ValueError("must be more than 0s and at most 24h")
    return text


def _https(url: str) -> str:
    if not url.startswith("https://"):
        raise ValueError("must start with https://")
    return url


def _certificates(text: str) -> str:
    if _PEM not in text:
        raise ValueError("must be certificates as PEM")
    return text


_Name: TypeAlias = Annotated[
    str, Field(pattern=r"^[^\x00-\x20\x7f]([^\x00-\x1f\x7f]{0,254}[^\x00-\x20\x7f])?$")
]
_Count: TypeAlias = Annotated[int | str, AfterValidator(_count)]
_Peers: TypeAlias = list[Annotated[dict[str, Any], Field(min_length=1)]]
_Words: TypeAlias = list[Annotated[str, Field(min_length=1)]]


class _OneOf(_Form):
    """Exactly one of the fields is given."""

    @model_validator(mode="after")
    def _has_one(self) -> Self:
        if len(self.model_fields_set) != 1:
            fields = (field.alias or name for name, field in type(self).model_fields.items())
            raise ValueError(f"needs exactly one of {', '.join(fields)}")
        return self


class _Match(_OneOf):
    tool: _Name | None = None
    agent: _Name | None = None


class _Rule(_Form):
    """A rule of `spec.policy`; only `repeat` is not for the platform."""

    match: _Match
    do: Literal["allow", "deny", "ask"]
    mode: Literal["enforce", "dryRun"] = "enforce"
    when: Annotated[str, Field(min_length=1, max_length=2048)] | None = None
    reason: Annotated[str, Field(max_length=1024)] | None = None
    expires: Annotated[str, AfterValidator(_duration)] | None = None


class _ObjectMetadata(_Form):
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}

    def settings(self) -> ObjectMetadata:
        return ObjectMetadata(self.labels, self.annotations)


class _Metadata(_Form):
    allowed: list[str] = []


class _Rollout(_Form):
    max_surge: _Count = 1
    max_unavailable: _Count = 0
    at_once: Annotated[int, Field(ge=0)] = 0
    edits_at_once: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _replaces_pods(self) -> Self:
        if {str(self.max_surge), str(self.max_unavailable)} <= {"0", "0%"}:
            raise ValueError("maxSurge and maxUnavailable must not both be 0")
        return self


class _Proxy(_Form):
    url: Annotated[str, AfterValidator(_proxy_url)] = ""
    no_proxy: _Words = []


class _Way(_Form):
    enabled: bool = False
    sources: _Peers = Field(default=[], alias="from")

    def settings(self) -> WaySettings:
        return WaySettings(self.enabled, tuple(self.sources))


class _Expose(_Form):
    hosts: _Words = []
    gateway: _Way = _Way()
    ingress: _Way = _Way()

    @model_validator(mode="after")
    def _has_hosts(self) -> Self:
        if not self.hosts and (self.gateway.enabled or self.ingress.enabled):
            raise ValueError("hosts must say which host names Agents may take")
        return self


class _Agents(_Form):
    pod_template: dict[str, Any] = {}
    locked: list[str] = []
    metadata: _Metadata = _Metadata()
    service: _ObjectMetadata = _ObjectMetadata()
    service_account: _ObjectMetadata = _ObjectMetadata()
    rollout: _Rollout = _Rollout()
    policy: Annotated[list[_Rule], Field(max_length=64)] = []
    proxy: _Proxy = _Proxy()
    sources: _Peers = Field(default=[], alias="from")
    expose: _Expose = _Expose()


class _Account(_Form):
    name: str
    namespace: str


class _Grantee(_OneOf):
    service_account: _Account | None = None
    agent: _Account | None = None
    group: str | None = None
    user: str | None = None

    def in_access_file(self) -> Object:
        ((field, value),) = ((name, getattr(self, name)) for name in self.model_fields_set)
        name = f"{value.namespace}/{value.name}" if isinstance(value, _Account) else value
        return {"kind": field.replace("_", ""), "name": name}


class _Grant(_Form):
    to: list[_Grantee]
    may: list[Literal["ask", "read", "approve", "manage"]]


class _Issuer(_Form):
    url: Annotated[str, AfterValidator(_https)]
    audience: str
    user_claim: str | None = None
    groups_claim: str | None = None
    jwks: dict[str, Any] | None = None
    ca: Annotated[str, AfterValidator(_certificates)] | None = None


class _Access(_Form):
    issuers: list[_Issuer] = []
    grants: list[_Grant] = []


class AgentsFile:
    """The content of the file of `--agents`. Raises `SettingsError`."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self._given = _checked("--agents", _Agents, content)
        self.policy: tuple[Mapping[str, Any], ...] = tuple(content.get("policy") or ())
        self.network_peers = tuple(self._given.sources)
        if mistakes := list(policy_mistakes(self.policy)):
            raise SettingsError("; ".join(f"--agents: policy{one}" for one in mistakes))

    def pods(
        self, image: str, pull_policy: str, template: Mapping[str, Any], domain: str
    ) -> PodDefaults:
        """Return what all pods have; the file's pod template lies over `template`."""
        given = self._given
        try:
            template = strategic_merge(template, given.pod_template, "podTemplate")
        except ManifestError as error:
            raise SettingsError(f"--agents: {error}") from error
        locked = _locked(given.locked)
        if self.policy:
            locked += locked_by_policy()
        rollout = given.rollout
        pods = PodDefaults(
            image,
            pull_policy,
            template,
            locked,
            RolloutSettings(
                rollout.max_surge,
                rollout.max_unavailable,
                rollout.at_once,
                rollout.edits_at_once,
            ),
            ProxySettings(given.proxy.url, tuple(given.proxy.no_proxy), domain)
            if given.proxy.url
            else None,
        )
        _check_template(pods)
        return pods

    @property
    def metadata(self) -> MetadataSettings:
        given = self._given
        allowed = tuple(given.metadata.allowed)
        return MetadataSettings(allowed, given.service.settings(), given.service_account.settings())

    @property
    def expose(self) -> ExposeSettings:
        given = self._given.expose
        return ExposeSettings(
            tuple(given.hosts), given.gateway.settings(), given.ingress.settings()
        )


def read_access(file: str, operator: NamespacedName | None) -> AccessSettings:
    """Read the file of `--access`, if one is given. Raises `SettingsError`."""
    content = read_mapping("--access", file)
    given = _checked("--access", _Access, content)
    grants = (
        {"to": [one.in_access_file() for one in grant.to], "may": grant.may}
        for grant in given.grants
    )
    return AccessSettings(tuple(content.get("issuers") or ()), tuple(grants), operator)


def read_mapping(flag: str, file: str) -> Mapping[str, Any]:
    """Read a file's mapping as JSON values; empty without a file. Raises `SettingsError`."""
    if not file:
        return {}
    try:
        content = yaml.safe_load(Path(file).read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not YAML"
        raise SettingsError(f"{flag}: {file} cannot be read: {reason}") from error
    if not isinstance(content, dict):
        raise SettingsError(f"{flag}: {file} must hold a mapping")
    return json.loads(json.dumps(content))  # type: ignore[no-any-return]


def _checked(flag: str, form: type[_FormT], content: Mapping[str, Any]) -> _FormT:
    try:
        return form.model_validate(content)
    except ValidationError as error:
        mistake = error.errors(include_url=False)[0]
    steps = (f"[{one}]" if isinstance(one, int) else f".{one}" for one in mistake["loc"])
    place = "".join(steps).removeprefix(".")
    raise SettingsError(f"{flag}: {place}: {mistake['msg'].removeprefix('Value error, ')}")


def _locked(paths: Iterable[str]) -> tuple[LockedField, ...]:
    try:
        return tuple(map(locked_field, paths))
    except ValueError as error:
        raise SettingsError(f"--agents: locked: {error}") from None


def _check_template(pods: PodDefaults) -> None:
    """Merge the operator's template into a pod once, so that a mistake ends the process at once."""
    agent = Agent("default", "check", "", 0, is_terminating=False, spec={}, status={})
    try:
        pod_template(agent, "", pods)
    except ManifestError as error:
        raise SettingsError(f"--pod-template: {error}") from error
