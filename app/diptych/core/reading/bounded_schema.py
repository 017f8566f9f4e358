"""Checks JSON Schema in bounded time, as schemas come from strangers.

`jsonschema` has no bound: branching references take exponential time, `uniqueItems` quadratic time,
and patterns any time. Here every evaluated keyword and every error message counts as steps, and a
check with too many raises `TooCostly`.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import islice
from math import prod
from typing import Any, cast

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import extend, validator_for
from pydantic_core import SchemaError, SchemaValidator, core_schema
from referencing import Registry

from diptych.core.messages import JSON

MAX_STEPS = 20_000
"""Steps of one check; about 0.1 s."""

MAX_CONTAINERS = 1_000
"""Objects and lists in a schema. Validating a schema of that size takes at most about 0.2 s."""

CHARS_A_STEP = 1_000  # of an error message

MAX_PATTERN = 20_000
"""Bound on a pattern's characters times the product of its counted repetitions."""

MAX_WORK = 5_000_000
"""Bound on that product times the length of the text; at most 0.1 s."""

_REPEAT = re.compile(r"\{(\d+)(?:,(\d*))?\}")

_STANDARD = "json-schema.org"  # host of the schemas that come with jsonschema
_ADDRESSES = ("$id", "id", "$ref", "$dynamicRef", "$recursiveRef")

Keyword = Callable[[Any, Any, Any, Any], Iterator[ValidationError] | None]


class TooCostly(Exception):
    """A check takes too many steps."""


@dataclass(slots=True)
class _Steps:
    left: int

    def count(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise TooCostly("it is too large, or takes too long to check")


_STEPS: ContextVar[_Steps] = ContextVar("schema_steps")


def validator_of(schema: JSON) -> Validator:
    """Return a validator for a schema, of the draft that it names.

    Raises `SchemaError` if it is invalid, `TooCostly` if validating it takes too long.
    """
    own: Any = _without_dialects(schema, _Steps(MAX_CONTAINERS))
    kind: Any = validator_for(cast("Any", schema), default=Draft202012Validator)
    kind.check_schema(own)
    checker: Validator = _bounded(kind)(own, registry=Registry())  # empty: nothing is fetched
    return checker


def errors_of(
    validator: Validator,
    instance: Any,  # noqa: ANN401 - any JSON
    limit: int,
    is_wanted: Callable[[ValidationError], bool] = bool,
) -> list[ValidationError]:
    """Return up to `limit` validation errors that `is_wanted` accepts. Raises `TooCostly`."""
    token = _STEPS.set(_Steps(MAX_STEPS))
    try:
        errors = (error for error in validator.iter_errors(instance) if is_wanted(error))
        return list(islice(errors, limit))
    finally:
        _STEPS.reset(token)


def _without_dialects(value: JSON, containers: _Steps) -> JSON:
    """Copy a schema without `$schema`, where jsonschema would switch to its own keywords.

    Raises `TooCostly` if it is too large, or refers to a standard schema.
    """
    if isinstance(value, list):
        containers.count(1)
        return [_without_dialects(item, containers) for item in value]
    if not isinstance(value, Mapping):
        return value
    containers.count(1)
    if any(_STANDARD in v for k in _ADDRESSES if isinstance(v := value.get(k), str)):
        raise TooCostly(f"it refers to a schema of {_STANDARD}")
    return {
        name: _without_dialects(item, containers)
        for name, item in value.items()
        if name != "$schema" or not isinstance(item, str)
    }


@cache
def _bounded(kind: Any) -> Any:  # noqa: ANN401 - jsonschema makes its classes at run time
    """Make a validator class whose keywords count steps."""
    keywords: dict[str, Keyword] = {
        name: _OWN_KEYWORDS.get(name, keyword) for name, keyword in kind.VALIDATORS.items()
    }
    extended: Any = extend
    return extended(kind, {name: _counted(keyword) for name, keyword in keywords.items()})


def _counted(keyword: Keyword) -> Keyword:
    def counted(
        validator: object, value: object, instance: object, schema: object
    ) -> Iterator[ValidationError]:
        steps = _STEPS.get()
        steps.count(1)
        for error in keyword(validator, value, instance, schema) or ():
            steps.count(1 + len(error.message) // CHARS_A_STEP)
            yield error

    return counted


def _pattern(_: object, pattern: str, instance: object, __: object) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not _matches(pattern, instance, otherwise=True):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _matches(pattern: str, text: str, *, otherwise: bool) -> bool:
    """Search with Rust's regex engine, via pydantic; Python's may take exponential time.

    The time is bounded by the pattern, with its repetitions expanded, times the text. Returns
    `otherwise` if that is too much, or if Rust rejects the pattern (look-around).
    """
    counts = (int(most or least) for least, most in _REPEAT.findall(pattern))
    size = len(pattern) * prod(max(count, 1) for count in counts)
    if size > MAX_PATTERN or size * len(text) > MAX_WORK:
        return otherwise
    compiled = _compiled(pattern)
    return otherwise if compiled is None else compiled.isinstance_python(text)


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> SchemaValidator | None:
    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except SchemaError:
        return None


def _pattern_properties(
    validator: Any,  # noqa: ANN401 - see `_bounded`
    properties: Mapping[str, Any],
    instance: object,
    _: object,
) -> Iterator[ValidationError]:
    if not isinstance(instance, dict):
        return
    for pattern, subschema in properties.items():
        for name, value in instance.items():
            _STEPS.get().count(1)
            if _matches(pattern, name, otherwise=False):
                yield from validator.descend(value, subschema, path=name, schema_path=pattern)


def _additional_properties(
    validator: Any,  # noqa: ANN401 - see `_bounded`
    subschema: object,
    instance: object,
    schema: Mapping[str, Any],
) -> Iterator[ValidationError]:
    if not isinstance(instance, dict):
        return
    patterns = schema.get("patternProperties", {})
    _STEPS.get().count(len(instance) * (1 + len(patterns)))
    others = {
        name: value
        for name, value in instance.items()
        if not any(_matches(pattern, name, otherwise=True) for pattern in patterns)
    }
    # jsonschema would search by Python's regular expressions.
    plain = {name: value for name, value in schema.items() if name != "patternProperties"}
    keyword = Draft202012Validator.VALIDATORS["additionalProperties"]
    yield from keyword(validator, subschema, others, plain)


def _unique_items(
    _: object,
    is_wanted: bool,
    instance: object,
    __: object,
) -> Iterator[ValidationError]:
    if is_wanted and isinstance(instance, list):
        _STEPS.get().count(len(instance))
        if len({_comparable(item) for item in instance}) < len(instance):
            yield ValidationError(f"{instance!r} has non-unique elements")


def _comparable(value: object) -> object:
    """Return a hashable key, equal for values that JSON Schema treats as equal."""
    match value:
        case bool():
            return ("bool", value)
        case dict():
            return ("dict", frozenset((key, _comparable(item)) for key, item in value.items()))
        case list():
            return ("list", tuple(_comparable(item) for item in value))
        case _:
            return value


def _unchecked(*_: object) -> Iterator[ValidationError]:
    """Accept everything: jsonschema's implementation of this keyword has no bound."""
    return iter(())


_OWN_KEYWORDS: Mapping[str, Keyword] = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "uniqueItems": _unique_items,
    "unevaluatedItems": _unchecked,
    "unevaluatedProperties": _unchecked,
}
