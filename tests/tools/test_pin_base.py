"""`tools/pin_base.py` asks a registry; here one of our own, which speaks as Docker's does."""

import hashlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INDEX = "application/vnd.oci.image.index.v1+json"
BODY = json.dumps({"manifests": []}).encode()
DIGEST = f"sha256:{hashlib.sha256(BODY).hexdigest()}"


@dataclass
class Registry:
    """What it sends, and what it was asked."""

    kind: str = INDEX
    digest: str = DIGEST
    url: str = ""
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def registry() -> Iterator[Registry]:
    found = Registry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            found.asked.append(self.path)
            if self.path.startswith("/token"):
                return self.answer(200, json.dumps({"token": "t"}).encode())
            if self.headers.get("Authorization") != "Bearer t":
                scope = 'service="registry",scope="repository:library/python:pull"'
                challenge = f'Bearer realm="{found.url}/token",{scope}'
                return self.answer(401, b"", **{"WWW-Authenticate": challenge})
            assert INDEX in self.headers["Accept"]
            sent = {"Content-Type": found.kind, "Docker-Content-Digest": found.digest}
            return self.answer(200, BODY, **sent)

        def answer(self, status, body, **headers):
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield found
        server.shutdown()
        thread.join()


def pin(registry: Registry, file: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "pin_base.py")]
    options = ["--registry", registry.url, "--file", str(file)]
    return subprocess.run([*command, *options], capture_output=True, text=True, check=False)


@pytest.fixture
def dockerfile(tmp_path: Path) -> Path:
    file = tmp_path / "Dockerfile"
    file.write_text((ROOT / "Dockerfile").read_text())
    return file


def test_the_digest_of_the_tag_is_written_into_the_dockerfile(registry, dockerfile):
    before = dockerfile.read_text()
    told = pin(registry, dockerfile)
    assert told.returncode == 0, told.stderr
    pinned = f"ARG BASE=python:3.13-slim@{DIGEST}"
    assert pinned in dockerfile.read_text().splitlines()
    assert registry.asked[-1] == "/v2/library/python/manifests/3.13-slim"
    assert "scope=repository:library/python:pull" in registry.asked[1]
    lines = [line for line in before.splitlines() if not line.startswith("ARG BASE=")]
    assert [x for x in dockerfile.read_text().splitlines() if x != pinned] == lines
    assert pin(registry, dockerfile).returncode == 0  # a newer digest replaces an older one
    assert dockerfile.read_text().count("@sha256:") == 1


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        pytest.param({"digest": "sha256:" + "0" * 64}, "and what it sends is", id="another digest"),
        pytest.param({"kind": "text/html"}, "no index of images", id="one architecture, or none"),
    ],
)
def test_what_does_not_agree_is_not_written(registry, dockerfile, fault, said):
    for name, value in fault.items():
        setattr(registry, name, value)
    before = dockerfile.read_text()
    told = pin(registry, dockerfile)
    assert told.returncode == 1
    assert said in told.stderr
    assert dockerfile.read_text() == before


def test_a_registry_that_is_away_is_told_in_a_sentence(dockerfile):
    told = pin(Registry(url="http://127.0.0.1:1"), dockerfile)
    assert told.returncode == 1
    assert told.stderr.startswith("the digest of python:3.13-slim cannot be had from http://127")


def test_both_stages_of_the_image_are_of_the_base_that_is_pinned():
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    assert [line.split()[1] for line in lines if line.startswith("FROM ")] == ["${BASE}"] * 2
