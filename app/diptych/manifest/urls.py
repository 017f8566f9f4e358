"""URLs of the web: in the manifest, and wherever else the configuration has one."""

import re
from typing import Annotated, TypeAlias
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from diptych.manifest.rules import CelRule, cel_matches, rule_error

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
