"""Tools that need sign-in, as a pod sees them: an authorization server over TLS, and its tokens."""

import sys

from cryptography import x509
from harness import objects
from harness.clusters import ROOT, Cluster
from harness.kubectl import eventually
from harness.objects import agent, call
from harness.pods import crash, ready_pods
from harness.sharing import Run
from harness.space import Space

sys.path.append(str(ROOT / "tests"))

from support.oidc_issuer import Authority

BROWSER = """
import html, re, ssl, sys, urllib.request
secure = urllib.request.HTTPSHandler(context=ssl.create_default_context(cadata=sys.argv[2]))
browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(), secure)
page = browser.open(sys.argv[1]).read().decode()
link = html.unescape(re.search('href="([^"]+)">Continue', page)[1])
print(browser.open(link).read().decode())
"""
SCRIPT = [call("who"), call("sign_in"), "{}", "Done."]


def test_an_agent_has_its_token_and_a_person_signs_in_though_the_pod_dies(
    space: Space, cluster: Cluster, run: Run
):
    run.once("redis", lambda: cluster.load("redis:7"))
    space.serve_redis()
    authority, host = Authority(), f"login.{space.name}.svc"
    url = f"https://{host}:8000"
    space.kubectl.apply(
        objects.secret("tls", **{"server.pem": authority.server_pem(x509.DNSName(host)).decode()}),
        objects.secret("helper", client="the-secret", tokens="k" * 32),
        objects.config_map("authorities", **{"ca.crt": authority.pem}),
        *objects.sign_in_server("login", space.image, "tls", url),
    )
    space.kubectl.wait_for_pod("login")
    space.serve(_helper(url))
    started = space.probe.request("http://helper:8000/v1/runs", {"input": "Go."}).json

    def question() -> str:
        found = space.probe.request("http://helper:8000/v1/inputs").json["data"]
        return found[0]["url"] if found else ""

    link = eventually(question, seconds=20, what="the call asks for a sign-in")
    crash(space, *ready_pods(space, 1))
    ready_pods(space, 1)
    page = space.kubectl("exec", "probe", "--", "python", "-c", BROWSER, link, authority.pem)
    assert "You are signed in to mail" in page

    def status() -> str:
        return space.probe.request(f"http://helper:8000/v1/runs/{started['id']}").json["status"]

    eventually(lambda: status() == "completed", seconds=60, what="the run has ended")
    events = space.probe.events("helper")
    assert [e["content"] for e in events if e["event_type"] == "tool_result"] == [
        "for helper",
        "Signed in. mail has 1 tools, which can be called from the next message on.",
    ]


def _helper(url: str) -> dict[str, object]:
    own = {"clientId": "helper", "clientSecret": _key("client"), "issuer": url}
    made = agent(
        "helper",
        SCRIPT,
        sessions={"redis": {"serviceRef": {"name": "redis"}}},
        tools=[
            {"name": "crm", "url": f"{url}/mcp", "auth": own},
            {"name": "mail", "url": f"{url}/mcp", "auth": {"as": "person", "issuer": url}},
        ],
        podTemplate={"spec": {"containers": [_TRUSTING], "volumes": [_AUTHORITIES]}},
    )
    made["spec"]["container"]["env"] += [
        {"name": "PUBLIC_URL", "value": "http://helper:8000"},  # which the probe's browser reaches
        {"name": "DIPTYCH_TOKEN_KEY", "valueFrom": _key("tokens")},
    ]
    return made


def _key(key: str) -> dict[str, object]:
    return {"secretKeyRef": {"name": "helper", "key": key}}


_AUTHORITIES = {"name": "authorities", "configMap": {"name": "authorities"}}
_TRUSTING = {
    "name": "agent",
    "env": [{"name": "SSL_CERT_FILE", "value": "/etc/authorities/ca.crt"}],
    "volumeMounts": [{"name": "authorities", "mountPath": "/etc/authorities", "readOnly": True}],
}
