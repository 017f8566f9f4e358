"""The spans that are made of a run's records, whoever executes it."""

from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from diptych.core.codec import Record
from diptych.ports import Notice
from diptych.telemetry.agent_traces import AgentTraces
from diptych.telemetry.attributes import TracedAgent, provider
from diptych.telemetry.run_trace import PlannedIds, SpanSource, span_id_of, trace_id_of

RUN = "run-0000000a-" + "1" * 32
USAGE = {"prompt_tokens": 10, "completion_tokens": 2}
ASKED = ("user_message", "hi", {})
OFFERED = ("offered", "key", {})
REPLIED = ("model_reply", "", {"usage": USAGE, "finish_reason": "stop"})
CALLED = ("tool_call", {"tool": "box__add", "arguments": {}}, {"call_id": "call_1_1", "step": 1})
RETURNED = ("tool_result", "3", {"call_id": "call_1_1", "tool": "box__add"})
OWNER = ("owner_changed", None, {"lost_tail": False})
COMPLETED = ("completed", None, {"finish_reason": "stop", "usage": USAGE})


class Process:
    """A process that executes runs, and what it has sent."""

    def __init__(self) -> None:
        self.exporter, ids = InMemorySpanExporter(), PlannedIds()
        made = TracerProvider(id_generator=ids, shutdown_on_exit=False)
        made.add_span_processor(SimpleSpanProcessor(self.exporter))
        source = SpanSource(made.get_tracer("t"), ids, TracedAgent("helper"))
        self.traces = AgentTraces(source)

    def execute(self, found: list[Record], *new: tuple[str, Any, Any]) -> list[Record]:
        """Take a run up that has these records, and record more, a second each."""
        records = list(found)
        with self.traces.of_run(RUN, "user:ada/session-1", lambda: records):
            for each in new:
                records.append(record(len(records) + 1, *each))
                self.traces.observe(records[-1])
        return records

    @property
    def sent(self) -> list[Any]:
        return sorted(
            self.exporter.get_finished_spans(), key=lambda span: (span.start_time, span.name)
        )

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.sent]


def record(seq: int, event_type: str, content: Any, metadata: Any) -> Record:
    return Record(RUN, "user:ada/session-1", seq, event_type, float(seq), content, metadata)


BEGUN = [record(1, *ASKED)]


def test_ids_are_those_of_the_run_in_every_process() -> None:
    first, second = Process(), Process()
    for process in (first, second):
        process.execute(BEGUN, OFFERED, CALLED, RETURNED, COMPLETED)
    ids = [
        {(s.name, s.context.trace_id, s.context.span_id) for s in p.sent} for p in (first, second)
    ]
    assert ids[0] == ids[1]
    run = first.sent[0]
    assert (run.context.trace_id, run.context.span_id) == (trace_id_of(RUN), span_id_of(RUN))
    assert first.names == ["invoke_agent helper", "queued", "execute_tool box__add"]
    assert run.attributes["gen_ai.conversation.id"] == "session-1", "its owner's name is nobody's"


def test_what_is_left_to_another_process_is_sent_by_that_one() -> None:
    first, second = Process(), Process()
    records = first.execute(BEGUN, OFFERED, REPLIED, CALLED)
    assert first.names == ["queued"]
    second.execute(records, OWNER, RETURNED, REPLIED, COMPLETED)
    run, tool, gap = second.sent
    assert (run.name, tool.name, gap.name) == (
        *("invoke_agent helper", "execute_tool box__add", "taken over"),
    )
    assert (run.start_time, run.end_time) == (1e9, 8e9)
    assert (tool.start_time, tool.end_time) == (4e9, 6e9)
    assert (gap.start_time, gap.end_time) == (4e9, 5e9)
    assert run.attributes["gen_ai.usage.input_tokens"] == 20
    assert run.attributes["diptych.run.owner_changes"] == 1


def test_a_run_that_is_found_ended_has_its_span() -> None:
    first, second = Process(), Process()
    records = [*first.execute(BEGUN, OFFERED), record(3, *COMPLETED)]
    second.execute(records)
    assert second.names == ["invoke_agent helper"]
    assert second.sent[0].end_time == 3e9


@pytest.mark.parametrize(
    ("about", "decision"), [({}, "approve"), ({"is_expired": True}, "expired")]
)
def test_a_decision_ends_the_span_of_an_approval(about: Any, decision: str) -> None:
    asked = ("approval_requested", {"tool": "pay", "arguments": {}}, {"call_id": "c", "step": 1})
    decided = ("approval_decided", "approve", {"call_id": "c", **about})
    below = ("approval_decided", "approve", {"call_id": "c", "path": ["c", "d"]})
    first, second = Process(), Process()
    second.execute(first.execute(BEGUN, asked), OWNER, below, decided)
    approval = next(span for span in second.sent if span.name == "approval pay")
    assert approval.attributes["diptych.approval.decision"] == decision
    assert (approval.start_time, approval.end_time) == (2e9, 5e9)


def test_a_call_that_was_never_made_has_a_span_without_a_length() -> None:
    process = Process()
    denied = ("tool_error", "denied: no", {"call_id": "c", "tool": "pay", "error": "denied"})
    process.execute(BEGUN, denied, COMPLETED)
    call = process.sent[1]
    assert (call.name, call.attributes["error.type"]) == ("execute_tool pay", "denied")
    assert call.start_time == call.end_time


def test_a_record_that_cannot_be_read_does_not_touch_the_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    process = Process()
    process.execute(BEGUN, ("tool_result", "3", {}), COMPLETED)
    assert "could not create a span" in caplog.text
    assert process.names == ["invoke_agent helper"]
    process.traces.observe(Notice("x"))
    process.traces.observe(record(9, *COMPLETED))
    assert process.names == ["invoke_agent helper"]


@pytest.mark.parametrize(
    ("endpoint", "name"),
    [
        ("https://api.openai.com/v1", "openai"),
        ("https://eu.openai.azure.com", "azure.ai.openai"),
        ("http://vllm:8000/v1", "openai"),
        ("http://evilapi.mistral.ai.example.com", "openai"),
        ("http://[::1", "openai"),
    ],
)
def test_a_provider_is_known_by_its_host(endpoint: str, name: str) -> None:
    assert provider(endpoint) == name
