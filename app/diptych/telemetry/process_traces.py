"""The OpenTelemetry SDK of a process, configured by the environment.

The agents of a process share the span processors; each has a `service.name` of its own.
"""

import asyncio
import logging
import os
import platform
import threading
from collections.abc import Sequence
from contextlib import suppress
from urllib.parse import unquote
from uuid import uuid4

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.propagate import get_global_textmap
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    ConsoleSpanExporter,
    SpanExportResult,
)
from opentelemetry.trace import get_current_span

from diptych.manifest.telemetry import TelemetrySettings
from diptych.net.proxies import proxy_for, through
from diptych.net.redaction import SECRETS
from diptych.telemetry.agent_traces import AgentTraces, http_spans
from diptych.telemetry.attributes import TracedAgent
from diptych.telemetry.run_trace import PlannedIds, SpanSource

FLUSH_SECONDS = 3.0  # to export the remaining spans when the process ends
_HEADERS = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS")
_SCOPE = "diptych"
_logger = logging.getLogger(__name__)


class CollectorExporter(OTLPSpanExporter):
    """The SDK's exporter with our proxies; logs outages. `lost` counts spans not delivered."""

    def __init__(self, origin: str) -> None:
        session = requests.Session()
        proxy = proxy_for(origin)
        session.trust_env = False
        session.proxies = {"http": proxy, "https": proxy} if proxy else {}
        session.hooks["response"].append(self._note_status)
        super().__init__(session=session)
        self._origin = origin
        self._is_away = False
        self._away = through(proxy, "cannot be reached")
        self._said = self._away
        self.lost = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._said = self._away
        result = super().export(spans)
        is_away = result is not SpanExportResult.SUCCESS
        self.lost += len(spans) * is_away
        if is_away and not self._is_away:
            _logger.warning(
                "the collector at %s accepts no traces (it %s): runs continue, spans are lost",
                self._origin,
                self._said,
            )
        elif self._is_away and not is_away:
            _logger.warning(
                "the collector at %s accepts traces again; %d spans were lost in total",
                self._origin,
                self.lost,
            )
        self._is_away = is_away
        return result

    def _note_status(self, response: requests.Response, **_options: object) -> None:
        self._said = f"answers {response.status_code}"


class ProcessTraces:
    """Exports the spans of a process. Raises `ValueError` for settings that the SDK rejects."""

    http_spans = staticmethod(http_spans)

    def __init__(self, settings: TelemetrySettings) -> None:
        for name in _HEADERS:
            for entry in os.environ.get(name, "").split(","):
                value = entry.partition("=")[2].strip()
                for secret in {value, unquote(value)}:  # values are URL-encoded
                    SECRETS.remember(secret)
        self._settings = settings
        self._instance = str(uuid4())
        self._limits = SpanLimits()  # reads the environment, and rejects invalid numbers
        self._from_environment = OTELResourceDetector().detect()
        self._collector = CollectorExporter(settings.origin) if settings.origin else None
        exporters = [self._collector] if self._collector else []
        console = [ConsoleSpanExporter()] if settings.has_console else []
        self._processors = [BatchSpanProcessor(each) for each in (*exporters, *console)]

    def of_agent(self, agent: TracedAgent) -> AgentTraces:
        """Return the tracing of an agent's runs."""
        ids = PlannedIds()
        provider = TracerProvider(
            resource=self._resource(agent),
            shutdown_on_exit=False,
            id_generator=ids,
            span_limits=self._limits,
        )
        for processor in self._processors:
            provider.add_span_processor(processor)
        reads_parents = "traceparent" in get_global_textmap().fields
        tracer = provider.get_tracer(_SCOPE, agent.version)
        return AgentTraces(
            SpanSource(tracer, ids, agent, reads_parents, self._settings.has_content)
        )

    def lost_spans(self) -> int:
        """Return the number of spans that the collector did not receive."""
        return self._collector.lost if self._collector else 0

    def current_ids(self) -> dict[str, str]:
        """Return the current trace and span ids, for the log; empty outside of runs."""
        span = get_current_span().get_span_context()
        if not span.is_valid:
            return {}
        return {"trace_id": f"{span.trace_id:032x}", "span_id": f"{span.span_id:016x}"}

    async def aclose(self) -> None:
        """Export the remaining spans, for a bounded time: the collector may be down."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def flush() -> None:
            for processor in self._processors:
                processor.shutdown()  # type: ignore[no-untyped-call]
            with suppress(RuntimeError):  # the loop is already closed
                loop.call_soon_threadsafe(done.set)

        # A daemon thread, not an executor's: the interpreter would wait for that at exit.
        threading.Thread(target=flush, name="diptych-last-spans", daemon=True).start()
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                await done.wait()
        except TimeoutError:
            _logger.warning("the last spans are lost: exporting takes over %g s", FLUSH_SECONDS)

    def _resource(self, agent: TracedAgent) -> Resource:
        """Return the agent's resource attributes; those of the environment take precedence."""
        own = {
            "service.name": agent.name,
            "service.version": agent.version,
            "service.instance.id": self._instance,
            "host.name": platform.node(),
        }
        return Resource.create({**own, **self._from_environment.attributes})
