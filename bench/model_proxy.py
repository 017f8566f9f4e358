"""What a ModelAPI's proxy adds to a streamed reply: the model asked directly, and through it."""

import contextlib
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench import paired, speed
from bench.processes import ROOT, Backends, Peer, await_ready, free_port, started
from bench.report import table

sys.path.append(str(ROOT / "tests"))

from support.model_proxies import Files, token
from support.redis_server import RedisServer, redis_server

_PROMPT = "You are a careful assistant. " * 280  # 8 KB, as of an agent with tools
_DIRECT = "directly"


async def measure(behind: Backends, effort: speed.Effort) -> str:
    """Measure, and give a table."""
    with contextlib.ExitStack() as stack:
        redis = stack.enter_context(redis_server())
        ways = {
            _DIRECT: paired.Way(behind.model),
            "through the proxy": paired.Way(stack.enter_context(_proxy(behind))),
            "with a budget in Redis": paired.Way(stack.enter_context(_proxy(behind, redis))),
        }
        found = await paired.compare(ways, _question(), effort)
    rows = [
        [
            name,
            f"{statistics.median(one.first):.2f}",
            f"{_later(one.first, found[_DIRECT].first):+.2f}",
            f"{speed.ratio(one.first, found[_DIRECT].first):.1f}",
            f"{statistics.median(one.p50):.2f}",
            f"{statistics.median(one.cpu):.2f}",
        ]
        for name, one in found.items()
    ]
    head = ["model asked", "first token ms", "later by ms", "ratio", "whole reply ms", "CPU ms"]
    return table(head, rows)


def _later(ours: list[float], theirs: list[float]) -> float:
    return statistics.median(a - b for a, b in zip(ours, theirs, strict=True))


def _question() -> bytes:
    words = "rounds=0 calls=1 pace=0 Now provide your final response"
    messages = [{"role": "system", "content": _PROMPT}, {"role": "user", "content": words}]
    fields = {"model": "instant-1", "stream": True, "messages": messages}
    body = json.dumps(fields, separators=(",", ":")).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n"
        f"authorization: Bearer {token()}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


@contextlib.contextmanager
def _proxy(behind: Backends, redis: RedisServer | None = None) -> Iterator[Peer]:
    with tempfile.TemporaryDirectory() as folder:
        spec = {}
        if redis:
            (url := Path(folder, "redis")).write_text(redis.url)
            budget = {"perDay": {"tokens": 10**11}}
            spec = {"budget": budget, "redis": {"urlFrom": {"file": str(url)}}}
        Files(Path(folder), behind.model_url, models=["instant-*"], **spec)
        port = free_port()
        environ = {"DIPTYCH_PROXY_CONFIG": folder, "PORT": str(port)}
        command = [sys.executable, "-m", "diptych", "model-proxy", "--host", "127.0.0.1"]
        with started("proxy", command, environ, says_port=False) as peer:
            peer.port = port
            await_ready(port)
            yield peer
