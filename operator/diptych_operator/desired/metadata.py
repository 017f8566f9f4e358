"""Labels and annotations of an Agent's objects.

Pure. From weakest to strongest: the platform's (Services and ServiceAccounts), the Agent's
`spec.metadata`, the operator's own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from diptych_operator.resources.agent import Agent
from diptych_operator.resources.kinds import SERVICE, SERVICE_ACCOUNT, Object, kind_of
from diptych_operator.resources.owner import ManifestError, Owner


@dataclass(frozen=True, slots=True)
class ObjectMetadata:
    """Labels and annotations."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MetadataSettings:
    """The platform's settings for labels and annotations.

    `allowed` are globs of the keys that Agents may set; none if empty.
    """

    allowed: tuple[str, ...] = ()
    services: ObjectMetadata = field(default_factory=ObjectMetadata)
    service_accounts: ObjectMetadata = field(default_factory=ObjectMetadata)


def own_metadata(owner: Owner) -> ObjectMetadata:
    """Return the labels and annotations in an owner's `spec.metadata`."""
    given = owner.spec.get("metadata") or {}
    return ObjectMetadata(given.get("labels") or {}, given.get("annotations") or {})


def check_metadata(agent: Agent, settings: MetadataSettings) -> None:
    """Raise `ManifestError` for a key that Agents may not set."""
    own = own_metadata(agent)
    for name, given in (("labels", own.labels), ("annotations", own.annotations)):
        for key in sorted(given):
            if not _is_allowed(key, settings):
                allowed = ", ".join(settings.allowed) or "none"
                raise ManifestError(
                    "MetadataNotAllowed",
                    f"spec.metadata.{name}[{key}] is not allowed: the platform lets Agents set "
                    f"these keys: {allowed} (the chart's value agents.metadata.allowed)",
                )


def with_metadata(child: Object, owner: Owner, settings: MetadataSettings) -> Object:
    """Return an owner's object with labels and annotations added; existing ones win."""
    platform = {SERVICE: settings.services, SERVICE_ACCOUNT: settings.service_accounts}.get(
        kind_of(child), ObjectMetadata()
    )
    own = own_metadata(owner)
    metadata = dict(child["metadata"])
    labels = {**platform.labels, **_allowed(own.labels, settings), **metadata["labels"]}
    annotations = {
        **platform.annotations,
        **_allowed(own.annotations, settings),
        **metadata.get("annotations", {}),
    }
    metadata["labels"] = labels
    if annotations:
        metadata["annotations"] = annotations
    return {**child, "metadata": metadata}


def _allowed(given: Mapping[str, str], settings: MetadataSettings) -> dict[str, str]:
    return {key: value for key, value in given.items() if _is_allowed(key, settings)}


def _is_allowed(key: str, settings: MetadataSettings) -> bool:
    return any(fnmatchcase(key, glob) for glob in settings.allowed)
