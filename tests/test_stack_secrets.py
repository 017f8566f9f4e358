"""Canaries: what is secret is in no response, no event, no metric and no log line."""

import logging
from typing import Any

import pytest
from support.model_server import ModelServer, breaks_off, model_server, status
from support.stack import Stage, call, stage, tool_server

from diptych.manifest.settings import PeerConfig, ToolServerConfig

KEY = "sk-canary-key-0123456789"
HEADER = "canary-header-value"
UPSTREAM = "canary-upstream-body"
QUERY = "canary-query"


async def echo(text: str) -> str:
    """Say a text again."""
    return text


async def leak() -> str:
    """Fail with words that are the server's own."""
    raise RuntimeError(UPSTREAM)


async def all_that_is_shown(helper: Stage) -> str:
    paths = [
        "/memory/events",
        "/memory/sessions",
        "/v1/runs",
        "/metrics",
        "/ready",
        "/health",
        "/v1/models",
        "/.well-known/agent-card.json",
        "/openapi.json",
    ]
    runs = (await helper.http.get("/v1/runs")).json()["data"]
    paths += [f"/v1/runs/{run['id']}" for run in runs]
    paths += [f"/v1/runs/{run['id']}/events" for run in runs]
    return "\n".join([(await helper.http.get(path)).text for path in paths])


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(status(401, f'{{"error": {{"message": "wrong key {KEY}"}}}}'), id="401"),
        pytest.param(status(429, UPSTREAM, Retry_After="0", X_Secret=HEADER), id="429"),
        pytest.param(status(501, UPSTREAM, X_Secret=HEADER), id="501"),
        pytest.param(status(200, UPSTREAM), id="garbage"),
        pytest.param(status(400, f'{{"error": {{"message": "bad key {KEY}"}}}}'), id="400"),
        pytest.param(breaks_off("Half "), id="half a stream"),
        pytest.param("All is well.", id="no fault"),
    ],
)
async def test_no_secret_is_ever_shown(fault: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with (
        model_server("{}", fault) as model,
        tool_server(echo, leak) as tools,
        stage(model=with_query(model), api_key=lambda: KEY, **wary(tools)) as helper,
    ):
        shown = ""
        for stream, *steps in (
            (False, fault),
            (True, "{}", fault),
            (True, call("leak"), call("echo", text="x"), fault),
        ):
            model.play(*steps)
            response = await helper.chat(stream=stream)
            shown += f"{response.headers} {response.text}"
        shown += await all_that_is_shown(helper)
    assert model.headers[0]["Authorization"] == f"Bearer {KEY}"
    for secret in (KEY, HEADER, UPSTREAM, QUERY):
        assert secret not in shown
        assert secret not in our_own(caplog)


def with_query(model: ModelServer) -> ModelServer:
    return ModelServer(model.steps, f"{model.url}?api-version={QUERY}")


def wary(tools: ToolServerConfig) -> dict[str, Any]:
    assert tools.url
    secret = {"Authorization": lambda: f"Bearer {HEADER}"}
    return {
        "tools": (
            ToolServerConfig("box", url=tools.url, headers=secret),
            ToolServerConfig("away", url="http://127.0.0.1:9/mcp", headers=secret),
        ),
        "agents": (PeerConfig("gone", "http://127.0.0.1:9", headers=secret),),
    }


def our_own(caplog: pytest.LogCaptureFixture) -> str:
    """Give all log lines but those of the libraries that the test's own servers run on."""
    lines = [
        f"{record.getMessage()} {record.exc_text or ''}"
        for record in caplog.records
        if not record.name.startswith(("mcp.server", "uvicorn", "httpx", "httpcore"))
    ]
    return "\n".join(lines)
