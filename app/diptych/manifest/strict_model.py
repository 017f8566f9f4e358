"""The model class of all mappings of a manifest."""

from typing import Annotated, ClassVar, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from diptych.manifest.rules import CelRule, rule_error

StringMap: TypeAlias = Annotated[
    dict[
        Annotated[str, Field(max_length=317)], Annotated[str, Field(strict=False, max_length=1024)]
    ],
    Field(max_length=64),
]
"""Labels or annotations."""


class StrictModel(BaseModel):
    """A mapping of the manifest: camelCase outside, snake_case inside, no unknown fields."""

    model_config = ConfigDict(
        alias_generator=to_camel, extra="forbid", strict=True, frozen=True, defer_build=True
    )

    exactly_one_of: ClassVar[tuple[str, ...]] = ()
    """Fields of which exactly one must be given, as the API names them."""

    at_most_one_of: ClassVar[tuple[str, ...]] = ()
    """Fields of which at most one may be given, as the API names them."""

    cel_rules: ClassVar[tuple[CelRule, ...]] = ()
    """The mapping's other rules for the Kubernetes API; validators below them check the same."""

    @model_validator(mode="after")
    def _check_alternatives(self) -> Self:
        if self.exactly_one_of and len(self._given(self.exactly_one_of)) != 1:
            raise rule_error(f"needs exactly one of {', '.join(self.exactly_one_of)}")
        if self.at_most_one_of and len(self._given(self.at_most_one_of)) > 1:
            raise rule_error(f"needs only one of {', '.join(self.at_most_one_of)}")
        return self

    def _given(self, wire_names: tuple[str, ...]) -> list[str]:
        fields = type(self).model_fields.items()
        return [
            name
            for name, field in fields
            if field.alias in wire_names and getattr(self, name) is not None
        ]
