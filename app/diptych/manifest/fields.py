"""Types of single fields: texts, names, lists, decimals, durations, URLs, headers, references."""

import re
from decimal import Decimal
from typing import Annotated, Any, TypeAlias, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from diptych.core.output_schema import schema_problem
from diptych.manifest.rules import (
    CEL_RULES,
    Parsed,
    Rule,
    StrictModel,
    UniqueNames,
    cel_matches,
    pattern,
    rule_error,
)

T = TypeVar("T")

# Lists. YAML has no tuples, so `strict` would refuse its lists.
LongList: TypeAlias = Annotated[tuple[T, ...], Field(strict=False, max_length=64)]
ShortList: TypeAlias = Annotated[tuple[T, ...], Field(strict=False, max_length=16)]
NonEmptyList: TypeAlias = Annotated[
    LongList[T],
    Rule("size(self) > 0", "must not be an empty list; leave the field out instead", bool),
]

# Texts and mappings
Text: TypeAlias = Annotated[str, Field(max_length=4096)]
LongText: TypeAlias = Annotated[str, Field(max_length=128 * 1024)]
OneLine: TypeAlias = Annotated[
    str,
    Field(min_length=1, max_length=256),
    pattern(
        r"[^\x00-\x20\x7f]([^\x00-\x1f\x7f]*[^\x00-\x20\x7f])?",
        "must be one line, without blanks at its ends",
        256,
    ),
]
StringMap: TypeAlias = Annotated[
    dict[
        Annotated[str, Field(max_length=317)], Annotated[str, Field(strict=False, max_length=1024)]
    ],
    Field(max_length=64),
]
"""Labels or annotations."""
FreeForm: TypeAlias = Annotated[
    dict[str, Any],
    WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
]
"""A mapping of another API's form."""


def _output_schema(schema: dict[str, Any]) -> dict[str, Any]:
    if problem := schema_problem(schema):
        raise rule_error(problem.text)
    return schema


OutputSchema: TypeAlias = Annotated[FreeForm, AfterValidator(_output_schema)]
"""A JSON schema, checked as one; `{}` is any JSON object."""

# Names
DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
DnsLabel: TypeAlias = Annotated[
    str,
    pattern(
        DNS_LABEL.pattern,
        'must be lower-case letters, digits and "-", not "-" first or last, 63 characters at most',
        63,
    ),
]
ObjectName: TypeAlias = Annotated[
    str,
    pattern(
        r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*",
        'must be lower-case letters, digits, "-" and "."',
        253,
    ),
]
ObjectKey: TypeAlias = Annotated[
    str,
    pattern(r"\.?[-_a-zA-Z0-9][-._a-zA-Z0-9]*", 'must be letters, digits, "-", "_" and "."', 253),
]
VariableName: TypeAlias = Annotated[
    str,
    pattern(r"[A-Za-z_][-._A-Za-z0-9]*", "must be the name of an environment variable", 253),
]

# Numbers
Port: TypeAlias = Annotated[int, Field(ge=1, le=65535)]


def decimal(
    digits: int,
    message: str,
    *,
    above: int | None = None,
    most: int | None = None,
    max_length: int = 16,
) -> Parsed:
    """Mark a decimal that is written as a string (the Kubernetes API has no fractions).

    It has at most so many `digits` before the point, and 6 after it.
    """
    regex = rf"[0-9]{{1,{digits}}}(\.[0-9]{{1,6}})?"

    def parse(text: object) -> Decimal:
        amount = Decimal(text) if isinstance(text, str) and re.fullmatch(regex, text) else None
        is_in_range = (
            amount is not None
            and (above is None or amount > above)
            and (most is None or amount <= most)
        )
        if amount is None or not is_in_range:
            raise rule_error(message)
        return amount

    cel = cel_matches(regex)
    cel += "" if above is None else f" && double(self) > {above:.1f}"
    cel += "" if most is None else f" && double(self) <= {most:.1f}"
    schema = {"type": "string", "type_name": "decimal", "maxLength": max_length}
    return Parsed(parse, schema | {CEL_RULES: [{"rule": cel, "message": message}]})


# Durations, such as `5s`, `1m30s` or `500ms`: strings in the manifest, seconds here
FORMAT_MESSAGE = 'must be a duration such as "30s", "1m30s" or "500ms"'
_DURATION = re.compile(r"(?:([0-9]{1,9})h)?(?:([0-9]{1,9})m)?(?:([0-9]{1,9})s)?(?:([0-9]{1,9})ms)?")
_UNIT_SECONDS = (3600.0, 60.0, 1.0, 0.001)


def duration(least: str, most: str) -> Parsed:
    """Mark a duration within bounds that are written as durations; 0 never is."""
    above = ">=" if _seconds(least) else ">"
    at_least = "at least" if _seconds(least) else "more than"
    range_message = f'must be {at_least} "{least}" and at most "{most}"'

    def parse(text: object) -> float:
        seconds = _seconds(text)
        if seconds is None:
            raise rule_error(FORMAT_MESSAGE)
        if seconds == 0 or not (_seconds(least) or 0) <= seconds <= (_seconds(most) or 0):
            raise rule_error(range_message)
        return seconds

    is_duration = f"size(self) > 0 && {cel_matches(_DURATION.pattern.replace('?:', ''))}"
    is_in_range = (
        "!self.matches('^([0-9]+(h|m|s|ms))+$')"
        f" || duration(self) {above} duration('{least}') && duration(self) <= duration('{most}')"
    )
    rules = [
        {"rule": is_duration, "message": FORMAT_MESSAGE},
        {"rule": is_in_range, "message": range_message},
    ]
    schema = {"type": "string", "type_name": "duration", "maxLength": 32, CEL_RULES: rules}
    return Parsed(parse, schema)


def _seconds(text: object) -> float | None:
    """Read a duration; None if it is none."""
    match = _DURATION.fullmatch(text) if isinstance(text, str) and text else None
    if match is None:
        return None
    return sum(int(n) * unit for n, unit in zip(match.groups("0"), _UNIT_SECONDS, strict=True))


Duration: TypeAlias = Annotated[float, duration("0s", "24h")]

# URLs
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
    """Return the problem of a URL from outside a manifest, if it has one."""
    try:
        web_url(text)
    except PydanticCustomError as error:
        return error.message()
    return None


Url: TypeAlias = Annotated[
    str,
    Field(max_length=2048),
    AfterValidator(web_url),
    Rule(
        f"{cel_matches(_URL.pattern)} && !self.matches('^[a-z]+://[^/?]*:(0+|[7-9][0-9]{{4}}"
        "|6[6-9][0-9]{3}|65[6-9][0-9]{2}|655[4-9][0-9]|6553[6-9])([/?]|$)')",
        "must be a URL with a host, such as http://127.0.0.1:8000, without a user, password or "
        'part after "#"',
    ),
]


# References to keys of Secrets and ConfigMaps
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

    name: Annotated[
        str, pattern(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", "must be the name of an HTTP header", 128)
    ]
    """The header's name, such as Authorization."""
    value: (
        Annotated[
            str,
            Field(min_length=1, max_length=4096),
            pattern(r"[\t\x20-\x7f]*", "must be one line of ASCII text", 4096),
        ]
        | None
    ) = None
    """The header's value, if everybody may read it."""
    value_from: SecretSource | None = None
    """The Secret that holds the header's value."""


Headers: TypeAlias = Annotated[
    ShortList[Header], UniqueNames("headers", lambda h: h.name.lower(), "x.name.lowerAscii()")
]
"""Headers with different names, in any case of letters."""
