"""Traces of agents in a program of somebody's, which may have spans of its own."""

import pytest
from opentelemetry.sdk.trace import TracerProvider
from support.collector import collector

from diptych import Agent


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


async def test_a_run_stands_below_the_span_that_starts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("program")
    script = ['{"tool": "add", "arguments": {"a": 1, "b": 2}}', "{}", "3"]
    async with collector() as traces:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", traces.url)
        async with Agent("helper", tools=[add], mock_responses=script) as agent:
            with tracer.start_as_current_span("mine") as mine:
                assert (await agent.run("What is 1 + 2?")).text == "3"
            assert await agent.run("And again?")
        await traces.run("helper", 2)
    first, second = sorted(
        (s for s in traces.spans if s.name == "invoke_agent helper"), key=lambda span: span.start
    )
    context = mine.get_span_context()
    assert first.trace_id == f"{context.trace_id:032x}"
    assert first.parent_id == f"{context.span_id:016x}"
    assert (second.parent_id, second.trace_id == first.trace_id) == ("", False)
    tools = [span for span in traces.spans if span.name == "execute_tool add"]
    assert tools
    assert {span.service for span in traces.spans} == {"helper"}
