"""Signatures of webhooks: the published examples, and what is not signed right."""

import pytest

from diptych.access.signatures import InvalidSignature, signing_key, standard_signature, verify

# https://github.com/standard-webhooks/standard-webhooks, libraries' tests
KEY = "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
ID, AT, BODY = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
STANDARD = {"webhook-id": ID, "webhook-timestamp": str(AT), "webhook-signature": SIGNATURE}
# https://docs.github.com/webhooks/using-webhooks/validating-webhook-deliveries
DIGEST = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
HELLO = b"Hello, World!"
GITHUB = {"x-hub-signature-256": f"sha256={DIGEST}"}
EVERYBODY = "It's a Secret to Everybody"


def test_the_signature_that_hooks_are_sent_with_is_the_published_one():
    assert standard_signature(signing_key(f"whsec_{KEY}"), ID, str(AT), BODY) == SIGNATURE


@pytest.mark.parametrize(
    ("scheme", "secret", "headers", "body", "now"),
    [
        ("standard-webhooks", f"whsec_{KEY}", STANDARD, BODY, AT),
        ("standard-webhooks", f"whsec_{KEY}", STANDARD, BODY, AT + 300),
        ("standard-webhooks", f"whsec_{KEY}", STANDARD, BODY, AT - 300),
        (  # of a sender that replaces its secret
            "standard-webhooks",
            f"whsec_{KEY}",
            {**STANDARD, "webhook-signature": f"v1,AAAA v1a,xyz {SIGNATURE}"},
            BODY,
            AT,
        ),
        ("github", EVERYBODY, GITHUB, HELLO, 0),
        ("gitlab", "token", {"x-gitlab-token": "token"}, b"{}", 0),
    ],
)
def test_what_is_signed_right(scheme, secret, headers, body, now):
    verify(scheme, secret, headers, body, now)


@pytest.mark.parametrize(
    ("scheme", "secret", "headers", "body", "now"),
    [
        ("standard-webhooks", f"whsec_{KEY}", STANDARD, BODY + b" ", AT),
        ("standard-webhooks", KEY, STANDARD, BODY, AT),
        ("standard-webhooks", f"whsec_{KEY}", STANDARD, BODY, AT + 301),
        ("standard-webhooks", f"whsec_{KEY}", STANDARD, BODY, AT - 301),
        ("standard-webhooks", f"whsec_{KEY}", {**STANDARD, "webhook-id": "other"}, BODY, AT),
        ("standard-webhooks", f"whsec_{KEY}", {**STANDARD, "webhook-timestamp": "1e9"}, BODY, AT),
        (
            "standard-webhooks",
            f"whsec_{KEY}",
            {**STANDARD, "webhook-timestamp": str(AT + 1)},
            BODY,
            AT,
        ),
        ("standard-webhooks", f"whsec_{KEY}", {**STANDARD, "webhook-signature": "v1,"}, BODY, AT),
        ("standard-webhooks", f"whsec_{KEY}", {}, BODY, AT),
        ("github", EVERYBODY, GITHUB, b"Hello, World?", 0),
        ("github", "other", GITHUB, HELLO, 0),
        ("github", EVERYBODY, {"x-hub-signature-256": DIGEST}, HELLO, 0),
        ("github", EVERYBODY, {"x-hub-signature": f"sha1={DIGEST}"}, HELLO, 0),
        ("github", EVERYBODY, {"x-hub-signature-256": f"sha256={DIGEST[:-1]}é"}, HELLO, 0),
        ("gitlab", "token", {"x-gitlab-token": "tokem"}, b"{}", 0),
        ("gitlab", "token", {}, b"{}", 0),
        ("none", "token", GITHUB, HELLO, 0),
    ],
)
def test_what_is_not(scheme, secret, headers, body, now):
    with pytest.raises(InvalidSignature):
        verify(scheme, secret, headers, body, now)


def test_a_secret_that_is_no_key_is_named():
    with pytest.raises(ValueError, match="base64"):
        verify("standard-webhooks", "whsec_???", STANDARD, BODY, AT)
