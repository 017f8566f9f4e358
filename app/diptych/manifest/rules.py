"""Rules of the manifest, each stated once for two readers: the pod and the Kubernetes API.

The pod checks a rule in Python, the API by CEL in the generated CRD (`crds/generate.py`). What the
API accepts, the pod must accept too.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, TypeAlias, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

CEL_RULES = "x-kubernetes-validations"

JsonSchema: TypeAlias = dict[str, Any]
M = TypeVar("M", bound="StrictModel")


def rule_error(message: str) -> PydanticCustomError:
    """Make the error of a broken rule; `validation` shows its message unchanged."""
    return PydanticCustomError("rule", message)


def cel_matches(pattern: str) -> str:
    """Write in CEL that the whole of a string matches a pattern."""
    quote = '"' if "'" in pattern else "'"
    return f"self.matches(r{quote}^({pattern})${quote})"


def one_of(names: Sequence[str]) -> str:
    """Write a choice: `a, b or c`."""
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """A rule of a field (as an annotation of its type) or of a mapping (in `StrictModel.rules`).

    `cel` says it to the API, `holds` to the pod; without `holds`, a validator beside it checks the
    same. `schema` is added to the field's JSON schema.
    """

    cel: str
    message: str
    holds: Callable[[Any], object] | None = None
    schema: JsonSchema = field(default_factory=dict)

    def check(self, value: Any) -> Any:  # noqa: ANN401 - of any field
        if self.holds and not self.holds(value):
            raise rule_error(self.message)
        return value

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchema:
        inner = handler(schema) | self.schema
        rules = [*inner.get(CEL_RULES, ()), {"rule": self.cel, "message": self.message}]
        return inner | {CEL_RULES: rules}


def pattern(regex: str, message: str, max_length: int) -> Rule:
    """Make the rule that the whole of a string matches a regex, valid in Python and RE2.

    The message holds for the maximal length in characters, too.
    """
    return Rule(
        cel_matches(regex),
        message,
        lambda text: len(text) <= max_length and re.fullmatch(regex, text),
        {"maxLength": max_length},
    )


@dataclass(frozen=True, slots=True, eq=False)
class Parsed:
    """Marks a field whose value `parse` makes of the text; `schema` is what the API checks."""

    parse: Callable[[object], object]
    schema: JsonSchema

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.parse)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchema:
        return dict(self.schema)


def int_or_pattern(regex: str, message: str, max_length: int) -> Parsed:
    """Mark a field that holds an integer >= 0 or a matching string (Kubernetes' IntOrString)."""

    def parse(value: object) -> object:
        match value:
            case int() if not isinstance(value, bool) and value >= 0:
                return value
            case str() if len(value) <= max_length and re.fullmatch(regex, value):
                return value
            case _:
                raise rule_error(message)

    rule = f"type(self) == int ? self >= 0 : {cel_matches(regex)}"
    schema = {
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "x-kubernetes-int-or-string": True,
        "maxLength": max_length,
        CEL_RULES: [{"rule": rule, "message": message}],
    }
    return Parsed(parse, schema)


@dataclass(frozen=True, slots=True, eq=False)
class UniqueNames:
    """Marks a list whose entries must have different names; `what` is the plural of an entry.

    `name_of` returns an entry's name. `cel_name` is the field that holds it, or CEL over an entry
    `x`.
    """

    what: str
    name_of: Callable[[Any], str]
    cel_name: str = "name"

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchema:
        if self.cel_name.isidentifier():
            keys = [self.cel_name]
            map_of = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys}
            return handler(schema) | map_of
        other = self.cel_name.replace("x.", "y.")
        rule = f"self.all(y, self.exists_one(x, {self.cel_name} == {other}))"
        return Rule(rule, self._message("the same")).__get_pydantic_json_schema__(schema, handler)

    def _check(self, entries: tuple[Any, ...]) -> tuple[Any, ...]:
        names = [self.name_of(entry) for entry in entries]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise rule_error(self._message(", ".join(repeated)))
        return entries

    def _message(self, names: str) -> str:
        return f"{self.what} must differ; more than one is called {names}"


class StrictModel(BaseModel):
    """A mapping of the manifest: camelCase outside, snake_case inside, no unknown fields."""

    model_config = ConfigDict(
        alias_generator=to_camel, extra="forbid", strict=True, frozen=True, defer_build=True
    )

    exactly_one_of: ClassVar[tuple[str, ...]] = ()
    """Fields of which exactly one must be given, as the API names them."""

    at_most_one_of: ClassVar[tuple[str, ...]] = ()
    """Fields of which at most one may be given, as the API names them."""

    at_least_one_of: ClassVar[tuple[str, ...]] = ()
    """Fields of which at least one must be given, as the API names them."""

    usual: ClassVar[tuple[str, ...]] = ()
    """Fields that a correction of a mistake shows though they may be left out."""

    rules: ClassVar[tuple[Rule, ...]] = ()
    """The mapping's other rules."""

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        if self.exactly_one_of and self._count(self.exactly_one_of) != 1:
            raise rule_error(f"needs exactly one of {', '.join(self.exactly_one_of)}")
        if self.at_most_one_of and self._count(self.at_most_one_of) > 1:
            raise rule_error(f"needs only one of {', '.join(self.at_most_one_of)}")
        if self.at_least_one_of and not self._count(self.at_least_one_of):
            raise rule_error(f"needs {one_of(self.at_least_one_of)}")
        for rule in self.rules:
            rule.check(self)
        return self

    def _count(self, wire_names: tuple[str, ...]) -> int:
        fields = type(self).model_fields.items()
        return sum(f.alias in wire_names and getattr(self, name) is not None for name, f in fields)


def fields_of(spec: StrictModel, *, but: str = "") -> dict[str, Any]:
    """Return the values of a part of the manifest, for a class with fields of the same names.

    The class refuses a name that it does not have: a field of the manifest is never dropped.
    """
    return {name: getattr(spec, name) for name in type(spec).model_fields if name != but}


def overlaid(below: M, above: M) -> M:
    """Return a mapping with the fields that `above` gives, and otherwise those of `below`."""
    given = {name: getattr(above, name) for name in above.model_fields_set}
    return below.model_copy(update=given)
