"""The parts of a manifest that say what the agent's pods are made of: container and template.

A laptop checks them by the same rules, and takes the container's variables.
"""

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, WithJsonSchema

from diptych.config.manifest.field_types import Few, Label, LongText, Many, ObjectName, VariableName
from diptych.config.manifest.rules import Form, NumberOr, Unique
from diptych.config.manifest.strict_model import KeyRef, Wire, Words

FreeForm: TypeAlias = Annotated[
    dict[str, Any],
    WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
]
Quantity: TypeAlias = Annotated[
    int | str,
    NumberOr(
        r"[0-9]{1,15}(\.[0-9]{1,9})?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?",
        'must be a quantity such as "500m", "2" or "512Mi"',
        32,
    ),
]


class VariableRef(KeyRef):
    """A key that a variable takes its value from."""

    optional: bool = False
    """Whether it may be missing."""


class FieldRef(Wire):
    """A field of the pod, such as `status.podIP`."""

    field_path: Annotated[str, Field(min_length=1, max_length=512)]
    """Path of the field, as in a Kubernetes container."""
    api_version: Annotated[str, Field(max_length=63)] | None = None
    """The version of the API that the path belongs to."""


class ResourceFieldRef(Wire):
    """A resource of the container, such as `limits.memory`."""

    resource: Annotated[str, Field(min_length=1, max_length=253)]
    """Which resource."""
    container_name: Label | None = None
    """Of which container."""
    divisor: Quantity | None = None
    """The unit that the value is given in."""


class VariableSource(Wire):
    """Where a variable's value stands, as in a Kubernetes container."""

    exactly_one_of = ("configMapKeyRef", "secretKeyRef", "fieldRef", "resourceFieldRef")

    config_map_key_ref: VariableRef | None = None
    """A key of a ConfigMap."""
    secret_key_ref: VariableRef | None = None
    """A key of a Secret."""
    field_ref: FieldRef | None = None
    """A field of the pod."""
    resource_field_ref: ResourceFieldRef | None = None
    """A resource of the container."""


class Variable(Wire):
    """A variable of the container; without `value` and `valueFrom` it is empty (Kubernetes)."""

    only_one_of = ("value", "valueFrom")

    name: VariableName
    """The variable's name."""
    value: LongText | None = None
    """Its value."""
    value_from: VariableSource | None = None
    """Where its value stands."""


class ObjectRef(Wire):
    """A whole Secret or ConfigMap of the agent's namespace."""

    name: ObjectName
    """Its name."""
    optional: bool = False
    """Whether it may be missing."""


class VariablesFrom(Wire):
    """All keys of a Secret or ConfigMap, as variables."""

    exactly_one_of = ("configMapRef", "secretRef")

    config_map_ref: ObjectRef | None = None
    """A ConfigMap."""
    secret_ref: ObjectRef | None = None
    """A Secret."""
    prefix: Annotated[
        str, Form(r"([A-Za-z_][-._A-Za-z0-9]*)?", "must begin a variable's name", 253)
    ] = ""
    """What each variable's name begins with."""


class Resources(Wire):
    """What the container asks for, and what it gets at most."""

    requests: dict[str, Quantity] = Field(default_factory=dict, max_length=32)
    """What is set aside for it."""
    limits: dict[str, Quantity] = Field(default_factory=dict, max_length=32)
    """What it gets at most."""


class ContainerSpec(Wire):
    """What the pod's container is given besides; Kubernetes' own fields."""

    image: (
        Annotated[str, Form(r"[!-~]+", "must be the name of an image, without blanks", 512)] | None
    ) = None
    """Another image than the operator's default; it must hold the `diptych` command."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """When the image is pulled."""
    env: Annotated[
        Many[Variable], Unique("variables", lambda variable: str(variable.name), "name")
    ] = ()
    """Variables of the container. DEBUG_MOCK_RESPONSES belongs here."""
    env_from: Few[VariablesFrom] = ()
    """Secrets and ConfigMaps whose keys become variables."""
    resources: Resources | None = None
    """Replaces the operator's default requests and limits."""


class PodMetadata(Wire):
    """Labels and annotations of the pods."""

    labels: Words = Field(default_factory=dict)
    """Added to the pods' labels; those that the operator needs cannot be changed."""
    annotations: Words = Field(default_factory=dict)
    """Added to the pods' annotations."""


class PodTemplate(Wire):
    """What the pods' template is overridden with, merged last."""

    metadata: PodMetadata = Field(default_factory=PodMetadata)
    """The pods' labels and annotations."""
    spec: FreeForm = Field(default_factory=dict)
    """Any part of a Kubernetes PodSpec. Mappings are merged; of lists, entries with the same name
    (volumeMounts: mountPath; ports: containerPort), others are replaced whole. The agent's own
    container is called `agent`."""
