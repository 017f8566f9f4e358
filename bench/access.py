"""What it costs to ask who asks, and to count memory: S0 and S1 with and without.

    open            everybody may ask, at an address that others can reach
    token           the same token of a ServiceAccount with each request, as a peer or program sends
    new tokens      a token that was not seen before with each request: its signature is checked
    no governor     as `open`, and no memory is counted

Rounds are interleaved, and ratios are those of one round, as in `speed`. Aims: `token` within 3 %
of `open`, `open` within 1 % of `no governor`.
"""

import asyncio
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

from bench import client, speed
from bench.processes import Backends, Peer, await_ready, free_port, started
from bench.report import table

ISSUER = "https://kubernetes.default.svc"
NAME = "bench"
KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
SCENARIOS = ("S0", "S1")
FIELDS = b"content-type: application/json"


@dataclass(slots=True)
class Way:
    """One way to ask: whom, and whether with a token, or with a new one each time."""

    peer: Peer
    has_token: bool = False
    is_new: bool = False
    count: int = 0

    def request(self, question: bytes) -> bytes:
        """Write the next request."""
        if not self.has_token:
            return question
        self.count += self.is_new
        proof = f"authorization: Bearer {token(self.count)}\r\n".encode()
        return question.replace(FIELDS, proof + FIELDS)


async def measure(behind: Backends, effort: speed.Effort) -> str:
    """Run the scenarios and give a table for each, as Markdown."""
    with contextlib.ExitStack() as stack:
        opened = stack.enter_context(_served(behind, "--open"))
        closed = stack.enter_context(_served(behind))
        ungoverned = stack.enter_context(_served(behind, "--open", module="bench.ungoverned"))
        ways = {
            "open": Way(opened),
            "token": Way(closed, has_token=True),
            "new tokens": Way(closed, has_token=True, is_new=True),
            "no governor": Way(ungoverned),
        }
        tables = []
        for name in SCENARIOS:
            question = client.question(*speed.SCENARIOS[name])
            tables.append(_shown(name, await _compare(ways, question, effort)))
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


async def _compare(
    ways: Mapping[str, Way], question: bytes, effort: speed.Effort
) -> dict[str, speed.Measured]:
    results = {name: speed.Measured() for name in ways}
    for way in ways.values():
        await client.load(way.peer.port, way.request(question), 4, speed.WARM_UP)
    names = [*ways]
    for _ in range(effort.rounds):
        timings: dict[str, list[client.Timing]] = {name: [] for name in names}
        used = dict.fromkeys(names, 0.0)
        for _ in range(effort.slices):
            for name in names:
                requests = [ways[name].request(question) for _ in range(speed.SLICE)]
                before = ways[name].peer.cpu()
                timings[name] += await _ask(ways[name], requests)
                used[name] += ways[name].peer.cpu() - before
            names = [*names[1:], names[0]]  # nobody always goes first
        for name, found in timings.items():
            results[name].p50.append(statistics.median(t.whole for t in found) * 1e3)
            results[name].cpu.append(used[name] * 1e3 / len(found))
    return results


async def _ask(way: Way, requests: list[bytes]) -> list[client.Timing]:
    """Ask one after another; with one request over and over, over one connection."""
    if not way.is_new:
        return (await client.load(way.peer.port, requests[0], 1, len(requests))).timings
    loop = asyncio.get_running_loop()
    _, asker = await loop.create_connection(
        lambda: client.RunCaller(requests[0]), "127.0.0.1", way.peer.port
    )
    try:
        found = []
        for request in requests:
            asker.request = request
            found.append(await asker.ask())
        return found
    finally:
        asker.close()


@contextlib.contextmanager
def _served(behind: Backends, *flags: str, module: str = "diptych") -> Iterator[Peer]:
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


def _shown(scenario: str, results: Mapping[str, speed.Measured]) -> str:
    beside = {"token": "open", "new tokens": "open", "open": "no governor"}
    rows = []
    for name, one in results.items():
        other = results[beside.get(name, name)]
        ratios = (speed.ratio(one.p50, other.p50), speed.ratio(one.cpu, other.cpu))
        rows.append(
            [
                name,
                f"{statistics.median(one.p50):.2f}",
                f"{statistics.median(one.cpu):.2f}",
                beside.get(name, ""),
                *(f"{ratio:.3f}" for ratio in ratios),
            ]
        )
    return table([scenario, "p50 ms", "CPU ms", "beside", "p50", "CPU"], rows)
