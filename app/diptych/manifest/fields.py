"""Types of single fields: texts, names, lists, decimals, durations, URLs, headers, references."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, TypeAlias, TypeVar
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from diptych.core.output_schema import schema_problem
from diptych.manifest.rules import (
    CEL_RULES,
    CelRule,
    JsonSchema,
    Pattern,
    StrictModel,
    UniqueNames,
    cel_matches,
    rule_error,
)

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


_PATTERN = re.compile(r"(?:([0-9]{1,9})h)?(?:([0-9]{1,9})m)?(?:([0-9]{1,9})s)?(?:([0-9]{1,9})ms)?")
_UNIT_SECONDS = (3600.0, 60.0, 1.0, 0.001)
FORMAT_MESSAGE = 'must be a duration such as "30s", "1m30s" or "500ms"'


@dataclass(frozen=True, slots=True)
class DurationRange:
    """Marks a field that holds a duration, and gives its bounds, written as durations.

    Both bounds are allowed, except "0s", which never is.
    """

    least: str
    most: str

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._validate)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchema:
        is_duration = f"size(self) > 0 && {cel_matches(_PATTERN.pattern.replace('?:', ''))}"
        above = ">=" if _seconds(self.least) else ">"
        is_in_range = (
            "!self.matches('^([0-9]+(h|m|s|ms))+$')"
            f" || duration(self) {above} duration('{self.least}')"
            f" && duration(self) <= duration('{self.most}')"
        )
        rules = [
            {"rule": is_duration, "message": FORMAT_MESSAGE},
            {"rule": is_in_range, "message": self._range_message},
        ]
        return {"type": "string", "type_name": "duration", "maxLength": 32, CEL_RULES: rules}

    @property
    def _range_message(self) -> str:
        above = "at least" if _seconds(self.least) else "more than"
        return f'must be {above} "{self.least}" and at most "{self.most}"'

    def _validate(self, value: object) -> float:
        seconds = _seconds(value)
        if seconds is None:
            raise rule_error(FORMAT_MESSAGE)
        least, most = _seconds(self.least) or 0.0, _seconds(self.most) or 0.0
        if seconds == 0 or not least <= seconds <= most:
            raise rule_error(self._range_message)
        return seconds


def _seconds(text: object) -> float | None:
    """Read a duration; None if it is none."""
    match = _PATTERN.fullmatch(text) if isinstance(text, str) and text else None
    if match is None:
        return None
    return sum(int(n) * unit for n, unit in zip(match.groups("0"), _UNIT_SECONDS, strict=True))


Duration: TypeAlias = Annotated[float, DurationRange("0s", "24h")]
Retention: TypeAlias = Annotated[float, DurationRange("1m", "720h")]


_HOST_AND_PORT = r"(\[[0-9a-fA-F:.]+\]|[-._a-zA-Z0-9]+)(:[0-9]{1,5})?"
_URL = re.compile(rf"https?://{_HOST_AND_PORT}([/?][^#\x00-\x20\x7f-\x9f]*)?")
_HOST_MESSAGE = "must be a URL with a host, such as http://127.0.0.1:8000"


def web_url(text: str) -> str:
    """Check that a URL is one of the web, names a host, and carries no password."""
    if not text.startswith(("http://", "https://")):
        raise rule_error("must start with http:// or https://")
    try:
        parts = urlsplit(text)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port out of range, or a broken IPv6 address
        raise rule_error(_HOST_MESSAGE) from None
    if parts.username is not None or parts.password is not None:
        raise rule_error("must not hold a user or password; use a reference to a Secret for that")
    if parts.fragment:
        raise rule_error('must not have a part after "#"')
    if not has_host or not _URL.fullmatch(text):
        raise rule_error(_HOST_MESSAGE)
    return text


def url_problem(text: str) -> str | None:
    """Say what is wrong with a URL from outside a manifest; None if nothing is."""
    try:
        web_url(text)
    except PydanticCustomError as error:
        return error.message()
    return None


Url: TypeAlias = Annotated[
    str,
    Field(max_length=2048),
    AfterValidator(web_url),
    CelRule(
        f"{cel_matches(_URL.pattern)} && !self.matches('^[a-z]+://[^/?]*:(0+|[7-9][0-9]{{4}}"
        "|6[6-9][0-9]{3}|65[6-9][0-9]{2}|655[4-9][0-9]|6553[6-9])([/?]|$)')",
        "must be a URL with a host, such as http://127.0.0.1:8000, without a user, password or "
        'part after "#"',
    ),
]


class KeyRef(StrictModel):
    """One key of a Secret or ConfigMap in the agent's namespace."""

    name: ObjectName
    """The name of the Secret or ConfigMap."""
    key: ObjectKey
    """One of its keys."""


class SecretSource(StrictModel):
    """A secret, given by reference: a manifest never holds its value."""

    secret_key_ref: KeyRef
    """A key of a Secret. In a cluster it is a mounted file, read again when it changes. On a laptop
    it comes from the environment (`MODELS_API_KEY` for models/api-key) or from `--secrets`."""


class TextSource(StrictModel):
    """A text that another object holds: exactly one of the two."""

    exactly_one_of = ("configMapKeyRef", "secretKeyRef")

    config_map_key_ref: KeyRef | None = None
    """A key of a ConfigMap."""
    secret_key_ref: KeyRef | None = None
    """A key of a Secret."""


class Header(StrictModel):
    """An HTTP header that every request carries."""

    exactly_one_of = ("value", "valueFrom")

    name: HeaderName
    """The header's name, such as Authorization."""
    value: HeaderValue | None = None
    """The header's value, if everybody may read it."""
    value_from: SecretSource | None = None
    """The Secret that holds the header's value."""


Headers: TypeAlias = Annotated[
    ShortList[Header], UniqueNames("headers", lambda h: h.name.lower(), "x.name.lowerAscii()")
]
"""Headers with different names, in any case of letters."""
