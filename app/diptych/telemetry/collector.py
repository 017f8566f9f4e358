"""Sends spans to a collector by the SDK's exporter, and logs when it stops taking them."""

import logging
from collections.abc import Sequence

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

from diptych.net.proxies import proxy_for, through

_logger = logging.getLogger(__name__)


class CollectorExporter(OTLPSpanExporter):
    """The SDK's exporter, as the environment configures it; `lost` counts spans not taken."""

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
                "the collector at %s takes no traces (it %s): runs go on, spans are lost",
                self._origin,
                self._said,
            )
        elif self._is_away and not is_away:
            _logger.warning(
                "the collector at %s takes traces again; %d spans were lost in all",
                self._origin,
                self.lost,
            )
        self._is_away = is_away
        return result

    def _note_status(self, response: requests.Response, **_options: object) -> None:
        self._said = f"answers {response.status_code}"
