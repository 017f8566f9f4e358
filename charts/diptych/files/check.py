"""`helm test`: make an Agent as a user would, ask it, delete it. Prints what it does.

With NAMESPACE empty only the operator is asked how it is.
"""
# ruff: noqa: INP001, S310, T201 - a script of its own, which talks to the URLs it is given

import json
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

ANSWER = "The chart's test has reached its agent."
SECONDS = 90
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
AGENT_TOKEN = Path("/var/run/secrets/diptych.dev/token")


def main() -> None:
    """Ask the operator, then an agent; end with a sentence and 1 if that does not work."""
    until = time.monotonic() + SECONDS
    say("asking the operator how it is")
    wait(until, lambda: request(f"{os.environ['OPERATOR']}/healthz") is not None)
    namespace, name = os.environ["NAMESPACE"], os.environ["AGENT"]
    if not namespace:
        return say("the operator is well")
    agents = f"/apis/diptych.dev/v1alpha1/namespaces/{namespace}/agents"
    say(f"making Agent {name} in namespace {namespace}")
    api("POST", agents, manifest(name))
    try:
        try:
            wait(until, lambda: is_ready(api("GET", f"{agents}/{name}")))
        except SystemExit:
            for condition in api("GET", f"{agents}/{name}").get("status", {}).get("conditions", []):
                say("  {type}={status} {reason}: {message}".format_map(condition))
            raise
        say("it is ready; asking it")
        wait(until, lambda: ask(f"http://{name}.{namespace}:8000") == ANSWER)
        say(f"it has answered: {ANSWER}")
    finally:
        api("DELETE", f"{agents}/{name}")


def manifest(name: str) -> dict[str, Any]:
    """Give an Agent that needs no model."""
    script = json.dumps(["{}", ANSWER])
    return {
        "apiVersion": "diptych.dev/v1alpha1",
        "kind": "Agent",
        "metadata": {"name": name},
        "spec": {"container": {"env": [{"name": "DEBUG_MOCK_RESPONSES", "value": script}]}},
    }


def is_ready(agent: dict[str, Any]) -> bool:
    """Whether an Agent is Ready."""
    conditions = agent.get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def ask(url: str) -> str:
    """Give the agent's answer; none while it does not answer."""
    body = {"messages": [{"role": "user", "content": "Are you there?"}]}
    reply = request(f"{url}/v1/chat/completions", body)
    return str(json.loads(reply)["choices"][0]["message"]["content"]) if reply else ""


def api(method: str, path: str, body: object = None) -> dict[str, Any]:
    """Ask the Kubernetes API, with the pod's own account."""
    host = (
        f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"
    )
    asked = urllib.request.Request(
        host + path,
        json.dumps(body).encode() if body else None,
        {
            "authorization": f"Bearer {(ACCOUNT / 'token').read_text()}",
            "content-type": "application/json",
        },
        method=method,
    )
    trusted = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    try:
        with urllib.request.urlopen(asked, timeout=10, context=trusted) as reply:
            return dict(json.load(reply))
    except urllib.error.HTTPError as error:
        raise SystemExit(f"{method} {path}: {error.code} {error.read().decode()[:500]}") from error


def request(url: str, body: object = None) -> bytes | None:
    """GET, or POST a body to the agent; None while nothing good comes back."""
    data = json.dumps(body).encode() if body else None
    headers = {"content-type": "application/json"}
    if body:
        headers["authorization"] = f"Bearer {AGENT_TOKEN.read_text()}"
    asked = urllib.request.Request(url, data, headers)
    try:
        with urllib.request.urlopen(asked, timeout=10) as reply:
            return bytes(reply.read())
    except OSError:
        return None


def wait(until: float, holds: Callable[[], bool]) -> None:
    """Wait for something to come true, at most until a point of the monotonic clock."""
    while not holds():
        if time.monotonic() > until:
            raise SystemExit(f"this did not come true within {SECONDS} s")
        time.sleep(1)


def say(sentence: str) -> None:
    """Tell whoever reads the test's log."""
    print(sentence, flush=True)


main()
