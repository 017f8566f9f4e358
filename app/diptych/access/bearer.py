"""Authenticates the bearer credential of a request (RFC 6750, section 2.1).

A verified token is remembered for a while, by its digest: a signature costs 50 µs and more. It is
verified anew as soon as its issuer, or the keys of that, have changed.
"""

import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from diptych.access.grants import Subject
from diptych.access.tokens import InvalidToken, Issuer, UnknownKey, claimed_issuer

MAX_CREDENTIAL = 16 * 1024  # characters
MAX_REMEMBERED = 4_096  # tokens
REMEMBERED_SECONDS = 300.0  # at most, and no longer than the issuer's keys stay as they were


@dataclass(slots=True)
class Unauthorized(Exception):
    """The caller is not authenticated. `error` is RFC 6750's code, None without a credential.

    `unknown_key_of` is the issuer whose keys lack the token's: they may have changed.
    """

    message: str
    error: str | None = None
    unknown_key_of: str | None = None


class Authenticator:
    """Finds the subject of a credential. `keys` are API keys by name, read at each use.

    `now` returns seconds since the epoch.
    """

    def __init__(
        self,
        issuers: Callable[[], Sequence[Issuer]],
        keys: Mapping[str, Callable[[], str | None]],
        now: Callable[[], float],
    ) -> None:
        self._issuers = issuers
        self._keys = keys
        self._now = now
        self._verified: dict[bytes, _Verified] = {}

    def subject(self, authorization: Sequence[str]) -> Subject:
        """Return the subject that the values of the `Authorization` header prove.

        Raises `Unauthorized`.
        """
        if not authorization:
            raise Unauthorized("this agent answers only to those who say who they are")
        credential = _credential(authorization)
        digest = hashlib.sha256(credential.encode()).digest()
        if remembered := self._verified.get(digest):
            if self._still_holds(remembered):
                return remembered.issuer.current(remembered.subject)
            del self._verified[digest]
        if subject_of_key := self._key_subject(credential):
            return subject_of_key
        return self._token_subject(credential, digest)

    def _still_holds(self, token: "_Verified") -> bool:
        """Whether a token has not expired, and its issuer still has the same keys."""
        if self._now() >= token.expires or token.issuer.keys() is not token.keys:
            return False
        return any(issuer is token.issuer for issuer in self._issuers())

    def _key_subject(self, credential: str) -> Subject | None:
        """Compare with every key in constant time."""
        found = None
        for name, read in self._keys.items():
            key = (read() or "").strip()
            if key and hmac.compare_digest(key.encode(), credential.encode()):
                found = Subject("key", name)
        return found

    def _token_subject(self, credential: str, digest: bytes) -> Subject:
        try:
            issuer = self._issuer_of(credential)
            keys = issuer.keys()
            subject, expires = issuer.verify(credential)
        except UnknownKey as error:
            raise Unauthorized(str(error), "invalid_token", error.issuer) from None
        except InvalidToken as error:
            raise Unauthorized(str(error), "invalid_token") from None
        expires = min(expires, self._now() + REMEMBERED_SECONDS)
        self._remember(digest, _Verified(issuer, keys, subject, expires))
        return subject

    def _issuer_of(self, credential: str) -> Issuer:
        """Find a token's issuer; the platform and the agent may both name one."""
        url, audiences = claimed_issuer(credential)
        found = [issuer for issuer in self._issuers() if issuer.url == url]
        if not found:
            raise InvalidToken("the token is of another issuer")
        return next((issuer for issuer in found if issuer.audience in audiences), found[0])

    def _remember(self, digest: bytes, token: "_Verified") -> None:
        while len(self._verified) >= MAX_REMEMBERED:
            del self._verified[next(iter(self._verified))]
        self._verified[digest] = token


class _Verified(NamedTuple):
    """A token verified with these keys of its issuer; `expires` is in seconds of the clock."""

    issuer: Issuer
    keys: Sequence[Mapping[str, Any]]
    subject: Subject
    expires: float


def _credential(authorization: Sequence[str]) -> str:
    if len(authorization) > 1:
        raise Unauthorized("send one Authorization header", "invalid_request")
    scheme, _, credential = authorization[0].partition(" ")
    credential = credential.strip()
    if scheme.lower() != "bearer" or not credential:
        raise Unauthorized("the Authorization header holds no Bearer token", "invalid_request")
    if len(credential) > MAX_CREDENTIAL:
        raise Unauthorized("the credential is too long", "invalid_request")
    return credential
