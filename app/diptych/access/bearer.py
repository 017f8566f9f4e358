"""Authenticates the bearer token or API key of a request (RFC 6750, section 2.1)."""

import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from diptych.access.grants import Subject
from diptych.access.tokens import InvalidToken, Issuer, UnknownKey, claimed_issuer

MAX_CREDENTIAL = 16 * 1024  # characters
AGENT_HEADER = "X-Diptych-Agent"
"""Names the calling Agent, `<namespace>/<name>`, where the token proves only its pool."""


@dataclass(slots=True)
class Unauthorized(Exception):
    """The caller is not authenticated. `error` is RFC 6750's code, None without a credential.

    `unknown_key_of` is the issuer whose known keys lack the token's; they may have changed.
    """

    message: str
    error: str | None = None
    unknown_key_of: str | None = None


class Authenticator:
    """Authenticates credentials. `keys` are API keys by name, read at each use."""

    def __init__(
        self,
        issuers: Callable[[], Sequence[Issuer]],
        keys: Mapping[str, Callable[[], str | None]],
    ) -> None:
        self._issuers = issuers
        self._keys = keys

    def subject(self, authorization: Sequence[str], agent: str = "") -> Subject:
        """Return the subject proven by the `Authorization` header's values.

        `agent` is the value of `AGENT_HEADER`. Raises `Unauthorized`.
        """
        if not authorization:
            raise Unauthorized("this agent requires authentication")
        credential = _credential(authorization)
        return self._key_subject(credential) or self._token_subject(credential, agent)

    def _key_subject(self, credential: str) -> Subject | None:
        """Compare the credential with every key, in constant time."""
        found = None
        for name, read in self._keys.items():
            key = (read() or "").strip()
            if key and hmac.compare_digest(key.encode(), credential.encode()):
                found = Subject("key", name)
        return found

    def _token_subject(self, credential: str, agent: str) -> Subject:
        try:
            return self._issuer_of(credential).verify(credential, agent)
        except UnknownKey as error:
            raise Unauthorized(str(error), "invalid_token", error.issuer) from None
        except InvalidToken as error:
            raise Unauthorized(str(error), "invalid_token") from None

    def _issuer_of(self, credential: str) -> Issuer:
        """Return the issuer of a token; platform and agent may both configure the same one."""
        url, audiences = claimed_issuer(credential)
        found = [issuer for issuer in self._issuers() if issuer.url == url]
        if not found:
            raise InvalidToken("the token is from an unknown issuer")
        meant = [issuer for issuer in found if issuer.audience in audiences]
        if not meant and None not in audiences:  # a door asks many agents: check no signature
            raise InvalidToken("the token is for another audience")
        return (meant or found)[0]


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
