"""Deliveries of other programs to a served agent: each starts one run, if it proves itself."""

import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from support.stack import script

from diptych.manifest.loader import LocalOptions, load_agents
from diptych.serve.process import ListenAddress, Sockets, serve_agents

SECRET, KEY = "github-canary-4Kp1", "key-canary-9Zx3"
MANIFEST = """
apiVersion: diptych.dev/v1alpha1
kind: Agent
metadata: {name: helper}
spec:
  access:
    keys:
    - {name: ada, secretKeyRef: {name: keys, key: ada}}
    - {name: auditor, secretKeyRef: {name: keys, key: auditor}}
    grants:
    - {to: [{key: auditor}], may: [read]}
  triggers:
  - name: issue
    signature: github
    secret: {secretKeyRef: {name: hooks, key: github}}
    when: headers["x-github-event"] == "issues" && body.action == "opened"
    message: '"New: " + body.issue.title'
    session: body.issue.number
  - name: plain
    signature: none
    message: body.text
"""
ISSUE = {"action": "opened", "issue": {"number": 7, "title": "It rains in"}}
ENVIRON = {
    "HOOKS_GITHUB": SECRET,
    "KEYS_ADA": KEY,
    "KEYS_AUDITOR": f"{KEY}-2",
    "DEBUG_MOCK_RESPONSES": script("{}", "Thanks."),
}


@asynccontextmanager
async def served(tmp_path: Path, host: str = "0.0.0.0") -> AsyncIterator[httpx.AsyncClient]:
    file = tmp_path / "agent.yaml"
    file.write_text(MANIFEST)
    sockets = Sockets(ListenAddress(host, 0), 1)
    configs = load_agents([file], LocalOptions(ENVIRON)).resolve(sockets.urls)
    async with serve_agents(configs, sockets) as agents:
        await agents[0].wait_for_first_connect()
        async with httpx.AsyncClient(base_url=agents[0].url, timeout=10) as http:
            yield http


async def deliver(http: httpx.AsyncClient, body: Any, **headers: str) -> httpx.Response:
    """Send a signed delivery as GitHub does; `headers` override its own."""
    content = json.dumps(body).encode()
    digest = hmac.new(SECRET.encode(), content, hashlib.sha256).hexdigest()
    sent = {
        "content-type": "application/json",
        "x-github-event": "issues",
        "x-github-delivery": "delivery-1",
        "x-hub-signature-256": f"sha256={digest}",
    }
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    return await http.post("/v1/triggers/issue", content=content, headers=sent)


def bearer(key: str = KEY) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def runs(http: httpx.AsyncClient) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await http.get("/v1/runs", headers=bearer(f"{KEY}-2"))).json()[
        "data"
    ]
    return found


async def test_a_delivery_that_comes_twice_starts_one_run_of_the_trigger(tmp_path: Path) -> None:
    async with served(tmp_path) as http:
        first, again = [await deliver(http, ISSUE) for _ in range(2)]
        assert (first.status_code, again.status_code) == (202, 202)
        assert first.json()["id"] == again.json()["id"]
        assert first.json()["session_id"] == "7"
        [run] = await runs(http)
        events = await http.get(f"/v1/runs/{run['id']}/events", headers=bearer(f"{KEY}-2"))
        assert "New: It rains in" in events.text
        assert '"subject":"trigger:issue"' in events.text
        assert SECRET not in events.text
        mine = await http.get("/v1/runs", headers=bearer())
        assert mine.json()["data"] == []  # it belongs to the trigger
        other = await deliver(http, ISSUE, x_github_delivery="delivery-2")
        assert other.json()["id"] != first.json()["id"]


NO_RUNS: list[tuple[Any, dict[str, str], int, str]] = [
    ({**ISSUE, "action": "closed"}, {}, 200, '{"skipped":true}'),
    (ISSUE, {"x_github_event": "ping"}, 200, '{"skipped":true}'),
    (ISSUE, {"x_hub_signature_256": f"sha256={'0' * 64}"}, 401, "signature is wrong"),
    (ISSUE, {"x_hub_signature_256": ""}, 401, "x-hub-signature-256 is missing"),
    ({"issue": {}}, {}, 400, "when failed"),
    ({"action": "opened", "issue": {"number": 7}}, {}, 400, "message failed"),
    ({"action": "opened", "issue": {"number": 1.5, "title": "x"}}, {}, 400, "session failed"),
    ({"action": "opened", "issue": {"number": "a/b", "title": "x"}}, {}, 400, "session id has"),
    ([1], {}, 400, "when failed"),
    ({**ISSUE, "x": "\0"}, {}, 400, "NUL"),
]


async def test_what_starts_no_run(tmp_path: Path) -> None:
    async with served(tmp_path) as http:
        for body, headers, status, said in NO_RUNS:
            reply = await deliver(http, body, **headers)
            assert (reply.status_code, said in reply.text) == (status, True), reply.text
            assert SECRET not in reply.text
        assert await runs(http) == []


async def test_only_a_signed_trigger_passes_without_a_token(tmp_path: Path) -> None:
    async with served(tmp_path) as http:
        for method, path in [
            ("POST", "/v1/triggers/plain"),
            ("POST", "/v1/triggers/issue/"),
            ("POST", "/v1/triggers/other"),
            ("GET", "/v1/triggers/issue"),
            ("POST", "/v1/runs"),
        ]:
            reply = await http.request(method, path, json={"text": "hi", "input": "hi"})
            assert reply.status_code == 401, path
            assert "token" in reply.text
        plain = "/v1/triggers/plain"
        auditor = await http.post(plain, json={"text": "hi"}, headers=bearer(f"{KEY}-2"))
        assert auditor.status_code == 403  # it may read, and not ask
        keyed = {**bearer(), "Idempotency-Key": "k"}
        started = [await http.post(plain, json={"text": "hi"}, headers=keyed) for _ in range(2)]
        assert [one.status_code for one in started] == [202, 202]
        assert len({one.json()["id"] for one in started}) == 1
        mine = await http.get("/v1/runs", headers=bearer())
        assert [run["id"] for run in mine.json()["data"]] == [started[0].json()["id"]]
        missing = await http.post("/v1/triggers/other", json={}, headers=bearer())
        assert (missing.status_code, "no trigger" in missing.text) == (404, True)


async def test_a_signature_is_needed_on_loopback_too(tmp_path: Path) -> None:
    async with served(tmp_path, "127.0.0.1") as http:
        assert (await deliver(http, ISSUE)).status_code == 202
        forged = await deliver(http, ISSUE, x_hub_signature_256="sha256=0")
        assert forged.status_code == 401
        assert (await http.post("/v1/triggers/plain", json={"text": "hi"})).status_code == 202
