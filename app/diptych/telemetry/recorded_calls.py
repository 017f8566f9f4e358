"""What the records of a call say of its span: its name, its times, its attributes."""

from collections.abc import Mapping

from opentelemetry.trace import SpanKind

from diptych.core.catalog import SEPARATOR
from diptych.core.codec import Record
from diptych.telemetry import attributes as about
from diptych.telemetry import contents
from diptych.telemetry.attributes import Attributes, TracedAgent

CALLS = frozenset({"tool_call", "delegation_request"})
RESULTS = frozenset({"tool_result", "tool_error", "delegation_response", "delegation_error"})
_NANOSECONDS = 1_000_000_000


def call_span(
    agent: TracedAgent, begun: Record | None, result: Record
) -> tuple[str, SpanKind, Attributes]:
    """Give name, kind and attributes of a call's span; `begun` is None if it was never made."""
    data = result.metadata
    kind = "tool" if "tool" in data else "agent"
    target = str(data[kind])
    server = target.partition(SEPARATOR)[0] if kind == "tool" else target
    given = about.call_attributes(kind, target, str(data["call_id"]), agent.servers.get(server, ""))
    if begun and isinstance(step := begun.metadata.get("step"), int):
        given[about.STEP] = step
    if isinstance(child := data.get("child"), Mapping) and child.get("task_id"):
        given[about.CHILD_RUN] = about.word(child["task_id"])
    if kind == "tool":
        return f"execute_tool {target}", SpanKind.INTERNAL, given
    return f"invoke_agent {target}", SpanKind.CLIENT, given


def call_contents(begun: Record | None, result: Record) -> Attributes:
    """Give arguments and result of a call, or task and answer of a delegation."""
    content = begun.content if begun and isinstance(begun.content, Mapping) else {}
    if "agent" in result.metadata:
        task = contents.question_attributes(str(content.get("task", "")))
        return {**task, **answer_contents(result)}
    given: Attributes = {"gen_ai.tool.call.result": contents.value_text(result.content)}
    if "arguments" in content:
        given["gen_ai.tool.call.arguments"] = contents.value_text(content["arguments"])
    return given


def answer_contents(record: Record) -> dict[str, str]:
    """Give the answer of a run, or of another agent."""
    reason = about.word(record.metadata.get("finish_reason", "stop"))
    return contents.output_attributes(str(record.content), reason)


def start_time(record: Record) -> int:
    """Give when something was recorded, in nanoseconds."""
    return int(record.timestamp * _NANOSECONDS)


def end_time(begun: Record, ended: Record) -> int:
    """Give when something ended: not before it began, though owners' clocks differ."""
    return max(start_time(begun), start_time(ended))
