"""Types of single fields: texts, names, lists, decimals."""

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Any, TypeAlias, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from diptych.core.output_schema import schema_problem
from diptych.manifest.rules import CEL_RULES, CelRule, Pattern, cel_matches, rule_error

DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

_DECIMAL = r"[0-9]{1,3}(\.[0-9]{1,6})?"
_MAX_TEMPERATURE = 2
_TEMPERATURE_MESSAGE = 'must be a decimal from 0 to 2 as a string, such as "0.2"'
_EMPTY_LIST_MESSAGE = "must not be an empty list; leave the field out instead"

T = TypeVar("T")


def _temperature(text: object) -> float:
    if (
        not isinstance(text, str)
        or not re.fullmatch(_DECIMAL, text)
        or float(text) > _MAX_TEMPERATURE
    ):
        raise rule_error(_TEMPERATURE_MESSAGE)
    return float(text)


def decimal_type(
    digits: int, message: str, *, is_positive: bool
) -> tuple[Callable[[object], Decimal], dict[str, Any]]:
    """Make the type of an amount that is written as a string, with at most 6 decimals.

    Gives what reads it, and its schema for the API. It has at most so many `digits` before the
    point.
    """
    pattern = rf"[0-9]{{1,{digits}}}(\.[0-9]{{1,6}})?"

    def read(text: object) -> Decimal:
        if not isinstance(text, str) or not re.fullmatch(pattern, text):
            raise rule_error(message)
        amount = Decimal(text)
        if is_positive and not amount:
            raise rule_error(message)
        return amount

    rule = cel_matches(pattern) + (" && double(self) > 0.0" if is_positive else "")
    rules = [{"rule": rule, "message": message}]
    schema = {"type": "string", "type_name": "decimal", "maxLength": 16, CEL_RULES: rules}
    return read, schema


def _non_empty(entries: tuple[T, ...]) -> tuple[T, ...]:
    if not entries:
        raise rule_error(_EMPTY_LIST_MESSAGE)
    return entries


def _output_schema(schema: dict[str, Any]) -> dict[str, Any]:
    if problem := schema_problem(schema):
        raise rule_error(problem.text)
    return schema


# Lists. YAML has no tuples, so `strict` would refuse its lists.
LongList: TypeAlias = Annotated[tuple[T, ...], Field(strict=False, max_length=64)]
ShortList: TypeAlias = Annotated[tuple[T, ...], Field(strict=False, max_length=16)]
NonEmptyList: TypeAlias = Annotated[
    LongList[T], AfterValidator(_non_empty), CelRule("size(self) > 0", _EMPTY_LIST_MESSAGE)
]

# Texts and numbers
Text: TypeAlias = Annotated[str, Field(max_length=4096)]
LongText: TypeAlias = Annotated[str, Field(max_length=128 * 1024)]
OneLine: TypeAlias = Annotated[
    str,
    Field(min_length=1, max_length=256),
    Pattern(
        r"[^\x00-\x20\x7f]([^\x00-\x1f\x7f]*[^\x00-\x20\x7f])?",
        "must be one line, without blanks at its ends",
        256,
    ),
]
Temperature: TypeAlias = Annotated[
    float,
    BeforeValidator(_temperature),
    WithJsonSchema(
        {
            "type": "string",
            "maxLength": 10,
            CEL_RULES: [
                {
                    "rule": f"{cel_matches(_DECIMAL)} && double(self) <= 2.0",
                    "message": _TEMPERATURE_MESSAGE,
                }
            ],
        }
    ),
]
OutputSchema: TypeAlias = Annotated[
    dict[str, Any],
    AfterValidator(_output_schema),
    WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
]
"""A JSON schema, checked as one; `{}` is any JSON object."""
Port: TypeAlias = Annotated[int, Field(ge=1, le=65535)]

# Names
DnsLabel: TypeAlias = Annotated[
    str,
    Pattern(
        DNS_LABEL.pattern,
        'must be lower-case letters, digits and "-", not "-" first or last, 63 characters at most',
        63,
    ),
]
SessionsKey: TypeAlias = Annotated[
    str,
    Pattern(
        rf"({DNS_LABEL.pattern}/)?{DNS_LABEL.pattern}",
        "must be the status.sessions of an Agent: KEY, or NAME/KEY of one of another name",
        127,
    ),
]
ObjectName: TypeAlias = Annotated[
    str,
    Pattern(
        r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*",
        'must be lower-case letters, digits, "-" and "."',
        253,
    ),
]
ObjectKey: TypeAlias = Annotated[
    str,
    Pattern(r"\.?[-_a-zA-Z0-9][-._a-zA-Z0-9]*", 'must be letters, digits, "-", "_" and "."', 253),
]
ToolName: TypeAlias = Annotated[
    str,
    Pattern(
        r"[A-Za-z0-9_.-]{1,64}",
        'must be the name of a tool: 1 to 64 of A-Z, a-z, 0-9, ".", "-" and "_"',
        64,
    ),
]
HeaderName: TypeAlias = Annotated[
    str,
    Pattern(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", "must be the name of an HTTP header", 128),
]
HeaderValue: TypeAlias = Annotated[
    str,
    Field(min_length=1, max_length=4096),
    Pattern(r"[\t\x20-\x7f]*", "must be one line of ASCII text", 4096),
]
VariableName: TypeAlias = Annotated[
    str,
    Pattern(r"[A-Za-z_][-._A-Za-z0-9]*", "must be the name of an environment variable", 253),
]
