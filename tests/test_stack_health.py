"""`/ready`, `/health`, `/metrics`, pings: what platforms and proxies look at."""

import asyncio
import re
from typing import Any

import httpx
import pytest
from support.model_server import model_server, silence, status
from support.redis_server import free_port
from support.stack import agent, box, call, frames, stage, tool_server, until

from diptych.access.grants import Grant, Grantee, Right
from diptych.core.errors import ConfigError
from diptych.http import chat
from diptych.http import sse_response as sse
from diptych.manifest.settings import (
    AccessConfig,
    AgentConfig,
    ModelConfig,
    PeerConfig,
    TimeoutConfig,
    ToolServerConfig,
)
from diptych.net import name_server
from diptych.policy.unmatched import NamedCalls
from diptych.serve import hosted_agent
from diptych.serve.process import ListenAddress, Sockets, serve_agents

AWAY = "http://127.0.0.1:9"


async def echo(text: str) -> str:
    """Say a text again."""
    return text


async def test_ready_says_that_a_script_answers_and_that_memory_does_not_last() -> None:
    async with stage("{}", "x") as helper:
        ready = await helper.http.get("/ready")
        assert ready.status_code == 200
        body = ready.json()
        assert (body["status"], body["agent"], body["missing"]) == ("ready", "helper", [])
        assert any("DEBUG_MOCK_RESPONSES is on" in note for note in body["notes"])
        assert (await helper.http.get("/health")).json() == {"status": "ok", "agent": "helper"}


async def test_ready_and_the_log_name_rules_that_match_nothing_once_offers_are_known(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hosted_agent, "OFFERS_SECONDS", 0.05)
    rules = (NamedCalls("spec.a", "tool", "box__ehco"), NamedCalls("spec.b", "tool", "pay*"))
    wrong = "no tool is called box__ehco, so this has no effect (did you mean box__echo?)"
    glob = "spec.b: no tool matches pay*, so this has no effect"

    def lines() -> list[str]:
        return [r.getMessage() for r in caplog.records if r.name == hosted_agent.__name__]

    port = free_port()
    server = ToolServerConfig("box", url=f"http://127.0.0.1:{port}/mcp")
    async with stage("{}", "x", tools=(server,), named_calls=rules) as helper:
        away = (await helper.http.get("/ready")).json()
        assert [missing["kind"] for missing in away["missing"]] == ["server"]
        await asyncio.sleep(0.1)
        assert lines() == []  # a server that was never reached may have that tool
        async with tool_server(echo, port=port):
            await until(lambda: len(lines()) == 2)
            await asyncio.sleep(0.2)
            assert lines() == [f"agent helper: spec.a: {wrong}", f"agent helper: {glob}"]
            ready = await helper.http.get("/ready")
    assert ready.status_code == 200
    assert ready.json()["missing"] == [{"kind": "rule", "name": "spec.a", "reason": wrong}]
    assert glob in ready.json()["notes"]


async def test_ready_and_metrics_name_a_model_that_fails_also_after_runs() -> None:
    async with model_server(status(501)) as model, stage(model=model) as helper:
        assert (await helper.http.get("/ready")).json()["missing"] == []
        asked = {"messages": [{"role": "user", "content": "Hi."}]}
        assert (await helper.http.post("/v1/chat/completions", json=asked)).status_code >= 500
        ready = await helper.http.get("/ready")
        assert ready.status_code == 200  # the agent takes runs; it says why they fail
        [missing] = ready.json()["missing"]
        assert missing["kind"] == "model"
        assert missing["reason"].startswith("failed since 20")
        text = (await helper.http.get("/metrics")).text
        assert counted(text)['diptych_model_errors_total{reason="model_failed"}'] >= 1


async def test_ready_names_a_model_that_is_away_before_any_run() -> None:
    config = AgentConfig("helper", model=ModelConfig("m", f"{AWAY}/v1"))
    async with serve_agents([config], Sockets(ListenAddress(port=0), 1)) as (served,):
        async with asyncio.timeout(5):
            while not served.readiness().unavailable:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.02)
        [missing] = served.readiness().unavailable
        assert missing.kind == "model"
        assert missing.reason.startswith("unreachable since 20")


async def test_ready_is_red_until_all_was_tried_once_and_when_the_agent_leaves() -> None:
    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    silent = await asyncio.start_server(deaf, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}/mcp"
    config = agent("{}", "x", tools=(ToolServerConfig("deaf", url=url),))
    sockets = Sockets(ListenAddress(port=0), 1)
    async with silent, serve_agents([config], sockets) as (served,):
        async with httpx.AsyncClient(base_url=served.url) as http:
            ready = await http.get("/ready")
            assert ready.status_code == 503
            assert "first time" in ready.json()["reason"]
            assert (await http.get("/health")).status_code == 200
            served.runs.stop_admitting()
            ready = await http.get("/ready")
            assert ready.status_code == 503
            assert ready.json()["reason"] == "shutting down"
            assert ready.json()["status"] == "not ready"


MODEL_CALLS = 'diptych_model_calls_total{endpoint="",model="DEBUG_MOCK_RESPONSES",outcome="ok"}'


def counted(text: str) -> dict[str, float]:
    lines = re.findall(r"^(diptych_\w+(?:\{[^}]*\})?) ([0-9.e+]+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in lines}


async def test_metrics_count_what_happened() -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 2}
    replies = [
        {"content": call("echo", text="x"), "usage": usage},
        {"content": call("nope"), "usage": usage},
        {"content": "{}", "usage": usage},
        {"content": "Done.", "usage": usage},
    ]
    async with stage(*replies, tools=(box(echo),)) as helper:
        await helper.answer()
        response = await helper.http.get("/metrics")
        assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
        counts = counted(response.text)
        expected = {
            'diptych_runs_total{status="completed"}': 1,
            MODEL_CALLS: 4,
            'diptych_tokens_total{kind="prompt"}': 40,
            'diptych_tokens_total{kind="completion"}': 8,
            'diptych_calls_total{kind="tool",outcome="ok"}': 1,
            'diptych_action_errors_total{error_type="unknown_tool"}': 1,
            "diptych_run_seconds_count": 1,
            "diptych_first_text_seconds_count": 1,
            "diptych_live_runs": 0,
            "diptych_dropped_runs": 0,
        }
        assert {name: counts.get(name) for name in expected} == expected


async def test_metrics_with_a_port_of_their_own_are_there_alone_and_ask_for_no_token() -> None:
    may_ask = Grant((Grantee("key", "ci"),), frozenset({Right.ASK}))
    access = AccessConfig(keys={"ci": lambda: "a key of some length"}, grants=(may_ask,))
    configs = [agent("{}", "x", name=name, access=access) for name in ("one", "two")]
    sockets, metrics = Sockets(ListenAddress("0.0.0.0", 0), 2), Sockets(ListenAddress(), 2)
    async with (
        serve_agents(configs, sockets, metrics) as agents,
        httpx.AsyncClient(headers={"Authorization": "Bearer a key of some length"}) as ours,
        httpx.AsyncClient() as anybody,
    ):
        one, two = agents
        assert (await ours.get(f"{one.url}/metrics")).status_code == 404
        assert (await ours.get(f"{one.url}/v1/runs")).status_code == 200
        assert (await ours.post(f"{one.url}/v1/runs", json={"input": "x"})).status_code == 202
        live = "diptych_live_runs"
        answers = [await anybody.get(f"{url}/metrics") for url in metrics.urls]
        assert [live in counted(answer.text) for answer in answers] == [True, True]
        assert (await anybody.get(f"{two.url}/health")).status_code == 200
        for path in ("/health", "/v1/runs", "/memory/events", "/openapi.json", "/docs", "/"):
            assert (await ours.get(f"{metrics.urls[0]}{path}")).status_code == 404


async def test_metrics_on_loopback_are_not_told_to_foreign_pages() -> None:
    metrics = Sockets(ListenAddress(), 1)
    async with (
        serve_agents([agent("{}", "x")], Sockets(ListenAddress(), 1), metrics),
        httpx.AsyncClient() as page,
    ):
        foreign = await page.get(f"{metrics.urls[0]}/metrics", headers={"Host": "evil.example"})
        assert foreign.status_code == 421


def test_a_port_of_metrics_that_is_taken_is_named_by_its_variable() -> None:
    taken = Sockets(ListenAddress(), 1)
    (port,) = [sock.getsockname()[1] for sock in taken]
    try:
        [sock.listen() for sock in taken]
        with pytest.raises(ConfigError, match=f"METRICS_PORT {port}: .*METRICS_PORT=0 takes"):
            Sockets(ListenAddress("127.0.0.1", port, "METRICS_PORT"), 1)
    finally:
        taken.close()


async def test_a_stream_is_opened_after_a_while_and_pinged_while_it_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert (chat.FIRST_FRAME_SECONDS, sse.PING_SECONDS) == (10, 15)
    monkeypatch.setattr(chat, "FIRST_FRAME_SECONDS", 0.05)
    monkeypatch.setattr(sse, "PING_SECONDS", 0.02)
    quick = TimeoutConfig(connect=1, first_byte=0.8, idle=1, total=2)
    async with (
        model_server(silence) as model,
        stage(model=model, timeouts=quick) as helper,
    ):
        response = await helper.chat(stream=True)
        assert response.status_code == 200
        assert response.text.startswith(": ping")
        (error,) = frames(response.text)
        assert error.json["error"]["code"] == "model_timeout"


async def test_what_a_silent_name_server_hides_has_one_cause(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "resolv.conf").write_text("nameserver 127.0.0.1\n")
    monkeypatch.setattr(name_server, "RESOLV_CONF", tmp_path / "resolv.conf")
    monkeypatch.setattr(name_server, "DNS_PORT", 9)  # where nobody listens
    monkeypatch.setattr(name_server, "CHECK_SECONDS", 0.05)
    fields: dict[str, Any] = {
        "tools": (
            ToolServerConfig("named", url="http://calc.invalid/mcp"),
            ToolServerConfig("numbered", url=f"{AWAY}/mcp"),
        ),
        "agents": (PeerConfig("writer", "http://writer.invalid"),),
    }
    async with stage("{}", "x", **fields) as helper:
        for _ in range(200):
            await asyncio.sleep(0.05)
            if (missing := await missing_of(helper))[0][0] == "dns":
                break
    assert missing == [("dns", "127.0.0.1"), ("server", "numbered")]


async def missing_of(helper: Any) -> list[tuple[str, str]]:
    body = (await helper.http.get("/ready")).json()
    return [(one["kind"], one["name"]) for one in body["missing"]]
