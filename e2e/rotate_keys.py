"""Rotates the key that signs a cluster's ServiceAccount tokens, and tells who is let in meanwhile.

    make rotate-keys            # on a kind cluster of its own, or on that of KUBECONFIG

It takes as many minutes as the rotation does, and restarts the API server four times: so it is no
case of the suite. As Kubernetes' documentation has it, the new key is added, then it signs, and the
old one is removed once no token of it is needed. Between the first two the API is away for a
minute. All the time callers ask two agents through NodePorts, so that the API is not in their way:
`hello`, and `front`, which asks `hello` with the token that its pod has for it.

What it has shown is in docs/operator.md.
"""

import collections
import json
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import uuid4

import jwt
from harness import clusters, release, telling
from harness.commands import CommandFailed, output
from harness.kubectl import Kubectl, eventually
from harness.objects import agent, delegations
from harness.sharing import Run
from harness.space import Space, space_of
from harness.telling import say
from harness.tokens import Signer, claims_of

AGENTS = ("hello", "front")
AUDIENCE = "diptych.dev/{}/{}"
ANSWER = "Hello!"
BY_FRONT = "front's question"
QUESTION = {"messages": [{"role": "user", "content": "Hello?"}]}
EVERYBODY = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "everybody"},
    "spec": {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{}]},
}
PKI = "/etc/kubernetes/pki"
MANIFESTS = "/etc/kubernetes/manifests"
SECONDS = 300.0  # for the operator and the kubelets to pass keys on
AWAY = 60.0  # for which the API is away


class Node:
    """The control plane of a kind cluster, from within."""

    def __init__(self, cluster: str, kubectl: Kubectl) -> None:
        self._container = f"{cluster}-control-plane"
        self._kubectl = kubectl

    def run(self, command: str) -> str:
        return output("docker", "exec", self._container, "sh", "-ec", command)

    def address(self) -> str:
        form = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
        return output("docker", "inspect", "-f", form, self._container).strip()

    def edit(self, component: str, *edits: str) -> None:
        """Change a static pod's manifest at once; the kubelet starts the pod anew."""
        file, scripts = f"{component}.yaml", " ".join(f"-e '{edit}'" for edit in edits)
        self.run(
            f"sed {scripts} {MANIFESTS}/{file} > /tmp/{file}; cp /tmp/{file} {MANIFESTS}/{file}"
        )

    def published(self) -> list[str]:
        """Name the keys that the API publishes; none while it is away."""
        try:
            return [key["kid"] for key in json.loads(self._kubectl("get", "--raw", JWKS))["keys"]]
        except CommandFailed:
            return []


JWKS = "/openid/v1/jwks"


class Callers:
    """Ask an agent in turn, each with its token, until the end; count what they are told.

    `front` is asked by whoever has a token for it, and what counts is what `hello` told it.
    """

    def __init__(self, hello: str, front: str) -> None:
        self.tokens: dict[str, str] = {}
        self.token_for_front = ""
        self.told: dict[str, collections.Counter[str]] = {}
        self._hello, self._front = hello, front
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._ask_on, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._has_ended.set()
        self._thread.join(30)

    def begin_phase(self, name: str) -> None:
        self.report()
        self.told = {}
        say(f"--- {name}")

    def report(self) -> None:
        for who, counts in sorted(self.told.items()):
            say(f"    {who}: " + ", ".join(f"{n} times {what}" for what, n in counts.items()))

    def ask(self, token: str) -> str:
        try:
            with _asked(self._hello, "/v1/chat/completions", token, QUESTION) as reply:
                return str(reply.status)
        except urllib.error.HTTPError as error:
            with error:
                return str(error.code)
        except OSError as error:
            return type(error).__name__

    def ask_front(self, token: str) -> str:
        """Ask front, which asks hello; tell what it was told, or its own refusal."""
        session = f"rotation-{uuid4().hex}"
        try:
            question = {**QUESTION, "session_id": session}
            with _asked(self._front, "/v1/chat/completions", token, question):
                pass
            path = f"/memory/events?session_id={session}"
            with _asked(self._front, path, token) as reply:
                events = json.load(reply)["events"]
        except OSError as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()
            return f"front: {error}"
        told = [e["content"] for e in events if e["event_type"] == "delegation_response"]
        return "200" if told == [ANSWER] else str(told)

    def _ask_on(self) -> None:
        while not self._has_ended.wait(0.1):
            for who, token in tuple(self.tokens.items()):
                told = self.told
                told.setdefault(who, collections.Counter())[self.ask(token)] += 1
            if token := self.token_for_front:
                told = self.told
                told.setdefault(BY_FRONT, collections.Counter())[self.ask_front(token)] += 1


def _asked(url: str, path: str, token: str, body: object = None) -> Any:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    sent = None if body is None else json.dumps(body).encode()
    return urllib.request.urlopen(urllib.request.Request(f"{url}{path}", sent, headers), timeout=30)


class Rotation:
    """The steps of a rotation, and the callers beside them."""

    def __init__(self, node: Node, space: Space) -> None:
        self.node = node
        self.space = space
        self.kubectl = space.kubectl
        self.failures: list[str] = []
        self.kubectl.apply(EVERYBODY, *map(_node_port, AGENTS))
        self.callers = Callers(*map(self._url, AGENTS))

    def _url(self, agent: str) -> str:
        service = self.kubectl.get("service", f"outside-{agent}")
        return f"http://{self.node.address()}:{service['spec']['ports'][0]['nodePort']}"

    def fresh(self, name: str) -> str:
        """Let a caller ask with a new token."""
        token = eventually(self._token, seconds=120, what="a token is to be had")
        self.callers.tokens[name] = token
        return str(token)

    def renew_for_front(self) -> None:
        """Let front be asked with a new token of its own."""
        make = partial(self._token, "front")
        self.callers.token_for_front = eventually(make, seconds=120, what="a token for front")

    def mounted(self) -> list[str]:
        """Name the keys in the access file that the agent's pod has."""
        pod = self.space.pod_of("hello")
        text = self.kubectl("exec", pod, "--", "cat", "/etc/diptych/access/platform.json")
        cluster = next(one for one in json.loads(text)["issuers"] if one.get("isCluster"))
        return [key["kid"] for key in cluster["jwks"]["keys"]]

    def wait_for_keys(self, wanted: set[str]) -> None:
        """Wait until the API publishes these keys, and the pod has them."""
        began = time.monotonic()
        eventually(lambda: set(self.node.published()) == wanted, seconds=180, what="keys published")
        say(f"    published after {time.monotonic() - began:.0f} s")
        began = time.monotonic()
        eventually(
            lambda: set(_calmly(self.mounted)) == wanted, seconds=SECONDS, what="keys mounted"
        )
        say(f"    in the pod {time.monotonic() - began:.0f} s later")

    def expect(self, **told: str) -> None:
        """Note whoever of the phase was told anything else."""
        for who, wanted in told.items():
            counts = self.callers.told.get(who, collections.Counter())
            if set(counts) != {wanted}:
                self.failures.append(f"{who} should be told {wanted}: {dict(counts)}")
                say(f"    WRONG: {self.failures[-1]}")

    def wait_until_reached(self, token: str) -> None:
        """Wait until the agent is asked through its port: nodes learn of it after the API."""
        told: list[str] = []

        def is_reached() -> bool:
            told.append(self.callers.ask(token))
            return told[-1] == "200"

        eventually(is_reached, seconds=30, what="the agent is reached", otherwise=lambda: told[-1])

    def signs(self, kid: str) -> bool:
        """Whether tokens are signed with this key by now."""
        token = self._token()
        return bool(token) and jwt.get_unverified_header(token)["kid"] == kid

    def _token(self, agent: str = "hello") -> str:
        try:
            return self.kubectl.token(AUDIENCE.format(self.space.name, agent))
        except CommandFailed:
            return ""


def _node_port(agent: str) -> dict[str, Any]:
    """Make the Service through which an agent is asked from outside."""
    selector = {"app.kubernetes.io/instance": agent}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": f"outside-{agent}"},
        "spec": {"type": "NodePort", "selector": selector, "ports": [{"port": 8000}]},
    }


USERS_OF_THE_API = {
    "kube-system": ("daemonset", "deployment"),
    "local-path-storage": ("deployment",),
    release.NAMESPACE: ("deployment",),
}
"""Whoever rotates keys waits until tokens are renewed, within an hour; here they start anew.

Without that kube-proxy is locked out when the old key goes, and no pod reaches the API any more.
"""
ALWAYS = {"a forger with the old kid": "401", "nobody": "401", BY_FRONT: "200"}
KEY_FILE = f"    - --service-account-key-file={PKI}"
SIGNING = f"--service-account-signing-key-file={PKI}"
PRIVATE = f"--service-account-private-key-file={PKI}"


def begin(rotation: Rotation) -> str:
    """Let callers ask with a token of the key that signs now; give its name."""
    (old,) = rotation.node.published()
    token = rotation.fresh("the old token")
    rotation.wait_until_reached(token)
    rotation.callers.tokens["a forger with the old kid"] = Signer().token(old, **claims_of(token))
    rotation.callers.tokens["nobody"] = "abc"
    rotation.renew_for_front()
    rotation.callers.start()
    return old


def send_the_api_away(rotation: Rotation) -> None:
    """Stop the API server for a minute."""
    node = rotation.node
    rotation.callers.begin_phase("the API is away for a minute")
    node.run(f"mv {MANIFESTS}/kube-apiserver.yaml /tmp/kube-apiserver.away")
    eventually(lambda: not node.published(), seconds=60, what="the API is away")
    time.sleep(AWAY)
    rotation.expect(**{"the old token": "200"}, **ALWAYS)
    node.run(f"mv /tmp/kube-apiserver.away {MANIFESTS}/kube-apiserver.yaml")
    eventually(node.published, seconds=180, what="the API is back")


def add_key(rotation: Rotation, old: str) -> str:
    """Add a key, which signs nothing yet; give its name."""
    node = rotation.node
    rotation.callers.begin_phase("the new key is added")
    node.run(f"cd {PKI}; openssl genrsa -out new.key 2048")
    node.run(f"cd {PKI}; openssl rsa -in new.key -pubout -out new.pub")
    node.edit("kube-apiserver", f"s#^{KEY_FILE}/sa.pub$#{KEY_FILE}/sa.pub\\n{KEY_FILE}/new.pub#")
    eventually(lambda: len(node.published()) > 1, seconds=180, what="two keys")
    both = set(node.published())
    rotation.wait_for_keys(both)
    rotation.expect(**{"the old token": "200"}, **ALWAYS)
    (new,) = both - {old}
    return new


def sign_with(rotation: Rotation, new: str) -> None:
    """Sign with the new key."""
    node, callers = rotation.node, rotation.callers
    callers.begin_phase("the new key signs")
    node.edit("kube-apiserver", f"s#{SIGNING}/sa.key#{SIGNING}/new.key#")
    node.edit("kube-controller-manager", f"s#{PRIVATE}/sa.key#{PRIVATE}/new.key#")
    eventually(lambda: rotation.signs(new), seconds=180, what="tokens of the new key")
    claims = claims_of(rotation.fresh("a new token"))
    callers.tokens["a forger with the new kid"] = Signer().token(new, **claims)
    time.sleep(20)
    good = {"the old token": "200", "a new token": "200", "a forger with the new kid": "401"}
    rotation.expect(**good, **ALWAYS)
    callers.begin_phase("all who ask the API get tokens of the new key")
    for namespace, kinds in USERS_OF_THE_API.items():
        users = Kubectl(rotation.kubectl.env, namespace)
        for kind in kinds:
            users("rollout", "restart", kind)
        for kind in kinds:
            users("rollout", "status", kind, "--timeout=180s", timeout=200)
    # So does front's pod, for its token for hello; for a moment its record is on one of two pods.
    rotation.kubectl("rollout", "restart", "deployment/front")
    rotation.kubectl("rollout", "status", "deployment/front", "--timeout=180s", timeout=200)
    rotation.renew_for_front()


def remove_key(rotation: Rotation, new: str) -> None:
    """Remove the old key: whoever has a token of it is refused from then on."""
    callers = rotation.callers
    callers.begin_phase("the old key is removed")
    rotation.node.edit("kube-apiserver", f"\\#^{KEY_FILE}/sa.pub$#d")
    rotation.wait_for_keys({new})
    rotation.expect(**{"a new token": "200", "a forger with the new kid": "401"}, **ALWAYS)
    callers.begin_phase("it is gone")
    rotation.fresh("the newest token")
    time.sleep(20)
    good = {"a new token": "200", "the newest token": "200", "a forger with the new kid": "401"}
    rotation.expect(**good, **{"the old token": "401"}, **ALWAYS)
    callers.end()
    callers.report()


def _calmly(read: Callable[[], list[str]]) -> list[str]:
    try:
        return read()
    except CommandFailed:
        return []


def main() -> int:
    telling.begin()
    run = Run()
    cluster = clusters.cluster(run)
    if cluster.kind is None:
        raise SystemExit("this needs a cluster of kind: it edits the manifests of its node")
    try:
        found = release.installed(run, cluster)
        with space_of(found, "rotate") as space:
            script = [delegations(hello="Greet"), "{}", "It was asked."]
            space.serve(
                agent("hello", ["{}", ANSWER]), agent("front", script, agents=[{"name": "hello"}])
            )
            rotation = Rotation(Node(cluster.kind, space.kubectl), space)
            old = begin(rotation)
            send_the_api_away(rotation)
            new = add_key(rotation, old)
            sign_with(rotation, new)
            remove_key(rotation, new)
    finally:
        clusters.end(run)
    say("nobody was let in or locked out" if not rotation.failures else "IT WENT WRONG")
    return len(rotation.failures)


if __name__ == "__main__":
    sys.exit(main())
