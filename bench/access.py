"""What it costs to ask who asks, and to count memory: with and without.

    open            everybody may ask, at an address that others can reach
    open, again     a second such agent: how much the machine itself makes of nothing
    token           the same token of a ServiceAccount with each request, as a peer or program sends
    new tokens      a token that was not seen before with each request: its signature is checked
    no governor     as `open`, and no memory is counted

Rounds are interleaved, and ratios are those of one round, as in `speed`. Aims: `token` within 3 %
of `open`, `open` within 1 % of `no governor`.
"""

import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

from bench import client, paired, speed
from bench.processes import Backends, Peer, await_ready, free_port, started

ISSUER = "https://kubernetes.default.svc"
NAME = "bench"
KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
_BESIDE = dict.fromkeys(("open, again", "token", "new tokens"), "open") | {"open": "no governor"}
FIELDS = b"content-type: application/json"


@dataclass(slots=True)
class TokenWay(paired.Way):
    """Asks with a token; with a new one each time, if its requests change."""

    count: int = 0

    def request(self, question: bytes) -> bytes:
        """Write the next request."""
        self.count += self.has_changing_requests
        proof = f"authorization: Bearer {token(self.count)}\r\n".encode()
        return question.replace(FIELDS, proof + FIELDS)


async def measure(behind: Backends, effort: speed.Effort) -> str:
    """Run the scenarios and give a table for each, as Markdown."""
    with contextlib.ExitStack() as stack:
        opened = stack.enter_context(served(behind, "--open"))
        again = stack.enter_context(served(behind, "--open"))
        closed = stack.enter_context(served(behind))
        ungoverned = stack.enter_context(served(behind, "--open", module="bench.ungoverned"))
        ways = {
            "open": paired.Way(opened),
            "open, again": paired.Way(again),
            "token": TokenWay(closed),
            "new tokens": TokenWay(closed, has_changing_requests=True),
            "no governor": paired.Way(ungoverned),
        }
        tables = []
        for name in effort.scenarios:
            question = client.question(*speed.SCENARIOS[name])
            results = await paired.compare(ways, question, effort)
            tables.append(paired.shown(name, results, _BESIDE))
    return "\n\n".join(tables)


def token(number: int = 0) -> str:
    """Sign a token as Kubernetes does, one for each number."""
    claims = {
        "iss": ISSUER,
        "aud": [f"diptych.dev/default/{NAME}"],
        "exp": int(time.time()) // 3600 * 3600 + 7200,
        "jti": str(number),
        "sub": "system:serviceaccount:default:web",
        "kubernetes.io": {"namespace": "default", "serviceaccount": {"name": "web", "uid": "u"}},
    }
    return jwt.encode(claims, KEY, "RS256", headers={"kid": "bench"})


@contextlib.contextmanager
def served(behind: Backends, *flags: str, module: str = "diptych") -> Iterator[Peer]:
    """Serve an agent as a pod does: with the files that the operator would have written."""
    with tempfile.TemporaryDirectory() as written:
        folder = Path(written)
        (folder / "access").mkdir()
        (folder / "access" / "platform.json").write_text(json.dumps(_platform()))
        (folder / "agent.yaml").write_text(json.dumps(_manifest(folder, behind)))
        port = free_port()
        place = ("--host", "0.0.0.0", "--port", str(port))
        command = [
            sys.executable,
            "-m",
            module,
            "serve",
            str(folder / "agent.yaml"),
            *place,
            *flags,
        ]
        environ = {"LOG_FORMAT": "json", "LOG_LEVEL": "INFO"}
        with started(" ".join((module, *flags)), command, environ, says_port=False) as peer:
            peer.port = port
            await_ready(port)
            yield peer


def _platform() -> dict[str, Any]:
    public = jwt.get_algorithm_by_name("RS256").to_jwk(KEY.public_key())
    cluster = {
        "url": ISSUER,
        "audience": f"diptych.dev/default/{NAME}",
        "jwks": {"keys": [{**json.loads(public), "kid": "bench"}]},
        "isCluster": True,
    }
    return {"issuers": [cluster], "grants": [], "agents": []}


def _manifest(folder: Path, behind: Backends) -> dict[str, Any]:
    return {
        "apiVersion": "diptych.dev/v1alpha1",
        "kind": "Agent",
        "metadata": {
            "name": NAME,
            "namespace": "default",
            "annotations": {"diptych.dev/references": str(folder)},
        },
        "spec": {
            "instructions": "You are a careful assistant.",
            "model": {"name": "instant-1", "endpoint": behind.model_url},
            "tools": [{"name": "echo", "url": behind.tools_url}],
        },
    }
