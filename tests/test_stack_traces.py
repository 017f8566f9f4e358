"""Traces of agents on loopback, as a collector of OpenTelemetry gets them."""

import asyncio
import logging
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from mcp.server.mcpserver import Context
from support.collector import Collector, Span, collector
from support.model_server import model_server, silence, status
from support.stack import Stage, agent, box, call, stages, tool_server
from support.trees import delegates_to, said
from yarl import URL

from diptych.manifest.settings import AgentConfig, PeerConfig
from diptych.manifest.telemetry import TelemetrySettings, read_telemetry
from diptych.runs.definition import HookConfig

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CALLER = f"00-{TRACE_ID}-{SPAN_ID}-01"
CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


@pytest.fixture
async def traces(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Collector]:
    async with collector() as found:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
        yield found


def settings() -> TelemetrySettings | None:
    return read_telemetry(os.environ)[0]


def traced(*configs: AgentConfig) -> Any:
    return stages(*configs, telemetry=settings())


async def asked(stage: Stage, text: str = "hi", *, traceparent: str = CALLER, **body: Any) -> Any:
    messages = [{"role": "user", "content": text}]
    return await stage.http.post(
        "/v1/chat/completions",
        json={"messages": messages, **body},
        headers={"traceparent": traceparent},
    )


async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


async def breaks() -> str:
    """Break."""
    raise RuntimeError("the crane fell over")


async def hangs() -> str:
    """Wait for ever."""
    await asyncio.Event().wait()
    return ""


async def until_event(stage: Stage, run_id: str, event_type: str) -> None:
    """Wait until a run has told an event."""
    async with stage.http.stream("GET", f"/v1/runs/{run_id}/events") as stream:
        async for line in stream.aiter_lines():
            if line == f"event: {event_type}":
                return


def named(spans: list[Span], name: str) -> Span:
    (found,) = [span for span in spans if span.name == name]
    return found


async def test_one_trace_spans_all_agents_of_a_tree(traces: Collector) -> None:
    peer = PeerConfig("leaf", "leaf", share_context=True)
    top = agent(said(delegates_to("leaf")), said("{}"), said("Done."), name="top", agents=(peer,))
    adds = call("box__add", a=1, b=2)
    leaf = agent(said(adds), said("{}"), said("3"), name="leaf", tools=(box(add),))
    async with traced(top, leaf) as (first, _):
        await asked(first)
        run = await traces.run("top")
    assert (run.trace_id, run.parent_id) == (TRACE_ID, SPAN_ID)
    chat: Any = {"chat DEBUG_MOCK_RESPONSES": []}
    below = {"invoke_agent leaf": [chat, {"execute_tool box__add": []}, chat, chat]}
    assert traces.tree(run) == {
        "invoke_agent top": [chat, {"invoke_agent leaf": [below]}, chat, chat]
    }
    assert {span.trace_id for span in traces.spans} == {TRACE_ID}
    assert {span.service for span in traces.spans} == {"top", "leaf"}
    assert len({span.span_id for span in traces.spans}) == len(traces.spans)
    assert not any(span.error for span in traces.spans)


async def test_spans_of_runs_requests_and_calls_say_what_the_conventions_ask_for(
    traces: Collector,
) -> None:
    async with (
        model_server(call("box__add", a=1, b=2), "{}", "It is 3.") as model,
        tool_server(add) as tools,
        traced(agent(model=model, tools=(tools,), description="Adds.")) as (stage,),
    ):
        response = await asked(stage)
        run = await traces.run("helper")
    assert run.kind == "INTERNAL"
    assert run.attributes == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": "openai",
        "gen_ai.agent.name": "helper",
        "gen_ai.agent.description": "Adds.",
        "gen_ai.request.model": "m",
        "gen_ai.conversation.id": response.headers["x-session-id"],
        "gen_ai.usage.input_tokens": 30,
        "gen_ai.usage.output_tokens": run.attributes["gen_ai.usage.output_tokens"],
        "gen_ai.response.finish_reasons": ["stop"],
        "diptych.run.id": response.headers["x-run-id"],
        "diptych.run.status": "completed",
    }
    (resource,) = {tuple(sorted(each)) for each in traces.resources}
    assert {"service.name", "service.version", "service.instance.id", "host.name"} <= {*resource}
    first, tool, _, last = traces.below(run)
    assert (first.name, first.kind, tool.name) == ("chat m", "CLIENT", "execute_tool box__add")
    assert first.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.agent.name": "helper",
        "gen_ai.request.model": "m",
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": first.attributes["gen_ai.usage.output_tokens"],
        "gen_ai.response.finish_reasons": ["stop"],
        "server.address": URL(model.url).host,
        "server.port": URL(model.url).port,
        "diptych.run.id": response.headers["x-run-id"],
        "diptych.model.purpose": "actions",
        "diptych.model.attempts": 1,
    }
    assert tool.attributes == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "box__add",
        "gen_ai.tool.call.id": "call_1_1",
        "gen_ai.tool.type": "extension",
        "mcp.method.name": "tools/call",
        "server.address": "127.0.0.1",
        "server.port": tool.attributes["server.port"],
        "diptych.call.id": "call_1_1",
        "diptych.run.id": response.headers["x-run-id"],
        "diptych.step": 1,
    }
    assert last.attributes["gen_ai.request.stream"] is True
    assert 0 < last.attributes["gen_ai.response.time_to_first_chunk"] < 20


async def test_whoever_is_asked_gets_the_span_that_asks(traces: Collector) -> None:
    """The model in a header, a tool in `_meta` (SEP-414)."""
    told: list[Any] = []

    async def look(context: Context[Any, Any]) -> str:
        """Look."""
        told.append(context.request_context.meta)
        return ""

    async with (
        model_server(call("box__look"), "{}", "3") as model,
        tool_server(look) as tools,
        traced(agent(model=model, tools=(tools,))) as (stage,),
    ):
        await asked(stage)
        run = await traces.run("helper")
    posts = [span for span in traces.spans if span.name == "POST"]
    sent = [headers["traceparent"].removesuffix("-01") for headers in model.headers]
    assert sent == [f"00-{TRACE_ID}-{span.span_id}" for span in posts]
    chats = {span.span_id for span in traces.below(run) if span.name == "chat m"}
    assert {span.parent_id for span in posts} == chats
    tool = named(traces.spans, "execute_tool box__look")
    assert told[0]["traceparent"] == f"00-{TRACE_ID}-{tool.span_id}-01"


async def test_a_hook_at_a_url_gets_what_it_is_asked_for_and_has_a_span(traces: Collector) -> None:
    told: list[str] = []

    async def judge(request: web.Request) -> web.Response:
        told.append(request.headers["traceparent"])
        return web.json_response({})

    app = web.Application()
    app.router.add_post("/", judge)
    async with TestServer(app) as server:
        hook = HookConfig("afterCall", str(server.make_url("/")))
        adds = call("box__add", a=1, b=2)
        async with traced(agent(adds, "{}", "3", tools=(box(add),), hooks=(hook,))) as (stage,):
            await asked(stage)
            run = await traces.run("helper")
    tool, asking = (
        named(traces.spans, "execute_tool box__add"),
        named(traces.spans, "hook afterCall"),
    )
    assert told == [f"00-{TRACE_ID}-{tool.span_id}-01"]
    assert asking.parent_id == tool.span_id
    assert tool.start <= asking.start <= asking.end <= tool.end <= run.end
    assert asking.attributes["diptych.hook.outcome"] == "passed"


async def test_what_fails_says_so_and_no_word_more(traces: Collector) -> None:
    steps = (call("box__breaks"), status(401, '{"error": {"message": "no, sesame"}}'))
    async with model_server(*steps) as model:
        async with traced(agent(model=model, tools=(box(breaks),))) as (stage,):
            assert (await asked(stage, "sesame")).status_code >= 400
            run = await traces.run("helper")
    assert run.error
    assert run.attributes["error.type"] == "model_unauthorized"
    assert run.attributes["diptych.run.status"] == "failed"
    tool = named(traces.spans, "execute_tool box__breaks")
    assert (tool.error, tool.attributes["error.type"]) == (True, "failed")
    assert "sesame" not in str(traces.spans)
    assert "crane" not in str(traces.spans)


async def test_runs_that_the_end_of_the_process_stops_are_sent_before_it(traces: Collector) -> None:
    async with model_server(silence) as model:
        async with traced(agent(model=model)) as (stage,):
            await stage.start()
            await model.asked.wait()
    run = await traces.run("helper")
    assert run.attributes["diptych.run.status"] in {"aborted", "failed"}
    chat, post = named(traces.spans, "chat m"), named(traces.spans, "POST")
    assert (chat.parent_id, post.parent_id) == (run.span_id, chat.span_id)
    assert (post.attributes["error.type"], post.error) == ("cancelled", False)


async def test_a_header_that_is_no_trace_begins_a_new_one(traces: Collector) -> None:
    headers = ("nonsense", f"ff-{TRACE_ID}-{SPAN_ID}-01", "x" * 8_000)
    async with traced(agent("{}", "Hello!")) as (stage,):
        for traceparent in headers:
            assert (await asked(stage, traceparent=traceparent)).status_code == 200
        await traces.run("helper", len(headers))
    begun = [span for span in traces.spans if span.name == "invoke_agent helper"]
    assert {span.parent_id for span in begun} == {""}
    assert len({span.trace_id for span in begun} - {TRACE_ID, "0" * 32}) == len(headers)


async def test_what_the_caller_does_not_sample_is_not_sent_and_goes_on_unsampled(
    traces: Collector,
) -> None:
    async with model_server("{}", "Hello!") as model:
        async with traced(agent(model=model)) as (stage,):
            await asked(stage, traceparent=CALLER[:-2] + "00")
            await asked(stage)
            await traces.run("helper")
    assert len([span for span in traces.spans if span.name.startswith("invoke_agent")]) == 1
    unsampled = model.headers[0]["traceparent"]
    assert unsampled.startswith(f"00-{TRACE_ID}-")
    assert unsampled.endswith("-00")


async def test_messages_are_sent_if_they_are_asked_for_and_secrets_never(
    traces: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CONTENT, "SPAN_ONLY")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=open-sesame-now,other=p%40ss/w%2Frd")
    adds = call("box__add", a=1, b=2)
    async with traced(agent(said(adds), said("{}"), said("Three."), tools=(box(add),))) as (stage,):
        await asked(stage, "What is one and two, open-sesame-now p@ss/w/rd? " + "x" * 50_000)
        run = await traces.run("helper")
    assert traces.headers[0]["api-key"] == "open-sesame-now"
    question = run.attributes["gen_ai.input.messages"]
    assert question.startswith('[{"role":"user","parts":[{"type":"text","content":"What is one')
    answer = '"parts":[{"type":"text","content":"Three."}],"finish_reason":"stop"'
    assert answer in run.attributes["gen_ai.output.messages"]
    tool = named(traces.spans, "execute_tool box__add")
    assert tool.attributes["gen_ai.tool.call.arguments"] == '{"a":1,"b":2}'
    assert tool.attributes["gen_ai.tool.call.result"] == "3"
    chat = traces.below(run)[0]
    assert "box__add" in chat.attributes["gen_ai.output.messages"]
    assert "gen_ai.system_instructions" in chat.attributes
    assert "open-sesame-now" not in str(traces.spans)
    assert "p@ss/w/rd" not in str(traces.spans)
    longest = max(len(str(v)) for span in traces.spans for v in span.attributes.values())
    assert longest < 10_000


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "sesame"),
        ("OTEL_TRACES_SAMPLER", "sesame"),
        ("OTEL_RESOURCE_ATTRIBUTES", "sesame,=,%zz=%zz"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "sesame,a=b\n"),
    ],
)
@pytest.mark.usefixtures("traces")
async def test_an_agent_serves_whatever_the_settings_of_its_traces_are(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str, value: str
) -> None:
    caplog.set_level(logging.CRITICAL, logger="opentelemetry")  # as a process does
    monkeypatch.setenv(name, value)
    async with traced(agent("{}", "Hello!")) as (stage,):
        assert (await asked(stage)).status_code == 200
    assert "sesame" not in caplog.text


async def test_the_metrics_say_how_many_spans_were_lost(traces: Collector) -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.Response(status=413)

    async with traced(agent("{}", "Hello!")) as (stage,):
        assert "\ndiptych_lost_spans_total 0.0\n" in (await stage.http.get("/metrics")).text
        traces.answer = refuse
        assert (await asked(stage)).status_code == 200
        async with asyncio.timeout(10):  # `refuse` answers before the process has counted them
            text = ""
            while not re.search(r"^diptych_lost_spans_total [1-9]", text, re.MULTILINE):
                text = (await stage.http.get("/metrics")).text


async def test_without_settings_nothing_is_made() -> None:
    async with stages(agent("{}", "Hello!")) as (stage,):
        assert (await asked(stage)).status_code == 200
        assert stage.served._traces is None
        assert "diptych_lost_spans" not in (await stage.http.get("/metrics")).text


def test_without_settings_nothing_is_loaded() -> None:
    code = (
        "import sys, diptych.library.agent, diptych.a2a.agents, diptych.serve.process\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry.sdk')])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


async def test_no_run_leaves_anything_behind(
    traces: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither those that end nor those whose process leaves them."""
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "64")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "64")
    hanging = agent(call("box__hangs"), "{}", "Hello!", tools=(box(hangs),))
    async with traced(agent("{}", "Hello!"), replace(hanging, name="left")) as (stage, left):
        await asyncio.gather(*(asked(stage, str(n)) for n in range(50)))
        assert stage.served._traces is not None
        assert stage.served._traces._traces == {}
        await traces.run("helper")
        run_id = await left.start()
        await until_event(left, run_id, "tool_call")
        assert left.served._traces is not None
        assert list(left.served._traces._traces) == [run_id]
    assert left.served._traces._traces == {}
