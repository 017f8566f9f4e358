"""Who is let in at an agent as it is served: its manifest, the platform's file, the keys."""

import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from support.stack import beyond_loopback
from support.virtual_time import run_virtually

from diptych.access.oidc import MAX_AGE_SECONDS, IssuerKeys
from diptych.core.errors import ConfigError
from diptych.manifest.loader import LocalOptions, load_agents
from diptych.manifest.settings import AccessConfig, AgentConfig, IssuerConfig
from diptych.models.connection import open_http_session
from diptych.serve import access as access_module
from diptych.serve.access import AgentAccess

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
KEY = rsa.generate_private_key(65537, 2048)
JWKS = {
    "keys": [
        {**json.loads(jwt.get_algorithm_by_name("RS256").to_jwk(KEY.public_key())), "kid": "k"}
    ]
}
CLUSTER = "https://kubernetes.default.svc"


def manifest(access: str) -> str:
    return f"""
apiVersion: diptych.dev/v1alpha1
kind: Agent
metadata: {{name: helper}}
spec:
  container: {{env: [{{name: DEBUG_MOCK_RESPONSES, value: '["{{}}", "Hello!"]'}}]}}
  access: {access}
"""


def config(tmp_path: Path, access: str, **environ: str) -> AgentConfig:
    file = tmp_path / "agent.yaml"
    file.write_text(manifest(access))
    (loaded,) = load_agents([file], LocalOptions(environ)).resolve(["http://127.0.0.1:1"])
    return loaded


async def ask(http: httpx.AsyncClient, credential: str | None) -> httpx.Response:
    headers = {"Authorization": f"Bearer {credential}"} if credential else {}
    return await http.post("/v1/chat/completions", json=CHAT, headers=headers)


def token(**claims: Any) -> str:
    now = int(time.time())
    content = {
        "iss": CLUSTER,
        "aud": ["diptych.dev/default/helper"],
        "exp": now + 600,
        "sub": "system:serviceaccount:default:web",
    } | claims
    return jwt.encode(content, KEY, "RS256", headers={"kid": "k"})


async def test_the_holder_of_a_key_may_ask_and_nobody_else(tmp_path: Path) -> None:
    access = "{keys: [{name: ci, secretKeyRef: {name: agent-keys, key: ci}}]}"
    async with beyond_loopback(config(tmp_path, access, AGENT_KEYS_CI="s3cret")) as http:
        assert (await ask(http, "s3cret")).status_code == 200
        assert (await ask(http, "other")).status_code == 401
        assert (await ask(http, None)).status_code == 401
        assert (await http.get("/health")).status_code == 200


async def test_without_a_way_to_prove_anything_it_does_not_listen(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--open"):
        async with beyond_loopback(config(tmp_path, "{}")):
            pass


async def test_open_lets_everybody_in_and_says_so(tmp_path: Path) -> None:
    async with beyond_loopback(config(tmp_path, "{mode: open}")) as http:
        assert (await ask(http, None)).status_code == 200
        assert "access is open" in (await http.get("/ready")).text


async def test_an_issuer_s_users_have_the_rights_of_their_grants(tmp_path: Path) -> None:
    issuer = {"url": CLUSTER, "audience": "agents", "jwks": JWKS}
    grants = [{"to": [{"group": "support"}], "may": ["ask"]}]
    access = json.dumps({"issuers": [issuer], "grants": grants})
    async with beyond_loopback(config(tmp_path, access)) as http:
        support = token(aud="agents", sub="ada", groups=["support"])
        assert (await ask(http, support)).status_code == 200
        assert (await ask(http, token(aud="agents", sub="eve"))).status_code == 403
        assert (await ask(http, token(sub="ada", groups=["support"]))).status_code == 401


def platform(**content: Any) -> str:
    cluster = {
        "url": CLUSTER,
        "audience": "diptych.dev/default/helper",
        "jwks": JWKS,
        "isCluster": True,
    }
    return json.dumps({"issuers": [cluster], **content})


async def test_the_platform_s_file_lets_agents_in_and_changes_while_it_runs(tmp_path: Path) -> None:
    text = [platform(agents=["legal/lawyer"])]
    plain = config(tmp_path, "{}")
    configured = replace(plain, access=replace(plain.access, platform=lambda: text[0]))
    lawyer = token(sub="system:serviceaccount:legal:lawyer")
    async with beyond_loopback(configured) as http:
        assert (await ask(http, token())).status_code == 200  # of its own namespace
        assert (await ask(http, lawyer)).status_code == 200
        stranger = token(sub="system:serviceaccount:other:web")
        assert (await ask(http, stranger)).status_code == 403
        assert (await ask(http, token(aud="diptych.dev/default/other"))).status_code == 401
        text[0] = platform(agents=[])
        assert (await ask(http, lawyer)).status_code in {401, 403}
        text[0] = "no JSON"
        assert (await ask(http, token())).status_code == 200  # what it said last holds


@pytest.mark.parametrize(
    ("access", "problem"),
    [
        pytest.param("{grants: [{to: [{}], may: [ask]}]}", "exactly one of", id="no subject"),
        pytest.param("{grants: [{to: [{robot: x}], may: [ask]}]}", "robot", id="unknown kind"),
        pytest.param("{grants: [{to: [{user: x}], may: [fly]}]}", "may", id="unknown right"),
        pytest.param("{limits: {runsAtOnce: 0}}", "runsAtOnce", id="a limit of 0"),
        pytest.param("{issuers: [{url: 'http://a.b', audience: x}]}", "https://", id="no TLS"),
        pytest.param("{grants: [{to: [{key: x}], may: [ask]}]}", "access.keys", id="unknown key"),
    ],
)
def test_a_manifest_that_makes_no_sense_is_refused_with_the_field(
    tmp_path: Path, access: str, problem: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        config(tmp_path, access)
    assert problem in str(caught.value)
    assert "spec.access" in str(caught.value)


def test_a_key_that_its_issuer_withdrew_is_gone_within_the_hour_and_one_of_an_issuer_away_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = "https://login.example.com"
    found: list[Any] = [JWKS, TimeoutError(), {"keys": []}]

    async def get(_: IssuerKeys, asked: str) -> Any:
        if asked.startswith(url + "/.well-known/"):
            return {"issuer": url, "jwks_uri": f"{url}/keys"}
        reply = found.pop(0) if len(found) > 1 else found[0]
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def told() -> list[int]:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(access_module.time, "monotonic", loop.time)
        async with open_http_session() as session:
            access = AgentAccess(AccessConfig(issuers=(IssuerConfig(url, "agents"),)), session)
            await access.start()
            counts = []
            for _ in range(3):
                counts.append(len(access.issuers()[0].keys()))
                await asyncio.sleep(MAX_AGE_SECONDS)
                await asyncio.sleep(1)
            await access.aclose()
        return counts

    monkeypatch.setattr(IssuerKeys, "_get", get)
    assert run_virtually(told()) == [1, 1, 0]


async def test_ready_says_how_the_last_run_of_a_schedule_ended(tmp_path: Path) -> None:
    reader = {"kind": "serviceaccount", "name": "default/web"}
    grants = [{"to": [reader], "may": ["read"]}]
    plain, text = config(tmp_path, "{}"), platform(grants=grants)
    configured = replace(plain, access=replace(plain.access, platform=lambda: text))
    schedules = token(sub="system:serviceaccount:default:helper.schedules")
    async with beyond_loopback(configured) as http:
        for job in ("helper-morning-1234-29401620", "helper-morning-1234-29401621"):
            headers = {"Authorization": f"Bearer {schedules}", "Idempotency-Key": job}
            started = await http.post("/v1/runs", json={"input": "hi"}, headers=headers)
            run_id = started.json()["id"]
            headers = {"Authorization": f"Bearer {schedules}"}
            await http.get(f"/v1/runs/{run_id}/events", headers=headers)
        ready = await http.get("/ready", headers={"Authorization": f"Bearer {token()}"})
        [end] = ready.json()["scheduled"]
    assert (end["schedule"], end["run_id"], end["end"]) == (
        "helper-morning-1234",
        run_id,
        "completed",
    )
