"""Tokens of issuers: which prove somebody, and which prove nothing."""

import base64
import json
import time
from dataclasses import replace
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given, settings
from hypothesis import strategies as st

from diptych.access.bearer import Authenticator, Unauthorized
from diptych.access.grants import Subject
from diptych.access.tokens import InvalidToken, Issuer, UnknownKey

URL, AUDIENCE = "https://issuer.example.com", "diptych.dev/default/helper"
RSA = rsa.generate_private_key(65537, 2048)
OTHER_RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()


def jwk(key: Any, kid: str, alg: str) -> dict[str, Any]:
    algorithm = jwt.get_algorithm_by_name(alg)
    return {**json.loads(algorithm.to_jwk(key.public_key())), "kid": kid, "use": "sig"}


KEYS = [jwk(RSA, "rsa", "RS256"), jwk(EC, "ec", "ES256"), jwk(ED, "ed", "EdDSA")]


def claims(**fields: Any) -> dict[str, Any]:
    now = int(time.time())
    return {
        "iss": URL,
        "aud": [AUDIENCE],
        "exp": now + 600,
        "nbf": now - 1,
        "sub": "ada@example.com",
        "groups": ["support"],
    } | fields


def token(key: Any = RSA, alg: str = "RS256", kid: str | None = "rsa", **fields: Any) -> str:
    content = {k: v for k, v in claims(**fields).items() if v is not None}
    return jwt.encode(content, key, alg, headers={"kid": kid} if kid else None)


def issuer(**fields: Any) -> Issuer:
    return Issuer(URL, AUDIENCE, lambda: KEYS, **fields)


@pytest.mark.parametrize(
    ("key", "alg", "kid"),
    [(RSA, "RS256", "rsa"), (RSA, "PS512", "rsa"), (EC, "ES256", "ec"), (ED, "EdDSA", "ed")],
)
def test_a_token_says_who_its_user_is(key: Any, alg: str, kid: str) -> None:
    subject = issuer().verify(token(key, alg, kid))
    assert subject == Subject("user", "ada@example.com", frozenset({"support"}))


@pytest.mark.parametrize("exp", [int, str])
def test_a_token_that_was_verified_once_expires_and_falls_with_its_key(
    exp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [list(KEYS)]
    known = Issuer(URL, AUDIENCE, lambda: keys[0])
    credential = token(exp=exp(int(time.time()) + 600))
    assert known.verify(credential) == known.verify(credential)
    with pytest.raises(InvalidToken, match="another audience"):
        replace(known, audience="other").verify(credential)
    keys[0] = KEYS[1:]
    with pytest.raises(UnknownKey):
        known.verify(credential)
    keys[0] = list(KEYS)
    known.verify(credential)
    later = time.time() + 700
    monkeypatch.setattr(time, "time", lambda: later)
    with pytest.raises(InvalidToken, match="expired"):
        known.verify(credential)


@pytest.mark.parametrize("verified", [False, "true", "false", 1, 0, []])
def test_an_address_that_is_not_verified_is_nobodys(verified: Any) -> None:
    content = token(email="ada@example.com", email_verified=verified)
    with pytest.raises(InvalidToken, match="e-mail address is not verified"):
        issuer(user_claim="email").verify(content)
    assert issuer().verify(content).name == "ada@example.com"  # by `sub`, which is the issuer's


@pytest.mark.parametrize("verified", [True, None], ids=["verified", "the claim is absent"])
def test_an_address_is_a_users_if_it_is_verified_or_nothing_is_said_of_that(verified: Any) -> None:
    content = token(email="eve@example.com", email_verified=verified)
    assert issuer(user_claim="email").verify(content).name == "eve@example.com"


def public_pem() -> bytes:
    return RSA.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def signed_by_public_key() -> str:
    """The classic confusion: HS256 with the public key, which everybody has, as its secret."""
    import hashlib  # noqa: PLC0415
    import hmac  # noqa: PLC0415

    def part(content: object) -> bytes:
        return base64.urlsafe_b64encode(json.dumps(content).encode()).rstrip(b"=")

    text = part({"alg": "HS256", "kid": "rsa", "typ": "JWT"}) + b"." + part(claims())
    mac = hmac.new(public_pem(), text, hashlib.sha256).digest()
    return (text + b"." + base64.urlsafe_b64encode(mac).rstrip(b"=")).decode()


def unsigned() -> str:
    return jwt.encode(claims(), "", "none")


BAD = {
    "expired": lambda: token(exp=int(time.time()) - 61),
    "not yet": lambda: token(nbf=int(time.time()) + 61),
    "no exp": lambda: token(exp=None),
    "another audience": lambda: token(aud="diptych.dev/default/other"),
    "no audience": lambda: token(aud=None),
    "another issuer": lambda: token(iss="https://evil.example.com"),
    "another key": lambda: token(OTHER_RSA),
    "unknown kid": lambda: token(OTHER_RSA, kid="mine"),
    "no kid where there are several keys": lambda: token(kid=None),
    "alg none": unsigned,
    "HS256 by the public key": signed_by_public_key,
    "no sub": lambda: token(sub=None),
    "sub is no text": lambda: token(RSA, "RS256", "rsa", sub=None, email=["a"]),
    "nothing": lambda: "",
    "three dots": lambda: "...",
    "no JSON": lambda: "YQ.YQ.YQ",
    "huge": lambda: "a" * 100_000 + "." + "a" * 10 + ".a",
}


@pytest.mark.parametrize("name", BAD)
def test_a_token_that_proves_nothing_is_refused_and_not_repeated(name: str) -> None:
    bad = BAD[name]()
    with pytest.raises(InvalidToken) as caught:
        issuer().verify(bad)
    assert not bad or bad not in str(caught.value)


@pytest.mark.parametrize("claim", [{"jku": "https://evil.example.com"}, {"jwk": KEYS[0]}])
def test_a_key_that_the_token_brings_counts_for_nothing(claim: dict[str, Any]) -> None:
    forged = jwt.encode(claims(), OTHER_RSA, "RS256", headers={"kid": "rsa", **claim})
    with pytest.raises(InvalidToken, match="signature is wrong"):
        issuer().verify(forged)


def test_times_have_a_minute_of_leeway() -> None:
    now = int(time.time())
    assert issuer().verify(token(exp=now - 50))
    assert issuer().verify(token(nbf=now + 50))


def test_a_service_account_s_token_names_it_and_an_agent_s_the_agent() -> None:
    cluster = issuer(is_cluster=True, agents=frozenset({"legal/lawyer"}))
    web = token(sub="system:serviceaccount:default:web", groups=None)
    assert cluster.verify(web) == Subject("serviceaccount", "default/web")
    lawyer = token(sub="system:serviceaccount:legal:lawyer")
    assert cluster.verify(lawyer) == Subject("agent", "legal/lawyer")


@pytest.mark.parametrize("sub", ["ada", "system:serviceaccount:a", "system:serviceaccount::b", 7])
def test_of_the_cluster_only_service_accounts_are_accepted(sub: Any) -> None:
    forged = jwt.encode(claims() | {"sub": str(sub)}, RSA, "RS256", headers={"kid": "rsa"})
    with pytest.raises(InvalidToken):
        issuer(is_cluster=True).verify(forged)


def test_a_key_that_is_not_there_is_told_apart_since_keys_may_have_changed() -> None:
    one = Issuer(URL, AUDIENCE, lambda: KEYS[1:])
    with pytest.raises(UnknownKey):
        one.verify(token())


# The header


def authenticator(**keys: str | None) -> Authenticator:
    return Authenticator(lambda: [issuer()], {n: (lambda v=v: v) for n, v in keys.items()})


@pytest.mark.parametrize(
    ("header", "error"),
    [
        pytest.param([], None, id="absent"),
        pytest.param(["Basic YTpi"], "invalid_request", id="another scheme"),
        pytest.param(["Bearer"], "invalid_request", id="no credential"),
        pytest.param(["Bearer a", "Bearer b"], "invalid_request", id="two"),
        pytest.param(["Bearer " + "a" * 20_000], "invalid_request", id="too long"),
        pytest.param(["Bearer nonsense"], "invalid_token", id="neither"),
        pytest.param(["Bearer a.b.c"], "invalid_token", id="malformed"),
    ],
)
def test_what_is_no_credential_says_why(header: list[str], error: str | None) -> None:
    with pytest.raises(Unauthorized) as caught:
        authenticator(ci="s3cret").subject(header)
    assert caught.value.error == error


def test_a_key_names_its_holder_and_is_read_at_each_use() -> None:
    values: dict[str, str | None] = {"ci": "first\n"}
    asked = Authenticator(list, {"ci": lambda: values["ci"]})
    assert asked.subject(["bearer first"]) == Subject("key", "ci")
    values["ci"] = "second"
    with pytest.raises(Unauthorized):
        asked.subject(["Bearer first"])
    values["ci"] = None
    with pytest.raises(Unauthorized):
        asked.subject(["Bearer "])


def test_an_empty_key_lets_nobody_in() -> None:
    for value in ("", "  ", "\n"):
        with pytest.raises(Unauthorized):
            authenticator(ci=value).subject([f"Bearer {value or 'x'}"])


@pytest.mark.parametrize(
    ("agent", "account", "expected"),
    [
        ("team/one", "team:house-pool", "agent:team/one"),
        ("", "team:house-pool", "serviceaccount:team/house-pool"),
        ("team/two", "team:house-pool", "serviceaccount:team/house-pool"),  # of another pool
        ("team/two", "team:other-pool", "agent:team/two"),
        ("team/one", "team:web", "serviceaccount:team/web"),
        ("team/three", "team:three", "agent:team/three"),  # of its own account
        ("team/one", "team:three", "agent:team/three"),
    ],
)
def test_only_its_own_pool_is_believed_to_ask_for_an_agent(
    agent: str, account: str, expected: str
) -> None:
    pooled = frozenset({("team/one", "team/house-pool"), ("team/two", "team/other-pool")})
    one = issuer(is_cluster=True, agents=frozenset({"team/three"}), pooled=pooled)
    asked = Authenticator(lambda: [one], {})
    header = [f"Bearer {token(sub=f'system:serviceaccount:{account}')}"]
    assert str(asked.subject(header, agent)) == expected


def test_keys_and_issuers_that_change_hold_for_the_next_request() -> None:
    issued: list[Any] = [KEYS]
    issuers = [Issuer(URL, AUDIENCE, lambda: issued[0])]
    asked = Authenticator(lambda: issuers, {})
    header = [f"Bearer {token()}"]
    assert asked.subject(header)
    issued[0] = [key for key in KEYS if key["kid"] != "rsa"]
    with pytest.raises(Unauthorized, match="not among"):
        asked.subject(header)
    issuers.clear()
    with pytest.raises(Unauthorized, match="unknown issuer"):
        asked.subject(header)


def test_of_one_issuer_platform_and_agent_may_each_have_an_audience() -> None:
    platform, own = replace(issuer(), audience="platform"), issuer(user_claim="email")
    asked = Authenticator(lambda: [platform, own], {})
    for audience in (AUDIENCE, ["other", AUDIENCE]):
        assert asked.subject([f"Bearer {token(aud=audience, email='a@b')}"]).name == "a@b"
    assert asked.subject([f"Bearer {token(aud='platform')}"]).name == "ada@example.com"
    for audience in ("other", ["other"], [[AUDIENCE]], {AUDIENCE: 1}, None):
        with pytest.raises(Unauthorized):
            asked.subject([f"Bearer {token(aud=audience)}"])


@settings(max_examples=40)
@given(st.text(max_size=300))
def test_no_credential_breaks_it(text: str) -> None:
    with pytest.raises(Unauthorized):
        authenticator(ci="s3cret-key-of-ci").subject([f"Bearer {text}"])


@settings(max_examples=40)
@given(st.binary(max_size=60), st.binary(max_size=60), st.binary(max_size=60))
def test_no_token_breaks_it(head: bytes, body: bytes, mac: bytes) -> None:
    parts = [base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in (head, body, mac)]
    with pytest.raises(Unauthorized):
        authenticator().subject([f"Bearer {'.'.join(parts)}"])


@settings(max_examples=40)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda c: st.lists(c) | st.dictionaries(st.text(), c),
        max_leaves=8,
    )
)
def test_no_claim_breaks_it(value: Any) -> None:
    for claim in ("iss", "aud", "exp", "nbf", "sub", "groups"):
        try:
            forged = jwt.api_jws.encode(
                json.dumps(claims() | {claim: value}).encode(), ED, "EdDSA", headers={"kid": "ed"}
            )
        except (TypeError, ValueError):
            continue
        try:
            subject = authenticator().subject([f"Bearer {forged}"])
        except Unauthorized:
            continue
        assert subject.kind == "user"


@pytest.mark.parametrize("claim", ["exp", "nbf", "iat"])
@pytest.mark.parametrize("number", [float("inf"), float("nan")])
def test_a_time_that_no_clock_shows_proves_nothing(claim: str, number: Any) -> None:
    with pytest.raises(InvalidToken):
        issuer().verify(token(**{claim: number}))
