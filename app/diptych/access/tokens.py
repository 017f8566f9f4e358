"""Verifies the JSON Web Tokens (RFC 7519) of an issuer.

PyJWT checks signature, issuer, audience and times. The allowed algorithms are fixed here, never
taken from the token.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

import jwt

from diptych.access.grants import Subject

ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
LEEWAY_SECONDS = 60
SERVICE_ACCOUNT_PREFIX = "system:serviceaccount:"  # of `sub` (Kubernetes "Authenticating")
_EMAIL = "email"
"""Some issuers let users set this claim freely; `email_verified` says whether it is proven."""
MAX_NAME = 256  # characters of a user's or group's name
MAX_GROUPS = 1_000
MAX_VERIFIED = 1_024  # tokens that are remembered, as callers send one for many requests

Claims: TypeAlias = Mapping[str, Any]
KeySet: TypeAlias = Callable[[], Sequence[Mapping[str, Any]]]
"""Returns the issuer's current keys, each a JSON Web Key (RFC 7517)."""


class InvalidToken(Exception):
    """An invalid token. The message says why, and contains no part of the token."""


class UnknownKey(InvalidToken):
    """The issuer's known keys lack the one that signed the token."""

    def __init__(self, issuer: str) -> None:
        super().__init__("the token was signed with a key that is not among its issuer's keys")
        self.issuer = issuer


@dataclass(frozen=True, slots=True)
class Issuer:
    """A trusted issuer of tokens, and the claims that name the subject.

    With `is_cluster` the tokens belong to ServiceAccounts; `agents` are those of Agents, and
    `pooled` the Agents whose calls come from a pool, each with the pool's ServiceAccount.
    """

    url: str
    audience: str
    keys: KeySet
    user_claim: str = "sub"
    groups_claim: str = "groups"
    is_cluster: bool = False
    agents: frozenset[str] = frozenset()
    pooled: frozenset[tuple[str, str]] = frozenset()
    verified: dict[str, tuple[Sequence[Mapping[str, Any]], Claims]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """Claims by token, with the keys that they were verified by."""

    def verify(self, token: str, agent: str = "") -> Subject:
        """Return the subject of a token. Raises `InvalidToken`.

        `agent` is the Agent that the caller says it is; only its own pool is believed.
        """
        claims = self._claims(token)
        if self.is_cluster:
            return self._service_account(claims, agent)
        return self._user(claims)

    def _claims(self, token: str) -> Claims:
        """Return verified claims; a token is verified again when the issuer's keys have changed."""
        keys, claims = self.verified.get(token, (None, {}))
        if keys is not None and keys is self.keys():
            if int(claims["exp"]) > time.time() - LEEWAY_SECONDS:
                return claims
            raise InvalidToken("the token has expired")
        claims = self._decoded(token)
        if len(self.verified) >= MAX_VERIFIED:
            self.verified.clear()
        self.verified[token] = self.keys(), claims
        return claims

    def _decoded(self, token: str) -> Claims:
        try:
            header = jwt.get_unverified_header(token)
            key = self._key(header)
            return jwt.decode(
                token,
                key,
                algorithms=list(ALGORITHMS),
                audience=self.audience,
                issuer=self.url,
                leeway=LEEWAY_SECONDS,
                options={"require": ["exp", "iss", "aud"]},
            )
        except jwt.PyJWTError as error:
            raise InvalidToken(_reason(error)) from None
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            raise InvalidToken("the token is malformed") from None

    def _key(self, header: Mapping[str, Any]) -> Any:  # noqa: ANN401 - a key of any algorithm
        if header.get("alg") not in ALGORITHMS:
            raise InvalidToken("the token's algorithm is not accepted")
        kid = header.get("kid")
        found = [k for k in self.keys() if kid is None or k.get("kid") == kid]
        if len(found) != 1:
            raise UnknownKey(self.url)
        return jwt.PyJWK(dict(found[0])).key

    def _user(self, claims: Claims) -> Subject:
        if self.user_claim == _EMAIL and claims.get(f"{_EMAIL}_verified", True) is not True:
            raise InvalidToken("the token's e-mail address is not verified")
        name = claims.get(self.user_claim)
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not name.isprintable():
            raise InvalidToken(f"the token has no usable claim {self.user_claim!r}")
        groups = claims.get(self.groups_claim, [])
        if not isinstance(groups, list):
            groups = [groups]
        names = [g for g in groups[:MAX_GROUPS] if isinstance(g, str) and len(g) <= MAX_NAME]
        return Subject("user", name, frozenset(names))

    def _service_account(self, claims: Claims, agent: str) -> Subject:
        sub = claims.get("sub")
        parts = sub.removeprefix(SERVICE_ACCOUNT_PREFIX).split(":") if isinstance(sub, str) else []
        if not str(sub).startswith(SERVICE_ACCOUNT_PREFIX) or len(parts) != 2 or not all(parts):  # noqa: PLR2004
            raise InvalidToken("the token does not belong to a ServiceAccount")
        name = "/".join(parts)
        if agent and (agent, name) in self.pooled:
            return Subject("agent", agent)
        return Subject("agent" if name in self.agents else "serviceaccount", name)


@lru_cache(MAX_VERIFIED)
def claimed_issuer(token: str) -> tuple[str, Sequence[object]]:
    """Return the issuer and the audiences claimed by a token, unverified.

    Raises `InvalidToken`.
    """
    try:
        claims = jwt.decode(token, options={"verify_signature": False})
    except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError):
        raise InvalidToken("the credential is neither an API key of this agent nor a JWT") from None
    issuer, audience = claims.get("iss"), claims.get("aud")
    audiences = audience if isinstance(audience, list) else [audience]
    return issuer if isinstance(issuer, str) else "", audiences


def _reason(error: jwt.PyJWTError) -> str:
    """Translate an error; PyJWT's own messages may contain parts of the token."""
    match error:
        case jwt.ExpiredSignatureError():
            return "the token has expired"
        case jwt.ImmatureSignatureError():
            return "the token is not valid yet"
        case jwt.InvalidAudienceError():
            return "the token is for another audience"
        case jwt.InvalidIssuerError():
            return "the token is from an unknown issuer"
        case jwt.InvalidSignatureError():
            return "the token's signature is wrong"
        case jwt.MissingRequiredClaimError():
            return "the token lacks a required claim: exp, iss or aud"
        case _:
            return "the token is malformed"
