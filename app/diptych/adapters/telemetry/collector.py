"""Sends spans to a collector that may be away, slow or hostile, and says so once.

It runs on a thread of its own: whatever happens here, no run waits for it.

Not here: which collector (`config.telemetry`), when spans are sent (`process_traces`).
"""

import logging
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from contextvars import copy_context
from typing import Any

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

MAX_ANSWER = 64 * 1024  # bytes; what a collector says is not looked at
_FIRST_REDIRECT, _FIRST_ERROR = 300, 400
_LONGEST = 3  # times the time limit: that of connecting, of the head, and of the rest
_logger = logging.getLogger(__name__)


class BoundedSession(requests.Session):
    """Reads no more of an answer than it must to use the connection again, and not for long.

    `said` is what the last request came to, in a few words.
    """

    said = "cannot be reached"

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:  # noqa: ANN401
        options["stream"] = True  # else the whole answer is read, however long it is
        timeout = options.get("timeout")
        deadline = time.monotonic() + (timeout if isinstance(timeout, int | float) else 10.0)
        try:
            response = super().send(request, **options)
        except OSError as error:  # those of requests are, and a certificate that is not there
            self.said = f"cannot be asked: {type(error).__name__}"
            raise
        self.said = f"answers {response.status_code}"
        _read(response, deadline)
        if _FIRST_REDIRECT <= response.status_code < _FIRST_ERROR:  # which counts as success there
            raise requests.TooManyRedirects(self.said, response=response)
        return response


def _read(response: requests.Response, deadline: float) -> None:
    """Read an answer to its end; give its connection up if that takes too much or too long."""
    size = 0
    # The status has been read, and says what became of the spans.
    with suppress(Exception):
        while chunk := response.raw.read1(MAX_ANSWER):
            size += len(chunk)
            if size > MAX_ANSWER or time.monotonic() > deadline:
                response.close()
                return


class WatchedExporter(SpanExporter):
    """Says when a collector stops taking spans, and when it takes them again: a line each.

    Each export has a thread of its own. Whoever sends a byte now and then never comes to the time
    limit of a read, so its thread is left to it, and nothing more is sent until that has ended.
    """

    def __init__(self, origin: str, timeout: float) -> None:
        self._origin = origin
        self._seconds = _LONGEST * timeout
        self._asking: threading.Thread | None = None
        self._session = BoundedSession()
        self._exporter = OTLPSpanExporter(timeout=timeout, session=self._session)
        self._lost = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
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
