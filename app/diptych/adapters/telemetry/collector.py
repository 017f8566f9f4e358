"""Sends spans to a collector that may be away, slow or hostile, and says so once.

It runs on a thread of its own: whatever happens here, no run waits for it.
"""

import logging
import threading
from collections.abc import Sequence
from contextvars import copy_context

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from diptych.adapters.telemetry.bounded_session import BoundedSession

_LONGEST = 3  # times the time limit: to connect, to answer, and for a read begun before its end
UNUSED_MILLISECONDS = 30_000  # of an export; the SDK reads them nowhere
_logger = logging.getLogger(__name__)


class WatchedExporter(SpanExporter):
    """Says when a collector stops taking spans, and when it takes them again: a line each.

    Each export has a thread of its own. What takes longer than all time limits together, such as a
    TLS handshake byte by byte, keeps its thread, and nothing more is sent until that has ended.

    `handled` spans came here, and the collector did not take `lost` of them.
    """

    def __init__(self, origin: str, timeout: float) -> None:
        self._origin = origin
        self._seconds = _LONGEST * timeout
        self._asking: threading.Thread | None = None
        self._session = BoundedSession()
        self._exporter = OTLPSpanExporter(timeout=timeout, session=self._session)
        self._lost = 0  # since it stopped taking them
        self.handled = self.lost = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.handled += len(spans)
        result = self._ask(spans)
        if result is SpanExportResult.SUCCESS:
            if self._lost:
                _logger.warning(
                    "the collector at %s takes traces again; at least %d spans were lost",
                    self._origin,
                    self._lost,
                )
            self._lost = 0
        else:
            if not self._lost:
                _logger.warning(
                    "the collector at %s takes no traces (it %s): runs go on, spans are lost",
                    self._origin,
                    self._session.said,
                )
            self._lost += len(spans)
            self.lost += len(spans)
        return result

    def _ask(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        results: list[SpanExportResult] = []
        context = copy_context()  # it says that this is no work of the program to be traced

        def ask() -> None:
            results.append(context.run(self._exporter.export, spans))

        if self._asking is None or not self._asking.is_alive():
            self._asking = threading.Thread(target=ask, name="diptych-export", daemon=True)
            self._asking.start()
            self._asking.join(self._seconds)
        if not results and self._asking.is_alive():
            self._session.said = "does not end its answer"
        return results[0] if results else SpanExportResult.FAILURE

    def shutdown(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


class CountedBatches(BatchSpanProcessor):
    """Counts the spans that are lost: not taken by the collector, or pushed out of the full queue.

    The SDK tells the latter to its own metrics alone. What it takes out of the queue is seen here a
    moment later, so for that moment the count may be too high by a few.
    """

    def __init__(self, exporter: WatchedExporter, room: int, delay: int, most: int) -> None:
        """Let `room` spans wait, for `delay` milliseconds, and send `most` at once."""
        self._watched = exporter
        self._room = room
        self._ended = self._pushed_out = 0
        super().__init__(exporter, room, delay, most, UNUSED_MILLISECONDS)

    @property
    def lost(self) -> int:
        return self._watched.lost + self._pushed_out

    def on_end(self, span: ReadableSpan) -> None:
        if span.context and span.context.trace_flags.sampled:
            waiting = self._ended - self._pushed_out - self._watched.handled
            self._ended += 1
            self._pushed_out += waiting >= self._room
        super().on_end(span)
