"""The head that all manifests share: the format's version, and an object's name and namespace."""

from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BeforeValidator

from diptych.manifest.fields import DnsLabel
from diptych.manifest.rules import StrictModel, pattern
from diptych.manifest.settings import NAMESPACE

API_VERSION: Final = "diptych.dev/v1alpha1"
MAX_SHARED_NAME: Final = 57  # characters, so that `<name>-model` is a label

_SERVER_METADATA = {
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generation",
    "managedFields",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
}


def _without_server_metadata(value: object) -> object:
    if not isinstance(value, dict):
        return value
    return {name: inner for name, inner in value.items() if name not in _SERVER_METADATA}


AS_WRITTEN: Final = BeforeValidator(_without_server_metadata)
"""Leaves out what a Kubernetes API server adds to an object's metadata."""


class Metadata(StrictModel):
    """The object's name; the rest belongs to Kubernetes, which writes more than users do."""

    name: Annotated[DnsLabel, pattern("[a-z].*", "must begin with a letter", 63)]
    """The object's name."""
    namespace: DnsLabel = NAMESPACE
    """The namespace that the object is in."""
    labels: Any = None
    annotations: Any = None


SharedName: TypeAlias = Annotated[
    str,
    pattern(
        f"[a-z]([-a-z0-9]{{0,{MAX_SHARED_NAME - 2}}}[a-z0-9])?",
        'must be lower-case letters, digits and "-", beginning with a letter and not "-" last, '
        f"{MAX_SHARED_NAME} characters at most",
        MAX_SHARED_NAME,
    ),
]
"""The name of an object that others are named after, such as `<name>-model`."""


class SharedMetadata(Metadata):
    """The object's name; the rest belongs to Kubernetes, which writes more than users do."""

    name: SharedName
    """The object's name."""


class SharedManifest(StrictModel):
    """The head of the manifests that Agents refer to."""

    api_version: Literal["diptych.dev/v1alpha1"]
    """The version of the manifest's format."""
    kind: str
    metadata: Annotated[SharedMetadata, AS_WRITTEN]
    """The object's name and namespace. Labels and annotations are allowed too."""
    status: Any = None  # `kubectl get -o yaml` writes it; it has no meaning here
