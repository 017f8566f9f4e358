"""What all mappings of a manifest have in common, and the references that several of them hold.

Not here: the mappings themselves (`manifest` and its neighbours), single fields
(`fields`).
"""

from typing import Annotated, ClassVar, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from diptych.config.manifest.field_types import Key, ObjectName
from diptych.config.manifest.rules import Cel, broken_rule

Words: TypeAlias = Annotated[
    dict[
        Annotated[str, Field(max_length=317)], Annotated[str, Field(strict=False, max_length=1024)]
    ],
    Field(max_length=64),
]
"""Labels or annotations."""


class Wire(BaseModel):
    """A mapping of the manifest: camelCase outside, snake_case inside, nothing unknown."""

    model_config = ConfigDict(
        alias_generator=to_camel, extra="forbid", strict=True, frozen=True, defer_build=True
    )

    exactly_one_of: ClassVar[tuple[str, ...]] = ()
    """Fields of which one must be given, as the API names them."""

    only_one_of: ClassVar[tuple[str, ...]] = ()
    """Fields of which no two may be given, as the API names them."""

    cel: ClassVar[tuple[Cel, ...]] = ()
    """The mapping's other rules for the Kubernetes API; their twins are validators below them."""

    @model_validator(mode="after")
    def _given_once(self) -> Self:
        if self.exactly_one_of and len(self._given(self.exactly_one_of)) != 1:
            raise broken_rule(f"needs exactly one of {', '.join(self.exactly_one_of)}")
        if self.only_one_of and len(self._given(self.only_one_of)) > 1:
            raise broken_rule(f"needs only one of {', '.join(self.only_one_of)}")
        return self

    def _given(self, wire_names: tuple[str, ...]) -> list[str]:
        fields = type(self).model_fields.items()
        return [
            name
            for name, field in fields
            if field.alias in wire_names and getattr(self, name) is not None
        ]


class KeyRef(Wire):
    """One key of a Secret or ConfigMap in the agent's namespace."""

    name: ObjectName
    """Name of the Secret or ConfigMap."""
    key: Key
    """Which of its keys."""


class SecretSource(Wire):
    """The one way to give a key: by reference, never as a value."""

    secret_key_ref: KeyRef
    """A key of a Secret. In a cluster it is mounted as a file and taken up when it changes; on a
    laptop it is read from the environment (`MODELS_API_KEY` for models/api-key) or `--secrets`."""


class TextSource(Wire):
    """Where a text stands: exactly one of the two."""

    exactly_one_of = ("configMapKeyRef", "secretKeyRef")

    config_map_key_ref: KeyRef | None = None
    """A key of a ConfigMap."""
    secret_key_ref: KeyRef | None = None
    """A key of a Secret."""
