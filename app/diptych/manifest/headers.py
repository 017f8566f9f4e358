"""HTTP headers that a manifest adds to requests."""

from typing import Annotated, TypeAlias

from diptych.manifest.fields import HeaderName, HeaderValue, ShortList
from diptych.manifest.key_refs import SecretSource
from diptych.manifest.rules import UniqueNames
from diptych.manifest.strict_model import StrictModel


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
