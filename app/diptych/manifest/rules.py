"""Rules of the manifest, each stated once for two readers: the pod and the Kubernetes API.

The pod checks a rule in Python, the API by CEL in the generated CRD (`crds/generate.py`). What the
API accepts, the pod must accept too.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self, TypeAlias, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

CEL_RULES = "x-kubernetes-validations"

JsonSchema: TypeAlias = dict[str, Any]
T = TypeVar("T")


def rule_error(message: str) -> PydanticCustomError:
    """Make the error of a broken rule; `config.validation` shows its message unchanged."""
    return PydanticCustomError("rule", message)


def cel_matches(pattern: str) -> str:
    """Write in CEL that the whole of a string matches a pattern."""
    quote = '"' if "'" in pattern else "'"
    return f"self.matches(r{quote}^({pattern})${quote})"


def _with_rule(schema: JsonSchema, rule: str, message: str) -> JsonSchema:
    rules = [*schema.get(CEL_RULES, ()), {"rule": rule, "message": message}]
    return schema | {CEL_RULES: rules}


@dataclass(frozen=True, slots=True)
class CelRule:
    """A rule in CEL. A validator beside it checks the same in the pod."""

    rule: str
    message: str

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchema:
        return _with_rule(handler(schema), self.rule, self.message)


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern for the whole of a string, valid in Python and RE2, and its error message.

    `max_length` is in characters; the message holds for it too.
    """

    pattern: str
    message: str
    max_length: int

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._validate, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchema:
        inner = handler(schema) | {"maxLength": self.max_length}
        return _with_rule(inner, cel_matches(self.pattern), self.message)

    def _validate(self, text: str) -> str:
        if len(text) > self.max_length or not re.fullmatch(self.pattern, text):
            raise rule_error(self.message)
        return text


@dataclass(frozen=True, slots=True)
class IntOrPattern:
    """Marks a field that holds an integer >= 0 or a matching string (Kubernetes' IntOrString)."""

    pattern: str
    message: str
    max_length: int

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._validate)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchema:
        rule = f"type(self) == int ? self >= 0 : {cel_matches(self.pattern)}"
        return {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
            "maxLength": self.max_length,
            CEL_RULES: [{"rule": rule, "message": self.message}],
        }

    def _validate(self, value: object) -> object:
        match value:
            case int() if not isinstance(value, bool) and value >= 0:
                return value
            case str() if len(value) <= self.max_length and re.fullmatch(self.pattern, value):
                return value
            case _:
                raise rule_error(self.message)


@dataclass(frozen=True, slots=True)
class UniqueNames:
    """Marks a list whose entries must all have different names; `what` says what they are.

    `name_of` gives an entry's name in the pod. `cel_name` gives it in the API: the one field that
    holds it, or CEL over an entry `x`.
    """

    what: str
    name_of: Callable[[Any], str]
    cel_name: str

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._validate, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchema:
        if self.cel_name.isidentifier():
            keys = {
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": [self.cel_name],
            }
            return handler(schema) | keys
        other = self.cel_name.replace("x.", "y.")
        rule = f"self.all(y, self.exists_one(x, {self.cel_name} == {other}))"
        message = f"{self.what} must differ; more than one is called the same"
        return CelRule(rule, message).__get_pydantic_json_schema__(schema, handler)

    def _validate(self, entries: tuple[T, ...]) -> tuple[T, ...]:
        names = [self.name_of(entry) for entry in entries]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise rule_error(
                f"{self.what} must differ; more than one is called {', '.join(repeated)}"
            )
        return entries


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
