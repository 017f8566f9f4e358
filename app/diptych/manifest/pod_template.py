"""The part of a manifest that overrides the template of the agent's pods.

A cluster applies it; a laptop only checks it, by the same rules.
"""

from typing import Annotated, Any, TypeAlias

from pydantic import Field, WithJsonSchema

from diptych.manifest.strict_model import StrictModel, StringMap

FreeForm: TypeAlias = Annotated[
    dict[str, Any],
    WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
]


class PodMetadata(StrictModel):
    """Labels and annotations of the pods."""

    labels: StringMap = Field(default_factory=dict)
    """Labels added to the pods'. The labels that the operator needs cannot be changed."""
    annotations: StringMap = Field(default_factory=dict)
    """Annotations added to the pods'."""


class PodTemplate(StrictModel):
    """Overrides of the pods' template; they are merged last."""

    metadata: PodMetadata = Field(default_factory=PodMetadata)
    """Labels and annotations of the pods."""
    spec: FreeForm = Field(default_factory=dict)
    """Any part of a Kubernetes PodSpec. Mappings are merged. In lists, entries with the same name
    are merged (volumeMounts by mountPath, ports by containerPort); other lists are replaced. The
    agent's own container is called `agent`."""
