"""Who may ask an agent: proofs that are refused, peers that are let in, people with kubectl."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from harness.commands import CommandFailed
from harness.kubectl import Kubectl, eventually
from harness.objects import agent, delegations, probe
from harness.probe import Answer, Probe
from harness.space import Space
from harness.tokens import AUDIENCE, ISSUER, Signer, claims_of, signed_with_public_key, unsigned

BIN = Path(sys.executable).parent
HELLO = ["{}", "Hello!"]
CHAT = {"messages": [{"role": "user", "content": "Hello?"}]}
# What other NetworkPolicies close is open by this one: policies add up.
EVERYBODY = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "everybody"},
    "spec": {
        "podSelector": {},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{}],
        "egress": [{}],
    },
}


def ask(prober: Probe, host: str, token: str) -> Answer:
    """Ask an agent with this token; with an empty one, without any."""
    proof = f"Bearer {token}" if token else ""
    url = f"http://{host}:8000/v1/chat/completions"
    return prober.request(url, CHAT, headers={"authorization": proof}, agent=host)


def test_nobody_is_let_in_without_a_proof_that_holds(space: Space):
    signer, forger = Signer(), Signer()
    issuer = {"url": ISSUER, "audience": AUDIENCE, "jwks": signer.jwks}
    users = [{"serviceAccount": {"name": "default"}}, {"user": "ada"}]
    grants = [{"to": users, "may": ["ask"]}]
    space.serve(agent("hello", HELLO, access={"issuers": [issuer], "grants": grants}))
    good, keys = space.probe.token("hello"), json.loads(space.kubectl("get", "--raw", JWKS))
    for name, token in {"a ServiceAccount": good, "a user": signer.token()}.items():
        assert ask(space.probe, "hello", token).content == "Hello!", name

    kid = keys["keys"][0]["kid"]
    refused = {
        "no token": "",
        "no token at all": "abc",
        "an expired one": signer.token(exp=int(time.time()) - 120),
        "one that is not valid yet": signer.token(nbf=int(time.time()) + 120),
        "another audience": space.kubectl.token("diptych.dev/elsewhere/hello"),
        "the API's audience": space.kubectl.token(claims_of(good)["iss"]),
        "another audience of the user's issuer": signer.token(aud="other"),
        "another issuer": signer.token(iss="https://evil.example.com"),
        "a forged signature of a known issuer": forger.token(),
        "a forged signature of the cluster": forger.token(kid, **claims_of(good)),
        "alg none": unsigned(good),
        "HS256 with the public key": signed_with_public_key(good, keys),
        "HS256 with the user's issuer's public key": signed_with_public_key(
            signer.token(), signer.jwks
        ),
    }
    for name, token in refused.items():
        answer = ask(space.probe, "hello", token)
        assert answer.status == 401, f"{name}: {answer}"
        assert "diptych token hello" in answer.text
        assert (answer.headers or {})["www-authenticate"].startswith("Bearer "), name


JWKS = "/openid/v1/jwks"


def test_a_peer_is_let_in_by_allowed_namespaces_and_a_stranger_is_not(
    space: Space, other_space: Space
):
    """With NetworkPolicies, and where they let everybody in: the tokens alone decide then."""
    allowed = {"matchLabels": {"kubernetes.io/metadata.name": space.name}}
    lawyer = agent("lawyer", ["{}", "It is legal."])
    lawyer["spec"]["allowedNamespaces"] = {"from": "Selector", "selector": allowed}
    script = [delegations(lawyer="Is it?"), "{}", "Asked."]
    peers = [{"name": "lawyer", "namespace": other_space.name}]
    space.kubectl.apply(agent("asker", script, agents=peers), agent("bystander", HELLO))
    other_space.serve(lawyer)
    space.kubectl.wait_until_ready("asker", "bystander")
    host = f"lawyer.{other_space.name}"
    asker, bystander = space.pod_of("asker"), space.pod_of("bystander")
    token = space.token_of_peer("asker", host)
    assert claims_of(token)["aud"] == [f"diptych.dev/{other_space.name}/lawyer"]

    eventually(
        lambda: ask(Probe(space.kubectl, asker), host, token).status == 200,
        seconds=120,
        what="the peer is let in",
    )

    def delegated() -> bool:
        answer = space.probe.ask("asker")
        session = (answer.headers or {}).get("x-session-id")
        return "delegation_response" in space.probe.event_types("asker", session)

    eventually(delegated, seconds=90, what="the delegation works")
    assert not space.probe.reaches(host)  # a pod of the namespace that is no agent

    other_space.kubectl.apply(EVERYBODY)
    space.kubectl.apply(EVERYBODY)
    for pod in ("probe", bystander):
        _is_kept_out_without_policies(space, Probe(space.kubectl, pod), host)
    own = space.kubectl.token(f"diptych.dev/{other_space.name}/lawyer", "bystander")
    assert ask(space.probe, host, own).status == 403
    assert ask(Probe(space.kubectl, asker), host, token).status == 200

    del lawyer["spec"]["allowedNamespaces"]
    other_space.serve(lawyer)
    other_space.look_after_mounts("lawyer")
    eventually(
        lambda: ask(space.probe, host, token).status == 403,
        seconds=120,
        what="the peer is not let in any more",
    )


def _is_kept_out_without_policies(space: Space, stranger: Probe, host: str) -> None:
    eventually(lambda: stranger.reaches(host), seconds=20, what="the policies let all in")
    assert ask(stranger, host, "").status == 401
    assert ask(stranger, host, space.kubectl.token("diptych.dev/x/y")).status == 401
    # Who proves to be a stranger has no right: it is told which one, and nothing else.
    proved = ask(stranger, host, stranger.token(host))
    assert (proved.status, "'ask'" in proved.text) == (403, True)


def test_an_open_agent_says_so_and_one_that_is_not_tells_a_stranger_nothing(space: Space):
    tools = [{"name": "gone", "url": "http://gone:8000/mcp"}]
    closed = agent("hello", HELLO, tools=tools)
    space.serve(closed)
    told = space.probe.request("http://hello:8000/ready", headers={"authorization": ""})
    assert (told.status, set(told.json)) == (200, {"status", "agent"})
    # The operator is told.
    space.kubectl.wait_for_condition("hello", "Degraded", "True", reason="ServiceNotFound")

    space.serve(agent("hello", HELLO, access={"mode": "open"}))
    eventually(
        lambda: ask(space.probe, "hello", "").status == 200, seconds=60, what="it asks nobody"
    )
    condition = space.kubectl.wait_for_condition("hello", "AccessOpen", "True", reason="AccessOpen")
    assert "Everybody who reaches a pod may do everything" in condition["message"]
    space.serve(closed)
    space.kubectl.wait_for_condition("hello", "AccessOpen", "False")
    eventually(
        lambda: ask(space.probe, "hello", "").status == 401, seconds=60, what="it is closed again"
    )


ROLES = [("edit", True, True), ("view", True, False), (None, False, False)]
"""Kubernetes' own roles: whether one may see Agents, and ask them."""


def test_people_ask_by_their_rights_and_programs_by_a_token_that_their_pod_mounts(
    space: Space, tmp_path: Path
):
    space.serve(agent("hello", HELLO))
    for role, may_see, may_ask in (
        ("edit", True, True),
        ("view", True, False),
        (None, False, False),
    ):
        person = _person(space, tmp_path, role)
        assert _can_i(person, "get", "agents.diptych.dev") is may_see
        assert _can_i(person, "create", "serviceaccounts", "--subresource=token") is may_ask
        asked = subprocess.run(
            [str(BIN / "diptych"), "chat", "hello", "--namespace", space.name],
            env={**os.environ, **person.env, "HOME": str(tmp_path)},
            input="Hello?\n",
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ("Hello!" in asked.stdout) is may_ask, asked
        assert (asked.returncode == 0) is may_ask, asked
        assert may_ask or "forbidden" in asked.stderr.lower()

    source = {"audience": f"diptych.dev/{space.name}/hello", "path": "hello"}
    program = probe(space.image, "program")
    program["spec"]["volumes"] = [
        {"name": "token", "projected": {"sources": [{"serviceAccountToken": source}]}}
    ]
    mount = {"name": "token", "mountPath": "/tokens", "readOnly": True}
    program["spec"]["containers"][0]["volumeMounts"] = [mount]
    space.kubectl.apply(program)
    space.kubectl.wait_for_pod("program")
    token = space.kubectl("exec", "program", "--", "cat", "/tokens/hello")
    assert ask(Probe(space.kubectl, "program"), "hello", token).content == "Hello!"


def _person(space: Space, folder: Path, role: str | None) -> Kubectl:
    """Give kubectl as a person who has one of Kubernetes' own roles in a namespace, or none."""
    name = f"person-{role or 'without'}"
    space.kubectl("create", "serviceaccount", name)
    if role:
        account = f"--serviceaccount={space.name}:{name}"
        space.kubectl("create", "rolebinding", name, f"--clusterrole={role}", account)
    token = space.kubectl("create", "token", name).strip()
    config: dict[str, Any] = json.loads(
        space.kubectl("config", "view", "--minify", "--flatten", "-o", "json")
    )
    config["users"][0]["user"] = {"token": token}
    file = folder / name
    file.write_text(json.dumps(config))
    return Kubectl({**space.kubectl.env, "KUBECONFIG": str(file)}, space.name)


def _can_i(person: Kubectl, *what: str) -> bool:
    try:
        return person("auth", "can-i", *what).strip() == "yes"
    except CommandFailed as error:
        if error.stdout.strip() == "no":
            return False
        raise
