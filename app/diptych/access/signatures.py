"""Signatures of webhooks, over the raw body: Standard Webhooks (also made), GitHub's and GitLab's.

https://www.standardwebhooks.com, https://docs.github.com/webhooks. GitLab sends its secret itself.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from typing import Literal, TypeAlias

Scheme: TypeAlias = Literal["standard-webhooks", "github", "gitlab", "none"]
"""How a delivery is signed; with `none` its caller sends a token instead."""

TOLERANCE_SECONDS = 300  # that a delivery's timestamp may be off
DELIVERY_HEADERS: Mapping[Scheme, str] = {
    "standard-webhooks": "webhook-id",
    "github": "x-github-delivery",
    "gitlab": "x-gitlab-event-uuid",
}
"""The header with the delivery's id, which its retries repeat."""
SECRET_HEADERS = frozenset({"authorization", "cookie", "x-gitlab-token"})
_KEY_PREFIX = "whsec_"


class InvalidSignature(Exception):
    """A signature is missing, wrong or too old. The message contains no part of the secret."""


def signing_key(text: str) -> bytes:
    """Return the key that a secret stands for: base64 after `whsec_`, or any other text.

    Raises `ValueError`.
    """
    if not text.startswith(_KEY_PREFIX):
        return text.encode()
    try:
        return base64.b64decode(text.removeprefix(_KEY_PREFIX), validate=True)
    except binascii.Error:
        raise ValueError("not base64 after whsec_") from None


def standard_signature(key: bytes, message_id: str, timestamp: str, body: bytes) -> str:
    """Return the value of `webhook-signature`."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    return f"v1,{base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()}"


def verify(
    scheme: Scheme, secret: str, headers: Mapping[str, str], body: bytes, now: float
) -> None:
    """Check the signature of a delivery; `headers` have lower-case names, `now` is a Unix time.

    Raises `InvalidSignature`, and `ValueError` if the secret is no key.
    """
    match scheme:
        case "standard-webhooks":
            _verify_standard(signing_key(secret), headers, body, now)
        case "github":
            digest = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
            _compare(_header(headers, "x-hub-signature-256"), f"sha256={digest}")
        case "gitlab":
            _compare(_header(headers, "x-gitlab-token"), secret)
        case "none":
            raise InvalidSignature("deliveries to this trigger have no signature")


def _verify_standard(key: bytes, headers: Mapping[str, str], body: bytes, now: float) -> None:
    message_id, timestamp = _header(headers, "webhook-id"), _header(headers, "webhook-timestamp")
    signatures = _header(headers, "webhook-signature")
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 15):  # noqa: PLR2004
        raise InvalidSignature("webhook-timestamp is no Unix time in seconds")
    if abs(now - int(timestamp)) > TOLERANCE_SECONDS:
        raise InvalidSignature("webhook-timestamp is more than 5 minutes off")
    expected = standard_signature(key, message_id, timestamp, body).encode()
    # While a secret is replaced, a sender signs with both.
    if not any([hmac.compare_digest(expected, one.encode()) for one in signatures.split(" ")]):  # noqa: C419 - each is compared
        raise InvalidSignature("the signature is wrong")


def _compare(sent: str, expected: str) -> None:
    if not hmac.compare_digest(sent.encode(), expected.encode()):
        raise InvalidSignature("the signature is wrong")


def _header(headers: Mapping[str, str], name: str) -> str:
    value = headers.get(name)
    if not value:
        raise InvalidSignature(f"the header {name} is missing")
    return value
