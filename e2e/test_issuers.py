"""An OIDC issuer whose certificate a private authority has signed, as a pod sees it (`caFrom`)."""

import sys
import time

from cryptography import x509
from harness import objects
from harness.clusters import ROOT
from harness.kubectl import eventually
from harness.objects import agent
from harness.space import Space
from harness.telling import say
from harness.tokens import AUDIENCE, Signer

sys.path.append(str(ROOT / "tests"))

from support.oidc_issuer import DISCOVERY, Authority

CHAT = {"messages": [{"role": "user", "content": "Hello?"}]}
GRANTS = [{"to": [{"user": "ada"}], "may": ["ask"]}]
CA_FROM = {"configMapKeyRef": {"name": "authorities", "key": "ca.crt"}}
SECONDS = 60  # a pod asks for first keys every 10 s, and the kubelet looks when it is told


def test_an_issuer_is_trusted_by_the_authority_of_a_config_map_and_by_no_other(space: Space):
    signer, authority, other = Signer(), Authority(), Authority("another")
    host = f"login.{space.name}.svc.cluster.local"
    url = f"https://{host}:8000"
    pages = {DISCOVERY: {"issuer": url, "jwks_uri": f"{url}/keys"}, "/keys": signer.jwks}
    pem = authority.server_pem(x509.DNSName(host)).decode()
    tls = objects.secret("tls", **{"server.pem": pem})
    space.kubectl.apply(tls, *objects.tls_pages("login", space.image, "tls", pages))
    issuer = {"url": url, "audience": AUDIENCE, "caFrom": CA_FROM}
    space.kubectl.apply(
        agent("hello", ["{}", "Hello!"], access={"issuers": [issuer], "grants": GRANTS})
    )
    space.kubectl.wait_for_pod("login")
    space.kubectl.wait_until_ready("hello")
    token = signer.token(iss=url)

    def status() -> int:
        proof = {"authorization": f"Bearer {token}"}
        asked = "http://hello:8000/v1/chat/completions"
        return space.probe.request(asked, CHAT, headers=proof, agent="hello").status

    def trust(pem: str) -> None:
        space.kubectl.apply({**objects.config_map("authorities"), "data": {"ca.crt": pem}})
        space.look_after_mounts("hello")

    eventually(lambda: status() == 401, seconds=20, what="without an authority nobody is trusted")
    trust(other.pem)
    until = time.monotonic() + 25  # two tries
    while time.monotonic() < until:
        assert status() == 401
        time.sleep(1)
    began = time.monotonic()
    trust(authority.pem)
    eventually(lambda: status() == 200, seconds=SECONDS, what="the issuer is trusted")
    say(f"an issuer is trusted {time.monotonic() - began:.0f} s after its authority was named")
    token = Signer().token(iss=url)
    assert status() == 401
