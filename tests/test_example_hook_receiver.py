"""The example that receives hooks answers an agent with the right key, and nobody else."""

import base64
import hashlib
import hmac
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.redis_server import free_port
from support.stack import box, call, stage

from diptych.runs.definition import HookConfig

EXAMPLE = Path(__file__).parent.parent / "examples" / "hook_receiver.py"
KEY = "whsec_" + base64.b64encode(b"a key of thirty-two bytes or so.").decode()
OTHER = "whsec_" + base64.b64encode(b"another key of some more bytes..").decode()


@pytest.fixture(scope="module")
def receiver() -> Iterator[str]:
    port = free_port()
    environ = {**os.environ, "HOOK_KEY": KEY}
    process = subprocess.Popen([sys.executable, str(EXAMPLE), str(port)], env=environ)
    try:
        ends_at = time.monotonic() + 30
        while time.monotonic() < ends_at:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/"
    finally:
        process.kill()
        process.wait()


async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


CASES = [
    (80, KEY, "paid 80"),
    (800, KEY, "denied: Payments over 100 need a person."),
    (80, OTHER, "denied: the hook beforeCall at 127.0.0.1 answered with status 401"),
]


async def test_an_agent_is_answered_if_it_has_the_key(receiver: str) -> None:
    for amount, key, result in CASES:
        assert result in await results_of(receiver, amount, key)


async def results_of(receiver: str, amount: int, key: str) -> list[str]:
    hooks = (HookConfig("beforeCall", receiver, signing_key=lambda: key),)
    async with stage(call("pay", amount=amount), "{}", "x", tools=(box(pay),), hooks=hooks) as it:
        await it.answer()
        return [e["content"] for e in await it.memory() if e["event_type"].startswith("tool_")]


def signed(body: bytes, key: str, at: float, name: str = "msg_1") -> dict[str, str]:
    secret = base64.b64decode(key.removeprefix("whsec_"))
    digest = hmac.digest(secret, f"{name}.{int(at)}.".encode() + body, hashlib.sha256)
    return {
        "webhook-id": name,
        "webhook-timestamp": str(int(at)),
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }


BODY = json.dumps({"at": "beforeCall", "call": {"tool": "pay", "arguments": {}}}).encode()


def test_a_forged_an_old_and_a_changed_request_are_refused(receiver: str) -> None:
    now = time.time()
    good = signed(BODY, KEY, now)
    cases = {
        "good": (good, BODY, 200),
        "two signatures, one good": (
            {**good, "webhook-signature": f"v1,abc {good['webhook-signature']}"},
            BODY,
            200,
        ),
        "unsigned": ({}, BODY, 401),
        "another key": (signed(BODY, OTHER, now), BODY, 401),
        "old": (signed(BODY, KEY, now - 3_600), BODY, 401),
        "from the future": (signed(BODY, KEY, now + 3_600), BODY, 401),
        "an old one with a new time": (
            {**signed(BODY, KEY, now - 3_600), "webhook-timestamp": str(int(now))},
            BODY,
            401,
        ),
        "another id": ({**good, "webhook-id": "msg_2"}, BODY, 401),
        "another body": (good, BODY.replace(b"pay", b"see"), 401),
        "a timestamp that is none": ({**good, "webhook-timestamp": "-1"}, BODY, 401),
    }
    for name, (headers, body, status) in cases.items():
        reply = httpx.post(receiver, content=body, headers=headers)
        assert reply.status_code == status, name
