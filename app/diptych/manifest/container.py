"""The part of a manifest that says what the agent's container is given: Kubernetes' own fields.

A laptop checks it by the same rules, and takes the variables.
"""

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from diptych.manifest.fields import (
    DnsLabel,
    LongList,
    LongText,
    ObjectName,
    ShortList,
    VariableName,
)
from diptych.manifest.key_refs import KeyRef
from diptych.manifest.rules import IntOrPattern, Pattern, UniqueNames
from diptych.manifest.strict_model import StrictModel

Quantity: TypeAlias = Annotated[
    int | str,
    IntOrPattern(
        r"[0-9]{1,15}(\.[0-9]{1,9})?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?",
        'must be a quantity such as "500m", "2" or "512Mi"',
        32,
    ),
]


class VariableRef(KeyRef):
    """A key that a variable takes its value from."""

    optional: bool = False
    """Whether the key may be missing."""


class FieldRef(StrictModel):
    """A field of the pod, such as `status.podIP`."""

    field_path: Annotated[str, Field(min_length=1, max_length=512)]
    """The field's path, as in a Kubernetes container."""
    api_version: Annotated[str, Field(max_length=63)] | None = None
    """The version of the API that the path belongs to."""


class ResourceFieldRef(StrictModel):
    """A resource of a container, such as `limits.memory`."""

    resource: Annotated[str, Field(min_length=1, max_length=253)]
    """The resource's name."""
    container_name: DnsLabel | None = None
    """The container whose resource is meant."""
    divisor: Quantity | None = None
    """The unit that the value is given in."""


class VariableSource(StrictModel):
    """What a variable takes its value from, as in a Kubernetes container."""

    exactly_one_of = ("configMapKeyRef", "secretKeyRef", "fieldRef", "resourceFieldRef")

    config_map_key_ref: VariableRef | None = None
    """A key of a ConfigMap."""
    secret_key_ref: VariableRef | None = None
    """A key of a Secret."""
    field_ref: FieldRef | None = None
    """A field of the pod."""
    resource_field_ref: ResourceFieldRef | None = None
    """A resource of the container."""


class Variable(StrictModel):
    """A variable of the container; without `value` and `valueFrom` it is empty (Kubernetes)."""

    at_most_one_of = ("value", "valueFrom")

    name: VariableName
    """The variable's name."""
    value: LongText | None = None
    """The variable's value."""
    value_from: VariableSource | None = None
    """What the variable takes its value from."""


class ObjectRef(StrictModel):
    """A whole Secret or ConfigMap of the agent's namespace."""

    name: ObjectName
    """The object's name."""
    optional: bool = False
    """Whether the object may be missing."""


class VariablesFrom(StrictModel):
    """All keys of a Secret or ConfigMap, as variables."""

    exactly_one_of = ("configMapRef", "secretRef")

    config_map_ref: ObjectRef | None = None
    """A ConfigMap."""
    secret_ref: ObjectRef | None = None
    """A Secret."""
    prefix: Annotated[
        str, Pattern(r"([A-Za-z_][-._A-Za-z0-9]*)?", "must begin a variable's name", 253)
    ] = ""
    """A text that is put before each key to make the variable's name."""


class Resources(StrictModel):
    """The resources that the container requests, and its limits."""

    requests: dict[str, Quantity] = Field(default_factory=dict, max_length=32)
    """The resources that are reserved for the container."""
    limits: dict[str, Quantity] = Field(default_factory=dict, max_length=32)
    """The most that the container may use."""


class ContainerSpec(StrictModel):
    """What the agent's container is given; Kubernetes' own fields."""

    image: (
        Annotated[str, Pattern(r"[!-~]+", "must be the name of an image, without blanks", 512)]
        | None
    ) = None
    """An image in place of the operator's default; it must hold the `diptych` command."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """When the image is pulled."""
    env: Annotated[
        LongList[Variable], UniqueNames("variables", lambda variable: str(variable.name), "name")
    ] = ()
    """Variables of the container, such as DEBUG_MOCK_RESPONSES."""
    env_from: ShortList[VariablesFrom] = ()
    """Secrets and ConfigMaps whose keys become variables. Of two variables with the same name, the
    one in `env` counts."""
    resources: Resources | None = None
    """Requests and limits in place of the operator's defaults."""
