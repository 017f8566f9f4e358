"""A canary in every secret of an agent, and everybody repeats all of them in every form."""

import base64
import json
import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import mcp_types
import pytest
from support.hostile import listed, mcp_app, serving
from support.model_server import Exchange, Step, breaks_off, model_server, says, status
from support.stack import call

from diptych.manifest.loader import LocalOptions, load_agents
from diptych.net.redaction import MARK
from diptych.serve.logs import set_up_logging
from diptych.serve.process import ListenAddress, Sockets, serve_agents
from diptych.stores.redis.settings import read_url

MODEL = "sk-canary-Model7q2Zx9Lw"
MODEL_HEADER = "hdr-canary-Tenant4Yp8Rk"
TOOL_HEADER = "tok-canary-Tool6Vb3Nj1"
QUERY = "qry-canary-Version1Zt5Ob"
TOOL_ENV = "env-canary-Stdio5Gd0Hs"
REDIS = "pwd-canary-Redis2Fm7Qa"
ACCESS = "key-canary-Access8Uc4Te"
CANARIES = (MODEL, MODEL_HEADER, TOOL_HEADER, TOOL_ENV, ACCESS)

STDIO = """
import os, sys
secret = os.environ["SECRET"]
sys.exit(f"{secret} {secret!r} {sorted(os.environ)}")
"""
MANIFEST = """
apiVersion: diptych.dev/v1alpha1
kind: Agent
metadata: {{name: clerk}}
spec:
  model:
    name: m
    endpoint: "{model}?api-version={query}"
    apiKey: {{secretKeyRef: {{name: c, key: model}}}}
    headers: [{{name: X-Tenant, valueFrom: {{secretKeyRef: {{name: c, key: tenant}}}}}}]
  tools:
  - name: bank
    url: {bank}/mcp
    headers: [{{name: Authorization, valueFrom: {{secretKeyRef: {{name: c, key: tool}}}}}}]
  - name: broken
    command: [{python}, -c, {stdio}]
    env: [{{name: SECRET, valueFrom: {{secretKeyRef: {{name: c, key: env}}}}}}]
  access: {{keys: [{{name: ci, secretKeyRef: {{name: c, key: access}}}}]}}
  agents:
  - {{as: gone, url: "http://127.0.0.1:9"}}
"""
ENVIRON = {
    "C_MODEL": MODEL,
    "C_TENANT": MODEL_HEADER,
    "C_TOOL": f"Bearer {TOOL_HEADER}",
    "C_ENV": TOOL_ENV,
    "C_ACCESS": ACCESS,
}


def forms(canary: str) -> Iterator[str]:
    """Yield the ways in which a secret may be repeated: as it is, encoded, escaped."""
    yield from (canary, f"{canary}{canary}")
    for shift in range(3):
        yield base64.b64encode(b"x" * shift + canary.encode()).decode()
    yield base64.urlsafe_b64encode(canary.encode()).decode()


SHOUT = "; ".join(form for canary in CANARIES for form in forms(canary))


def found_in(text: str) -> list[str]:
    """Return what a text contains of any canary: 12 characters, or all of it in base64."""
    pieces = [canary[n : n + 12] for canary in CANARIES for n in range(len(canary) - 11)]
    encoded = [
        base64.b64encode(b"xyz"[:n] + canary.encode()).decode()[4:-4]
        for canary in CANARIES
        for n in range(3)
    ]
    return sorted(each for each in (*pieces, *encoded) if each in text)


def leaking_tools() -> Any:
    schema = {"type": "object", "description": SHOUT, "properties": {"text": {"default": SHOUT}}}
    tools = [
        listed("speak", SHOUT, schema),
        listed("fail", "Fail."),
        listed(MODEL, "A name that is a secret."),
    ]
    text = mcp_types.TextContent(type="text", text=SHOUT)
    answer = mcp_types.CallToolResult(content=[text], structured_content={"a": [SHOUT], MODEL: 1})
    return mcp_app(tools, answer)


def streamed_bit_by_bit(size: int) -> Step:
    async def stream(exchange: Exchange) -> Any:
        response = await exchange.open(*(SHOUT[n : n + size] for n in range(0, len(SHOUT), size)))
        done = b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\n'
        await response.write(done)
        return response

    return stream


async def all_that_is_shown(http: httpx.AsyncClient) -> str:
    paths = ["/memory/events", "/memory/sessions", "/v1/runs", "/metrics", "/ready", "/health"]
    paths += ["/v1/models", "/.well-known/agent-card.json", "/openapi.json"]
    runs = (await http.get("/v1/runs?limit=100")).json()["data"]
    paths += [f"/v1/runs/{run['id']}" for run in runs]
    paths += [f"/v1/runs/{run['id']}/events" for run in runs]
    answers = [await http.get(path) for path in paths]
    return "\n".join(f"{answer.url} {answer.headers} {answer.text}" for answer in answers)


FAULTS: dict[str, tuple[Step, ...]] = {
    "401": (status(401, f'{{"error": {{"message": "{SHOUT}", "code": "{MODEL}"}}}}'),),
    "400": (status(400, f'{{"error": {{"message": "{SHOUT}"}}}}'),),
    "500 in plain text": (status(501, SHOUT, X_Echo=MODEL),),
    "an error in a success": (status(200, f'{{"error": {{"message": "{SHOUT}"}}}}'),),
    "no reply at all": (status(200, SHOUT),),
    "an answer": ("{}", SHOUT),
    "an answer bit by bit": ("{}", streamed_bit_by_bit(3)),
    "an answer that breaks off": ("{}", breaks_off(*SHOUT.split(" "))),
    "an odd end": ("{}", says("So.", finish_reason=MODEL)),
    "reasoning": (f"<think>{SHOUT}</think>{{}}", f"<think>{SHOUT}</think>So."),
    "a tool's result": (call("speak", text=SHOUT), "{}", SHOUT),
    "a tool that is not there": (call(MODEL, text=SHOUT), "{}", "So."),
    "no arguments": (call("speak", text=5, **{MODEL: SHOUT}), call("fail"), "{}", "So."),
    "no action": (f'{{"tool": "{SHOUT}", {MODEL}', "{}", "So."),
    "an agent": (f'{{"agent": "gone", "task": "{SHOUT}"}}', "{}", "So."),
}


async def test_no_canary_is_shown_whatever_fails(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    set_up_logging("DEBUG", "text")
    async with model_server("{}") as model, serving(leaking_tools()) as bank:
        file = tmp_path / "agent.yaml"
        words = {"query": QUERY, "python": sys.executable, "stdio": json.dumps(STDIO)}
        file.write_text(MANIFEST.format(model=model.url, bank=bank, **words))
        sockets = Sockets(ListenAddress("0.0.0.0", 0), 1)
        configs = load_agents([file], LocalOptions(ENVIRON)).resolve(sockets.urls)
        async with (
            serve_agents(configs, sockets) as (served,),
            httpx.AsyncClient(base_url=served.url, timeout=20) as http,
        ):
            await served.wait_for_first_connect()
            http.headers["Authorization"] = f"Bearer {ACCESS}x"
            refused = await http.get("/v1/runs")
            assert refused.status_code == 401
            shown = f"{refused.headers} {refused.text}"
            http.headers["Authorization"] = f"Bearer {ACCESS}"
            for steps in FAULTS.values():
                for streamed in (False, True):
                    model.play(*steps)
                    said = [{"role": "user", "content": "hi"}]
                    body = {"messages": said, "stream": streamed}
                    answer = await http.post("/v1/chat/completions", json=body)
                    shown += f"{answer.headers} {answer.text}"
            shown += await all_that_is_shown(http)
    logged = "".join(capfd.readouterr())
    assert model.headers[0]["X-Tenant"] == MODEL_HEADER
    assert shown.count(MARK) > 100
    assert MARK in logged
    joined = without_frames(shown)
    assert (found_in(shown), found_in(joined), found_in(logged)) == ([], [], [])


def without_frames(shown: str) -> str:
    """Join the pieces of streamed answers, as a reader does."""
    return "".join(re.findall(r'"delta":\{[^}]*?"content":"((?:[^"\\]|\\.)*)"', shown))


async def test_a_store_that_cannot_be_reached_shows_no_password(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    set_up_logging("DEBUG", "json")
    file = tmp_path / "agent.yaml"
    file.write_text(
        MANIFEST[: MANIFEST.index("  model:")].replace("{{", "{").replace("}}", "}")
        + "  container: {env: [{name: DEBUG_MOCK_RESPONSES, value: '[\"{}\"]'}]}\n"
        + "  sessions: {redis: {urlFrom: {secretKeyRef: {name: c, key: redis}}}}\n"
    )
    environ = {"C_REDIS": f"redis://:{REDIS}@127.0.0.1:9/0"}
    sockets = Sockets(ListenAddress(), 1)
    configs = load_agents([file], LocalOptions(environ)).resolve(sockets.urls)
    async with (
        serve_agents(configs, sockets) as (served,),
        httpx.AsyncClient(base_url=served.url, timeout=20) as http,
    ):
        await served.wait_for_first_connect()
        shown = (await http.get("/ready")).text
        answer = await http.post("/v1/runs", json={"input": f"Say {REDIS}"})
        shown += f"{answer.headers} {answer.text}"
        logging.getLogger("diptych").warning("the store said: %s %s", REDIS, REDIS)
    logged = "".join(capfd.readouterr())
    assert (answer.status_code, found_in(shown), found_in(logged)) == (503, [], [])
    assert logged.count(MARK) == 2


def test_a_store_s_url_that_cannot_be_read_shows_nothing_of_itself() -> None:
    for url in (f"redis://:{REDIS}@h:port", f"http://:{REDIS}@h", f"redis://:{REDIS}@h/x?y=z"):
        with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever it is
            read_url(url)
        assert not found_in(f"{caught.value!r} {caught.value.__cause__!r}")
