"""Tokens as an attacker, a stranger's issuer or a forgetful program would send them."""

import base64
import hashlib
import hmac
import json
import time
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

ISSUER = "https://login.example.com"
AUDIENCE = "agents"


class Signer:
    """An issuer of its own, whose keys are given to an Agent by hand."""

    def __init__(self) -> None:
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)

    @property
    def jwks(self) -> dict[str, Any]:
        key = jwt.algorithms.RSAAlgorithm.to_jwk(self._key.public_key(), as_dict=True)
        return {"keys": [{**key, "kid": "own", "alg": "RS256", "use": "sig"}]}

    def token(self, kid: str = "own", **claims: Any) -> str:
        """Sign a token for user ada that is good for 5 minutes, unless `claims` say otherwise."""
        now = int(time.time())
        content = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "iat": now, "exp": now + 300}
        return jwt.encode({**content, **claims}, self._key, "RS256", {"kid": kid})


def claims_of(token: str) -> dict[str, Any]:
    """Read a token's claims without a look at its signature."""
    return dict(jwt.decode(token, options={"verify_signature": False}))


def unsigned(token: str) -> str:
    """Give a token's claims with `alg: none`."""
    return jwt.encode(claims_of(token), None, "none")


def signed_with_public_key(token: str, keys: dict[str, Any]) -> str:
    """Give a token's claims, signed with HS256; the secret is the public key, as PEM."""
    kid = jwt.get_unverified_header(token)["kid"]
    (found,) = [key for key in keys["keys"] if key["kid"] == kid]
    public = jwt.PyJWK(found).key
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    head = {"alg": "HS256", "typ": "JWT", "kid": kid}
    signed = ".".join(map(_part, (head, claims_of(token))))
    return f"{signed}.{_base64(hmac.digest(pem, signed.encode(), hashlib.sha256))}"


def _part(content: dict[str, Any]) -> str:
    return _base64(json.dumps(content).encode())


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()
