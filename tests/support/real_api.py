"""A real Kubernetes API for tests: etcd and kube-apiserver on loopback, without any node.

It takes about two seconds. The programs are those of `tools/cluster`; where they are not, there is
no real API. Nothing makes pods, and nothing collects what a deleted owner leaves.
"""

import contextlib
import json
import shutil
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from diptych_operator.kubernetes.connection import Connection
from diptych_operator.resources.kinds import SERVICE_ACCOUNT, Kind, NamespacedName, Object

ROOT = Path(__file__).parents[2]
TOKEN = "of-a-test"
SECONDS = 60.0
CRDS = Kind("apiextensions.k8s.io", "v1", "customresourcedefinitions", "", is_namespaced=False)


class ErrorResponse(Exception):
    """An answer that is an error; `status` is its code."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass(frozen=True)
class RealApi:
    """The API, and what a person would do with kubectl."""

    url: str
    tls: ssl.SSLContext
    token: str = TOKEN
    user: str = ""
    """Who asks, if not the holder of the token."""

    @property
    def connection(self) -> Connection:
        return Connection(self.url, self.tls, lambda: f"Bearer {self.token}")

    def impersonating(self, user: str) -> "RealApi":
        """Ask as somebody else, who has no rights but those of RBAC."""
        return replace(self, user=user)

    def as_account(self, namespace: str, name: str) -> "RealApi":
        """Ask with a token of a ServiceAccount."""
        path = f"{SERVICE_ACCOUNT.path(namespace, name)}/token"
        made = self.ask("POST", path, {"kind": "TokenRequest", "spec": {}})
        return replace(self, token=made["status"]["token"])

    def get(self, kind: Kind, name: NamespacedName) -> Object:
        return self.ask("GET", kind.path(*name))

    def all(self, kind: Kind, namespace: str) -> list[Object]:
        return list(self.ask("GET", kind.path(namespace))["items"])

    def create(self, kind: Kind, content: Object) -> Object:
        content = {"apiVersion": kind.api_version, "kind": kind.name, **content}
        return self.ask("POST", kind.path(content["metadata"].get("namespace")), content)

    def merge(self, kind: Kind, name: NamespacedName, change: Object) -> Object:
        """Change an object, as `kubectl patch --type=merge` would."""
        patch = "application/merge-patch+json"
        return self.ask("PATCH", f"{kind.path(*name)}?fieldManager=kubectl-patch", change, patch)

    def delete(self, kind: Kind, name: NamespacedName) -> Object:
        return self.ask("DELETE", kind.path(*name))

    def ask(
        self, method: str, path: str, content: Any = None, media_type: str = "application/json"
    ) -> Any:
        body = None if content is None else json.dumps(content).encode()
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": media_type}
        if self.user:
            headers["Impersonate-User"] = self.user
        request = urllib.request.Request(self.url + path, body, headers, method=method)
        try:
            with urllib.request.urlopen(request, context=self.tls, timeout=10) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                raise ErrorResponse(error.code, error.read().decode()) from None


def kube() -> Path | None:
    """Find the program that contains all of Kubernetes; None if it is not installed."""
    command = [str(ROOT / "tools" / "cluster"), "path"]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    found = shutil.which("kube", path=told.stdout.strip()) if told.returncode == 0 else None
    return Path(found) if found else None


@contextlib.contextmanager
def real_api(program: Path, folder: Path) -> Iterator[RealApi]:
    """Serve a real API from this folder."""
    for name in ("etcd", "kube-apiserver"):
        (folder / name).symlink_to(program)
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (folder / "key.pem").write_bytes(key)
    (folder / "tokens.csv").write_text(f'{TOKEN},admin,1,"system:masters"\n')
    store, peers, port = (_free_port() for _ in range(3))
    with _running(folder, _etcd(store, peers)), _running(folder, _apiserver(store, port)):
        tls = ssl.create_default_context()
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        api = RealApi(f"https://127.0.0.1:{port}", tls)
        _wait(lambda: "kube-system" in _namespaces(api) and "default" in _namespaces(api))
        yield api


def install(api: RealApi, crd: Object) -> None:
    """Install a CRD, and wait until the API serves it."""
    api.create(CRDS, crd)
    spec = crd["spec"]
    path = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
    _wait(lambda: "items" in api.ask("GET", path))


def install_all(api: RealApi) -> None:
    """Install our CRDs."""
    for path in sorted((ROOT / "crds").glob("*.yaml")):
        install(api, yaml.safe_load(path.read_text(encoding="utf-8")))


def _etcd(port: int, peers: int) -> list[str]:
    url, peer_url = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peers}"
    listening = ["--listen-client-urls", url, "--advertise-client-urls", url]
    return ["etcd", "--data-dir=data", *listening, "--listen-peer-urls", peer_url]


def _apiserver(store: int, port: int) -> list[str]:
    return [
        "kube-apiserver",
        f"--etcd-servers=http://127.0.0.1:{store}",
        f"--secure-port={port}",
        "--bind-address=127.0.0.1",
        "--cert-dir=certificates",
        "--token-auth-file=tokens.csv",
        "--authorization-mode=RBAC",
        "--service-account-issuer=https://test",
        "--service-account-key-file=key.pem",
        "--service-account-signing-key-file=key.pem",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--allow-privileged=true",
        "--shutdown-delay-duration=0s",
    ]


@contextlib.contextmanager
def _running(folder: Path, command: list[str]) -> Iterator[None]:
    with (folder / f"{command[0]}.log").open("w") as log:
        started = [str(folder / command[0]), *command[1:]]
        process = subprocess.Popen(started, cwd=folder, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.kill()
            process.wait()


def _namespaces(api: RealApi) -> set[str]:
    return {
        content["metadata"]["name"] for content in api.ask("GET", "/api/v1/namespaces")["items"]
    }


def _wait(claim: Any) -> None:
    ends_at = time.monotonic() + SECONDS
    while True:
        with contextlib.suppress(ErrorResponse, OSError):
            if claim():
                return
        assert time.monotonic() < ends_at, "the API does not come up"
        time.sleep(0.1)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])
