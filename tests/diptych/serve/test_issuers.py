"""An issuer over real TLS, of an authority of its own: who is let in while keys and CA change."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.oidc_issuer import DISCOVERY, Authority, OidcIssuer, oidc_issuer
from support.stack import beyond_loopback

from diptych.access import oidc
from diptych.core.errors import ConfigError
from diptych.manifest.loader import LocalOptions, load_agents
from diptych.manifest.settings import AgentConfig
from diptych.models.connection import allow_url, open_http_session

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
MANIFEST = """
apiVersion: diptych.dev/v1alpha1
kind: Agent
metadata: {{name: helper}}
spec:
  container: {{env: [{{name: DEBUG_MOCK_RESPONSES, value: '["{{}}", "Hello!"]'}}]}}
  access: {access}
"""
CA_FROM = {"configMapKeyRef": {"name": "authorities", "key": "ca.crt"}}


@asynccontextmanager
async def asked_with(
    folder: Path, issuer: dict[str, Any], **environ: str
) -> AsyncIterator[httpx.AsyncClient]:
    """Serve an agent that takes this issuer's tokens."""
    async with beyond_loopback(configured(folder, issuer, **environ)) as http:
        yield http


def configured(folder: Path, issuer: dict[str, Any], **environ: str) -> AgentConfig:
    grants = [{"to": [{"user": "ada"}], "may": ["ask"]}]
    content = {"issuers": [{"audience": "agents", **issuer}], "grants": grants}
    file = folder / "agent.yaml"
    file.write_text(MANIFEST.format(access=json.dumps(content)))
    (config,) = load_agents([file], LocalOptions(environ)).resolve(["http://127.0.0.1:1"])
    return config


async def status(http: httpx.AsyncClient, token: str) -> int:
    headers = {"Authorization": f"Bearer {token}"}
    return (await http.post("/v1/chat/completions", json=CHAT, headers=headers)).status_code


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let keys be fetched as often as somebody asks."""
    monkeypatch.setattr(oidc, "REFRESH_SECONDS", 0.0)
    monkeypatch.setattr(oidc, "RETRY_SECONDS", 0.0)


@pytest.mark.parametrize("place", ["ca", "caFrom"])
async def test_an_issuer_of_a_private_authority_is_trusted_by_its_ca(
    tmp_path: Path, place: str
) -> None:
    authority, issuer = Authority(), OidcIssuer()
    issuer.add_key("one")
    async with oidc_issuer(authority, issuer):
        ca = {"ca": authority.pem} if place == "ca" else {"caFrom": CA_FROM}
        environ = {"AUTHORITIES_CA_CRT": authority.pem}
        async with asked_with(tmp_path, {"url": issuer.url, **ca}, **environ) as http:
            assert await status(http, issuer.token("one")) == 200
            assert await status(http, issuer.token("one", sub="eve")) == 403
            assert issuer.asked == [DISCOVERY, "/keys"]


@pytest.mark.parametrize("ca", [{}, {"ca": Authority("another").pem}], ids=["none", "another's"])
async def test_an_issuer_that_nobody_vouches_for_gets_no_connection(
    tmp_path: Path, ca: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    issuer = OidcIssuer()
    issuer.add_key("one")
    async with oidc_issuer(Authority(), issuer):
        async with asked_with(tmp_path, {"url": issuer.url, **ca}) as http:
            assert await status(http, issuer.token("one")) == 401
        assert issuer.asked == []
    assert "its certificate is not trusted" in caplog.text


@pytest.mark.usefixtures("soon")
async def test_a_ca_that_comes_or_changes_is_used_at_the_next_fetch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    old, new, issuer = Authority("old"), Authority("new"), OidcIssuer()
    issuer.add_key("one")
    given: list[str | None] = [None]
    async with open_http_session() as session, oidc_issuer(old, issuer):
        keys = oidc.IssuerKeys(issuer.url, session, float, lambda: given[0])
        allow_url(session, issuer.url)
        for ca, count in ((None, 0), ("nonsense", 0), (new.pem, 0), (old.pem + new.pem, 1)):
            given[0] = ca
            await keys.refresh(is_unknown_key=True)
            assert len(keys.keys()) == count, ca
    for said in (
        "CA certificates are missing",
        "not PEM",
        "its certificate is not trusted",
    ):
        assert said in caplog.text
    issuer.add_key("two")
    async with open_http_session() as session, oidc_issuer(new, issuer):
        allow_url(session, issuer.url)
        keys._session = session
        await keys.refresh(is_unknown_key=True)
        assert len(keys.keys()) == 2


@pytest.mark.usefixtures("soon")
async def test_keys_are_rotated_and_the_issuer_goes_away_without_a_caller_noticing(
    tmp_path: Path,
) -> None:
    """Old and new tokens, while a key is added, signs, and the old one is withdrawn."""
    authority, issuer = Authority(), OidcIssuer()
    issuer.add_key("one")
    trusted = {"url": issuer.url, "ca": authority.pem}
    async with oidc_issuer(authority, issuer):
        trusted["url"] = issuer.url
        async with asked_with(tmp_path, trusted) as http:
            old = issuer.token("one")
            assert await status(http, old) == 200
            issuer.add_key("two")
            new = issuer.token("two")
            assert [await status(http, each) for each in (old, new)] == [200, 200]
            forged = OidcIssuer(issuer.url)
            forged.add_key("two")
            assert await status(http, forged.token("two")) == 401


@pytest.mark.usefixtures("soon")
async def test_while_an_issuer_is_away_nobody_is_locked_out_and_nobody_let_in(
    tmp_path: Path,
) -> None:
    authority, issuer = Authority(), OidcIssuer()
    issuer.add_key("one")
    async with oidc_issuer(authority, issuer):
        pass  # it has an address now, and has gone
    async with asked_with(tmp_path, {"url": issuer.url, "ca": authority.pem}) as http:
        assert await status(http, issuer.token("one")) == 401
        async with oidc_issuer(authority, issuer):
            assert await status(http, issuer.token("one")) == 200
        issuer.add_key("two")
        fresh = [issuer.token("one", jti=str(n)) for n in range(3)]
        assert [await status(http, each) for each in fresh] == [200, 200, 200]
        assert await status(http, issuer.token("two")) == 401
        async with oidc_issuer(authority, issuer):
            assert await status(http, issuer.token("two")) == 200


@pytest.mark.parametrize(
    ("issuer", "problem"),
    [
        (
            {"ca": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"},
            "issuers[0].ca: these are not PEM certificates",
        ),
        ({"ca": Authority().pem, "caFrom": CA_FROM}, "issuers[0]: needs only one of ca, caFrom"),
        (
            {"caFrom": {"secretKeyRef": {"name": "no", "key": "ca"}}},
            "issuers[0].caFrom: key ca of Secret no is missing",
        ),
    ],
)
async def test_what_is_no_ca_is_refused_with_the_field(
    tmp_path: Path, issuer: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        async with asked_with(
            tmp_path, {"url": "https://x.example.com", **issuer}, AUTHORITIES_CA_CRT="junk"
        ):
            pass
    assert problem in str(caught.value)
