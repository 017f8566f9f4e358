"""What single fields of a manifest may hold: names, URLs, durations, what is not built yet.

Not here: which fields there are (the package itself), how a mistake is told to a person
(`configuration.problems`).
"""

import re
from dataclasses import dataclass
from typing import Annotated, Any, NoReturn, TypeAlias, TypeVar
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainValidator,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from diptych.config.manifest.rules import (
    RULES,
    Cel,
    Form,
    JsonSchema,
    OnlyYet,
    broken_rule,
    matches,
)

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

_SERVER_METADATA = {
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generation",
    "managedFields",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
}
_DURATION = re.compile(r"(?:([0-9]{1,9})h)?(?:([0-9]{1,9})m)?(?:([0-9]{1,9})s)?(?:([0-9]{1,9})ms)?")
_HOST_AND_PORT = r"(\[[0-9a-fA-F:.]+\]|[-._a-zA-Z0-9]+)(:[0-9]{1,5})?"
_URL = re.compile(rf"https?://{_HOST_AND_PORT}([/?][^#\x00-\x20\x7f-\x9f]*)?")
_UNIT_SECONDS = (3600.0, 60.0, 1.0, 0.001)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Between:
    """Marks a duration such as `5s`, `1m30s` or `500ms`, read as seconds, and its bounds.

    The bounds are written as durations; both are allowed, but nothing at all ("0s") never is.
    """

    least: str
    most: str

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._checked)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchema:
        form = f"size(self) > 0 && {matches(_DURATION.pattern.replace('?:', ''))}"
        above = ">=" if _seconds(self.least) else ">"
        bounds = (
            "!self.matches('^([0-9]+(h|m|s|ms))+$')"
            f" || duration(self) {above} duration('{self.least}')"
            f" && duration(self) <= duration('{self.most}')"
        )
        rules = [
            {"rule": form, "message": _NO_DURATION},
            {"rule": bounds, "message": self._sentence},
        ]
        return {"type": "string", "maxLength": 32, RULES: rules}

    @property
    def _sentence(self) -> str:
        above = "at least" if _seconds(self.least) else "more than"
        return f'must be {above} "{self.least}" and at most "{self.most}"'

    def _checked(self, given: object) -> float:
        amount = _seconds(given)
        if amount is None:
            raise broken_rule(_NO_DURATION)
        least, most = _seconds(self.least) or 0.0, _seconds(self.most) or 0.0
        if amount == 0 or not least <= amount <= most:
            raise broken_rule(self._sentence)
        return amount


def web_url(text: str) -> str:
    """Check that a URL is one of the web, names a host, and carries no password."""
    if not text.startswith(("http://", "https://")):
        raise broken_rule("must start with http:// or https://")
    try:
        parts = urlsplit(text)
        named = bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port out of range, or a broken IPv6 address
        raise broken_rule(_NO_HOST) from None
    if parts.username is not None or parts.password is not None:
        raise broken_rule("must not hold a user or password; use a reference to a Secret for that")
    if parts.fragment:
        raise broken_rule('must not have a part after "#"')
    if not named or not _URL.fullmatch(text):
        raise broken_rule(_NO_HOST)
    return text


def url_problem(text: str) -> str | None:
    """Say what is wrong with a URL that stands in no manifest, in words for its reader."""
    try:
        web_url(text)
    except PydanticCustomError as error:
        return error.message()
    return None


def _temperature(text: object) -> float:
    if (
        not isinstance(text, str) or not re.fullmatch(_DECIMAL, text) or float(text) > 2  # noqa: PLR2004
    ):
        raise broken_rule(_NO_TEMPERATURE)
    return float(text)


def without_server_metadata(given: object) -> object:
    """Leave out what a Kubernetes API server adds to an object's metadata."""
    if not isinstance(given, dict):
        return given
    return {name: value for name, value in given.items() if name not in _SERVER_METADATA}


def _refuse(_: object) -> NoReturn:
    raise PydanticCustomError("later", "later")


def only_yet(*supported: object) -> OnlyYet:
    """Mark a choice of which only these values are built; the others are refused by name."""
    return OnlyYet(supported)


def _seconds(text: object) -> float | None:
    """Read a duration; None if it is none."""
    found = _DURATION.fullmatch(text) if isinstance(text, str) and text else None
    if found is None:
        return None
    return sum(int(n) * unit for n, unit in zip(found.groups("0"), _UNIT_SECONDS, strict=True))


def _some(entries: tuple[T, ...]) -> tuple[T, ...]:
    if not entries:
        raise broken_rule("must not be an empty list; leave the field out instead")
    return entries


_DECIMAL = r"[0-9]{1,3}(\.[0-9]{1,6})?"
_NO_DURATION = 'must be a duration such as "30s", "1m30s" or "500ms"'
_NO_HOST = "must be a URL with a host, such as http://127.0.0.1:8000"
_NO_TEMPERATURE = 'must be a decimal from 0 to 2 as a string, such as "0.2"'

# YAML has no tuples: strictness would refuse its lists.
Many: TypeAlias = Annotated[tuple[T, ...], Field(strict=False, max_length=64)]
Few: TypeAlias = Annotated[tuple[T, ...], Field(strict=False, max_length=16)]
Some: TypeAlias = Annotated[
    Many[T],
    AfterValidator(_some),
    Cel("size(self) > 0", "must not be an empty list; leave the field out instead"),
]
Later: TypeAlias = Annotated[Any, PlainValidator(_refuse), WithJsonSchema({"later": True})]
"""The type of a field whose capability is not built yet: whatever it holds, it is refused."""

Text: TypeAlias = Annotated[str, Field(max_length=4096)]
LongText: TypeAlias = Annotated[str, Field(max_length=128 * 1024)]
Word: TypeAlias = Annotated[
    str,
    Field(min_length=1, max_length=256),
    Form(
        r"[^\x00-\x20\x7f]([^\x00-\x1f\x7f]*[^\x00-\x20\x7f])?",
        "must be one line, without blanks at its ends",
        256,
    ),
]
Duration: TypeAlias = Annotated[float, Between("0s", "24h")]
Retention: TypeAlias = Annotated[float, Between("1m", "720h")]
Temperature: TypeAlias = Annotated[
    float,
    BeforeValidator(_temperature),
    WithJsonSchema(
        {
            "type": "string",
            "maxLength": 10,
            RULES: [
                {"rule": f"{matches(_DECIMAL)} && double(self) <= 2.0", "message": _NO_TEMPERATURE}
            ],
        }
    ),
]
Url: TypeAlias = Annotated[
    str,
    Field(max_length=2048),
    AfterValidator(web_url),
    Cel(
        f"{matches(_URL.pattern)} && !self.matches('^[a-z]+://[^/?]*:(0+|[7-9][0-9]{{4}}|6[6-9]"
        "[0-9]{3}|65[6-9][0-9]{2}|655[4-9][0-9]|6553[6-9])([/?]|$)')",
        "must be a URL with a host, such as http://127.0.0.1:8000, without a user, password or "
        'part after "#"',
    ),
]
Label: TypeAlias = Annotated[
    str,
    Form(
        LABEL.pattern,
        'must be lower-case letters, digits and "-", not "-" first or last, 63 characters at most',
        63,
    ),
]
ObjectName: TypeAlias = Annotated[
    str,
    Form(
        r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*",
        'must be lower-case letters, digits, "-" and "."',
        253,
    ),
]
Key: TypeAlias = Annotated[
    str,
    Form(r"\.?[-_a-zA-Z0-9][-._a-zA-Z0-9]*", 'must be letters, digits, "-", "_" and "."', 253),
]
HeaderName: TypeAlias = Annotated[
    str,
    Form(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", "must be the name of an HTTP header", 128),
]
HeaderValue: TypeAlias = Annotated[
    str,
    Field(min_length=1, max_length=4096),
    Form(r"[\t\x20-\x7f]*", "must be one line of ASCII text", 4096),
]
VariableName: TypeAlias = Annotated[
    str,
    Form(r"[A-Za-z_][-._A-Za-z0-9]*", "must be the name of an environment variable", 253),
]
