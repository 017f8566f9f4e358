"""Traces of agents on loopback, as a collector of OpenTelemetry gets them."""

from collections.abc import AsyncIterator

import pytest
from support.collector import Collector, collector
from support.model_server import model_server
from support.stack import agent, box, call, stages
from support.trees import delegates_to, said

from diptych.config.settings import PeerConfig
from diptych.config.telemetry import read_telemetry

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
async def traces(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Collector]:
    async with collector() as found:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
        yield found


def settings(**environ: str):
    import os

    return read_telemetry({**os.environ, **environ})[0]


async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


async def test_one_trace_spans_all_agents_of_a_tree(traces: Collector) -> None:
    top = agent(
        said(delegates_to("leaf")),
        said("{}"),
        said("Done."),
        name="top",
        agents=(PeerConfig("leaf", "leaf", share_context=True),),
    )
    leaf = agent(
        said(call("box__add", a=1, b=2)), said("{}"), said("3"), name="leaf", tools=(box(add),)
    )
    async with stages(top, leaf, telemetry=settings()) as (first, _):
        body = {"messages": [{"role": "user", "content": "hi"}]}
        await first.http.post("/v1/chat/completions", json=body, headers={"traceparent": CALLER})
        run = await traces.run("top")
    assert run.trace_id == CALLER.split("-")[1]
    assert run.parent_id == CALLER.split("-")[2]
    chat = {"chat DEBUG_MOCK_RESPONSES": []}
    assert traces.tree(run) == {
        "invoke_agent top": [
            chat,
            {
                "invoke_agent leaf": [
                    {"invoke_agent leaf": [chat, {"execute_tool box__add": []}, chat, chat]}
                ]
            },
            chat,
            chat,
        ]
    }
    assert {span.trace_id for span in traces.spans} == {run.trace_id}
    assert {span.service for span in traces.spans} == {"top", "leaf"}
