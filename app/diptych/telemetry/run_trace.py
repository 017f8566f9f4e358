"""The trace of one run: a span for the run, with one below it per model request, call and approval.

Spans of calls and approvals are created from the log once it has their end; only model requests
are traced live. Span ids derive from the ids of run and call, so that a process that takes over the
run continues its trace (docs/decisions/0221).
"""

import hashlib
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from opentelemetry import trace as otel
from opentelemetry.context import Context, attach, detach, set_value
from opentelemetry.propagate import inject
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, SpanKind, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from diptych.core.catalog import SEPARATOR
from diptych.core.codec import TERMINAL, Record
from diptych.core.commands import AskModel
from diptych.core.events import Compacted, ContextRefused, Event, Failed, FormatChanged, Replied
from diptych.core.json_values import read_usage
from diptych.core.messages import NativeCall, Usage
from diptych.ports.ids import public_id
from diptych.telemetry import attributes as about
from diptych.telemetry import contents
from diptych.telemetry.attributes import Attributes, TracedAgent

T = TypeVar("T")
TRACER = "diptych-tracer"
"""The context key of the tracer, for spans created deeper in the call stack."""
_TRACE_BYTES, _SPAN_BYTES = 16, 8
_CALLS = frozenset({"tool_call", "delegation_request"})
_RESULTS = frozenset({"tool_result", "tool_error", "delegation_response", "delegation_error"})
_NANOSECONDS = 1_000_000_000
_SHORT = 0.1  # seconds in the queue not worth a span


def trace_id_of(run_id: str) -> int:
    """Return the trace id of a run whose caller has no trace; as random as the run's id."""
    return _number(f"trace {run_id}", _TRACE_BYTES)


def span_id_of(run_id: str, what: str = "") -> int:
    """Return the span id of a run, or of `what` in it: a call's id, or a name from `RunTrace`."""
    return _number(f"span {run_id} {what}", _SPAN_BYTES)


def _number(text: str, size: int) -> int:
    found = hashlib.sha256(text.encode()).digest()[:size]
    return int.from_bytes(found, "big") or 1  # 0 is no id


class PlannedIds(RandomIdGenerator):
    """Generates the planned ids for the next span, and random ids for all others."""

    def __init__(self) -> None:
        self._trace_id: int | None = None
        self._span_id: int | None = None

    def plan(self, span_id: int, trace_id: int | None = None) -> None:
        """Set the ids of the next span; a span with a parent ignores the trace id."""
        self._span_id, self._trace_id = span_id, trace_id

    def generate_span_id(self) -> int:
        planned, self._span_id = self._span_id, None
        return super().generate_span_id() if planned is None else planned

    def generate_trace_id(self) -> int:
        planned, self._trace_id = self._trace_id, None
        return super().generate_trace_id() if planned is None else planned


@dataclass(frozen=True, slots=True)
class SpanSource:
    """The tracer and settings for the spans of an agent."""

    tracer: Tracer
    ids: PlannedIds
    agent: TracedAgent
    reads_parents: bool = True
    has_content: bool = False


class RunTrace:
    """The spans of one run; implements `ports.RunTrace`."""

    def __init__(
        self, source: SpanSource, run_id: str, session_id: str, records: Sequence[Record]
    ) -> None:
        self._source = source
        self._run_id = run_id
        self._usage = Usage()
        self._owner_changes = 0
        self._newest = records[0]
        self._begun: dict[str, Record] = {}  # calls under way, by id
        self._approvals: dict[str, Record] = {}  # open ones, by the ids of their calls
        self._first = records[0]
        self._span = self._run_span(self._first, session_id)
        self.context = self._below(self._span)
        for record in records:
            self._remember(record)

    # Called by the runner (`ports.RunTrace`)

    async def asking(
        self, command: AskModel, ask: Callable[[], Coroutine[Any, Any, Event]]
    ) -> Event:
        agent = self._source.agent
        span = self._source.tracer.start_span(
            f"chat {agent.model}".strip(),
            self.context,
            SpanKind.CLIENT,
            self._with_run_id(about.chat_attributes(agent, command)),
        )
        if self._has_content:
            span.set_attributes(contents.input_attributes(command.request.messages))
        token = attach(self._below(span))
        try:
            event = await ask()
        except Exception:
            fail(span, "internal_error")
            raise
        else:
            _set_outcome(span, event)
            return event
        finally:
            detach(token)
            span.end()

    def reply_began(self) -> None:
        span = otel.get_current_span()
        if span.is_recording() and (began := getattr(span, "start_time", None)):
            span.set_attribute(about.FIRST_CHUNK, (time.time_ns() - began) / _NANOSECONDS)

    def reply_came(self, text: str, calls: Sequence[NativeCall], finish_reason: str) -> None:
        if self._has_content:
            said = contents.output_attributes(text, about.word(finish_reason), calls)
            otel.get_current_span().set_attributes(said)

    async def calling(self, call_id: str, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        token = attach(self._call_context(call_id))
        try:
            return await make()
        finally:
            detach(token)

    def traceparent(self, call_id: str) -> str | None:
        carrier: dict[str, str] = {}
        inject(carrier, self._call_context(call_id))
        return carrier.get("traceparent")

    # Called with each new record

    def observe(self, record: Record) -> None:
        """Create or end the spans that a new record completes."""
        match record.event_type:
            case kind if kind in _RESULTS:
                self._end_call(record)
            case "approval_decided" if "path" not in record.metadata:
                self._end_approval(record)
            case "offered" if record.timestamp - self._newest.timestamp > _SHORT:
                self._start_span("queued", "queued", self._newest, {}).end(_start_time(record))
            case "owner_changed":
                what = f"owner {self._owner_changes}"
                self._start_span("taken over", what, self._newest, {}).end(_start_time(record))
            case "agent_response" if self._has_content:
                self._span.set_attributes(_answer_contents(record))
            case kind if kind in TERMINAL:
                self._end(record)
        self._remember(record)

    def end_recorded(self, last: Record) -> None:
        """End the span of a run whose previous owner logged its end, but died before this."""
        if last.event_type in TERMINAL and self._span.is_recording():
            self._end(last)

    def _remember(self, record: Record) -> None:
        """Keep the state that later records refer to."""
        self._newest = record
        data: Mapping[str, Any] = record.metadata
        match record.event_type:
            case kind if kind in _CALLS:
                self._begun[str(data["call_id"])] = record
            case kind if kind in _RESULTS:
                self._begun.pop(str(data["call_id"]), None)
            case "approval_requested" if "path" not in data:
                self._approvals[str(data["call_id"])] = record
            case "approval_decided" if "path" not in data:
                self._approvals.pop(str(data["call_id"]), None)
            case "owner_changed":
                self._owner_changes += 1
            case "model_reply" | "compacted":
                self._usage += read_usage(data["usage"])

    def _run_span(self, first: Record, session_id: str) -> Span:
        source = self._source
        source.ids.plan(span_id_of(self._run_id), trace_id_of(self._run_id))
        given: Attributes = self._with_run_id(about.agent_attributes(source.agent))
        given[about.CONVERSATION] = public_id(session_id)
        if source.has_content and isinstance(first.content, str):
            given |= contents.question_attributes(first.content)
        return source.tracer.start_span(
            f"invoke_agent {source.agent.name}",
            self._parent(first.metadata),
            attributes=given,
            start_time=_start_time(first),
        )

    def _parent(self, metadata: Mapping[str, Any]) -> Context:
        """Return the context of the caller's trace, or an empty one."""
        header = metadata.get("traceparent")
        if header is None or not self._source.reads_parents:
            return Context()
        return TraceContextTextMapPropagator().extract({"traceparent": header}, Context())

    def _end_call(self, result: Record) -> None:
        """Create the span of a call, from its start in whichever process to its result."""
        call_id = str(result.metadata["call_id"])
        begun = self._begun.get(call_id)
        name, kind, given = _call_span(self._source.agent, begun, result)
        if self._has_content:
            given |= _call_contents(begun, result)
        span = self._start_span(name, call_id, begun or result, given, kind)
        if error := result.metadata.get("error"):
            fail(span, about.word(error))
        span.end(_end_time(begun or result, result))

    def _end_approval(self, decided: Record) -> None:
        """Create the span of a call's wait for a decision."""
        call_id = str(decided.metadata["call_id"])
        if asked := self._approvals.get(call_id):
            content = asked.content if isinstance(asked.content, Mapping) else {}
            target = content.get("tool") or content.get("agent") or ""
            decision = "expired" if decided.metadata.get("is_expired") else decided.content
            given: Attributes = {about.CALL_ID: call_id, about.DECISION: str(decision)}
            span = self._start_span(f"approval {target}", f"{call_id} approval", asked, given)
            span.end(_end_time(asked, decided))

    def _end(self, end: Record) -> None:
        span, data = self._span, end.metadata
        span.set_attributes(about.usage_attributes(self._usage))
        span.set_attribute(about.STATUS, end.event_type)
        if self._owner_changes:
            span.set_attribute(about.OWNERS, self._owner_changes)
        if reason := data.get("finish_reason"):
            span.set_attribute(about.FINISH_REASONS, (about.word(reason),))
        if end.event_type == "failed":
            fail(span, about.word(data["code"]))
        span.end(_end_time(self._first, end))

    def _start_span(
        self,
        name: str,
        what: str,
        begun: Record,
        given: Attributes,
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> Span:
        """Start a span at a record's time; its id derives from `what`."""
        self._source.ids.plan(span_id_of(self._run_id, what))
        return self._source.tracer.start_span(
            name, self.context, kind, self._with_run_id(given), start_time=_start_time(begun)
        )

    @property
    def _has_content(self) -> bool:
        return self._source.has_content and self._span.is_recording()

    def _with_run_id(self, given: Attributes) -> Attributes:
        return {**given, about.RUN_ID: self._run_id}

    def _call_context(self, call_id: str) -> Context:
        """Return the context below a call's span, which is only created when the call ends."""
        run = self._span.get_span_context()
        span_id = span_id_of(self._run_id, call_id)
        call = SpanContext(run.trace_id, span_id, False, run.trace_flags, run.trace_state)  # noqa: FBT003
        return self._below(NonRecordingSpan(call))

    def _below(self, span: Span) -> Context:
        return set_value(TRACER, self._source.tracer, otel.set_span_in_context(span, Context()))


def _set_outcome(span: Span, event: Event) -> None:
    """Set the outcome of a model request."""
    match event:
        case Replied(usage=usage, finish_reason=reason):
            span.set_attributes(about.usage_attributes(usage))
            span.set_attribute(about.FINISH_REASONS, (about.word(reason),))
        case Compacted(usage=usage, error=error):
            span.set_attributes(about.usage_attributes(usage))
            if error:
                fail(span, error)
        case Failed(code=code):
            fail(span, code)
        case ContextRefused():
            fail(span, "context_too_long")
        case FormatChanged():
            fail(span, "tools_refused")


def fail(span: Span, error: str) -> None:
    """Mark a span as failed."""
    span.set_attribute(about.ERROR, error)
    span.set_status(StatusCode.ERROR)


def _call_span(
    agent: TracedAgent, begun: Record | None, result: Record
) -> tuple[str, SpanKind, Attributes]:
    """Return name, kind and attributes of a call's span; `begun` is None if it never started."""
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


def _call_contents(begun: Record | None, result: Record) -> Attributes:
    """Return the contents of a call (arguments, result) or a delegation (task, answer)."""
    content = begun.content if begun and isinstance(begun.content, Mapping) else {}
    if "agent" in result.metadata:
        task = contents.question_attributes(str(content.get("task", "")))
        return {**task, **_answer_contents(result)}
    given: Attributes = {"gen_ai.tool.call.result": contents.value_text(result.content)}
    if "arguments" in content:
        given["gen_ai.tool.call.arguments"] = contents.value_text(content["arguments"])
    return given


def _answer_contents(record: Record) -> dict[str, str]:
    """Return the contents of the answer of a run or another agent."""
    reason = about.word(record.metadata.get("finish_reason", "stop"))
    return contents.output_attributes(str(record.content), reason)


def _start_time(record: Record) -> int:
    """Return a record's time in nanoseconds."""
    return int(record.timestamp * _NANOSECONDS)


def _end_time(begun: Record, ended: Record) -> int:
    """Return the end in nanoseconds, never before the start: clocks of two owners may differ."""
    return max(_start_time(begun), _start_time(ended))
