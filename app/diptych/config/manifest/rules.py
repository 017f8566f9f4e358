"""How a rule of the manifest is stated once for two readers: the pod, and the Kubernetes API.

The pod reads it as a pydantic validator, the API as CEL in the generated CRD
(`crds/generate.py`). What the API lets pass, the pod must take.

Not here: the rules themselves (`fields` and the models).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

RULES = "x-kubernetes-validations"

JsonSchema: TypeAlias = dict[str, Any]
T = TypeVar("T")


def broken_rule(sentence: str) -> PydanticCustomError:
    """Make the error of a rule of ours; `configuration.problems` shows the sentence as it is."""
    return PydanticCustomError("rule", sentence)


@dataclass(frozen=True, slots=True)
class Cel:
    """A rule in the words of the Kubernetes API: the twin of a validator beside it."""

    rule: str
    message: str

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchema:
        found = handler(schema)
        return found | {
            RULES: [*found.get(RULES, ()), {"rule": self.rule, "message": self.message}]
        }


@dataclass(frozen=True, slots=True)
class Form:
    """A pattern for the whole of a string, as Python and RE2 both read it, and its sentence.

    `longest` is the number of characters that the sentence allows, too.
    """

    pattern: str
    sentence: str
    longest: int

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchema:
        rule = {"rule": matches(self.pattern), "message": self.sentence}
        return handler(schema) | {"maxLength": self.longest, RULES: [rule]}

    def _checked(self, text: str) -> str:
        if len(text) > self.longest or not re.fullmatch(self.pattern, text):
            raise broken_rule(self.sentence)
        return text


@dataclass(frozen=True, slots=True)
class NumberOr:
    """Marks what is a number that is not negative, or else a string of a form (IntOrString)."""

    pattern: str
    sentence: str
    longest: int

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._checked)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchema:
        rule = f"type(self) == int ? self >= 0 : {matches(self.pattern)}"
        return {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
            "maxLength": self.longest,
            RULES: [{"rule": rule, "message": self.sentence}],
        }

    def _checked(self, given: object) -> object:
        match given:
            case int() if not isinstance(given, bool) and given >= 0:
                return given
            case str() if len(given) <= self.longest and re.fullmatch(self.pattern, given):
                return given
            case _:
                raise broken_rule(self.sentence)


def matches(pattern: str) -> str:
    """Write in CEL that a string is of a form."""
    quote = '"' if "'" in pattern else "'"
    return f"self.matches(r{quote}^({pattern})${quote})"


@dataclass(frozen=True, slots=True)
class Unique:
    """Marks a list of which no two entries may be called the same; `what` says what they are.

    `key` is CEL for what an entry `x` is called, or the one field that holds it.
    """

    what: str
    called: Callable[[Any], str]
    key: str

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchema:
        if self.key.isidentifier():
            keys = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [self.key]}
            return handler(schema) | keys
        rule = f"self.all(y, self.exists_one(x, {self.key} == {self.key.replace('x.', 'y.')}))"
        message = f"{self.what} must differ; more than one is called the same"
        return Cel(rule, message).__get_pydantic_json_schema__(schema, handler)

    def _checked(self, entries: tuple[T, ...]) -> tuple[T, ...]:
        names = [self.called(entry) for entry in entries]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise broken_rule(
                f"{self.what} must differ; more than one is called {', '.join(twice)}"
            )
        return entries


@dataclass(frozen=True, slots=True)
class OnlyYet:
    """Marks a choice of which only these values are built; the others are refused by name."""

    supported: tuple[object, ...]

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchema:
        return handler(schema) | {"enum": list(self.supported)}

    def _checked(self, value: object) -> object:
        if value not in self.supported:
            raise PydanticCustomError("later_value", "later", {"supported": self._names()})
        return value

    def _names(self) -> str:
        return ", ".join(map(str, self.supported))
