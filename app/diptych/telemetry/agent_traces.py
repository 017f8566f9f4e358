"""The traces of one agent's runs, and the spans of its requests to models, one per attempt."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace

import aiohttp
from opentelemetry import trace as otel
from opentelemetry.context import attach, detach, get_value
from opentelemetry.propagate import inject
from opentelemetry.trace import SpanKind, Tracer
from yarl import URL

from diptych.core.codec import Record
from diptych.ports import Notice
from diptych.telemetry import attributes as about
from diptych.telemetry.run_trace import TRACER, RunTrace, SpanSource, fail

_FIRST_ERROR = 400
_logger = logging.getLogger(__name__)


class AgentTraces:
    """Traces the runs that this process executes.

    Implements `ports.Tracing` and `runs.run_log.Observer`.
    """

    def __init__(self, source: SpanSource) -> None:
        self._source = source
        self._traces: dict[str, RunTrace] = {}

    @contextmanager
    def of_run(
        self, run_id: str, session_id: str, records: Callable[[], Sequence[Record]]
    ) -> Iterator[RunTrace]:
        trace = RunTrace(self._source, run_id, session_id, records())
        self._traces[run_id] = trace
        token = attach(trace.context)
        try:
            yield trace
        finally:
            detach(token)
            del self._traces[run_id]
            trace.end_recorded(records()[-1])

    def observe(self, item: Record | Notice) -> None:
        """Pass a new record to its run's trace. Errors are logged, and do not affect the run."""
        if isinstance(item, Record) and (trace := self._traces.get(item.run_id)):
            try:
                trace.observe(item)
            except Exception:
                _logger.exception("run %s: could not create a span", item.run_id)

    def observe_model(self, model: str, endpoint: str, outcome: str) -> None:
        """Count an attempt at a model's endpoint (see `models.chat_model.ModelObserver`)."""
        span = otel.get_current_span()
        if not span.is_recording():
            return
        made = (getattr(span, "attributes", None) or {}).get(about.ATTEMPTS, 0)
        span.set_attribute(about.ATTEMPTS, int(made) + 1)
        if outcome == "ok":  # a fallback may have answered
            span.set_attributes({about.REQUEST_MODEL: model, **about.server_attributes(endpoint)})

    def add_traceparent(self, headers: dict[str, str]) -> None:
        """Add the trace context to headers, so that the receiver continues the trace."""
        inject(headers)

    def current_traceparent(self) -> str | None:
        """Return the trace context of the program's current span, as the parent of a new run."""
        headers: dict[str, str] = {}
        inject(headers)
        return headers.get("traceparent")

    def observe_hook(self, point: str, name: str, outcome: str, seconds: float) -> None:
        """Create the span of a finished hook call (see `runs.hooks.HookObserver`)."""
        if not isinstance(tracer := get_value(TRACER), Tracer):
            return
        end = time.time_ns()
        given = {"diptych.hook.name": name, "diptych.hook.outcome": outcome}
        span = tracer.start_span(
            f"hook {point}",
            kind=SpanKind.INTERNAL,
            attributes=given,
            start_time=end - int(seconds * 1_000_000_000),
        )
        if outcome == "failed":
            fail(span, "hook_failed")
        span.end(end)


def http_spans() -> aiohttp.TraceConfig:
    """Return an aiohttp trace configuration that creates a span for each request."""
    config = aiohttp.TraceConfig()
    config.on_request_start.append(_start)
    config.on_request_end.append(_end)
    config.on_request_exception.append(_fail)
    return config


async def _start(
    _: aiohttp.ClientSession, request: SimpleNamespace, params: aiohttp.TraceRequestStartParams
) -> None:
    request.span = None
    tracer = get_value(TRACER)
    if not isinstance(tracer, Tracer):
        return
    given = _attributes(params.method, params.url)
    request.span = tracer.start_span(params.method, kind=SpanKind.CLIENT, attributes=given)
    inject(params.headers, otel.set_span_in_context(request.span))


async def _end(
    _: aiohttp.ClientSession, request: SimpleNamespace, params: aiohttp.TraceRequestEndParams
) -> None:
    if request.span is None:
        return
    status = params.response.status
    request.span.set_attribute("http.response.status_code", status)
    if status >= _FIRST_ERROR:
        fail(request.span, str(status))
    request.span.end()


async def _fail(
    _: aiohttp.ClientSession, request: SimpleNamespace, params: aiohttp.TraceRequestExceptionParams
) -> None:
    if request.span is None:
        return
    if isinstance(params.exception, asyncio.CancelledError):  # by a timeout, or as the run ended
        request.span.set_attribute(about.ERROR, "cancelled")
    else:
        fail(request.span, type(params.exception).__name__)
    request.span.end()


def _attributes(method: str, url: URL) -> about.Attributes:
    """Return method and server of a request; other parts of the URL may contain a key."""
    given: about.Attributes = {"http.request.method": method, "url.scheme": url.scheme}
    if url.host:
        given["server.address"] = url.host
    return {**given, "server.port": url.port} if url.port else given
