"""Spans of HTTP requests to a model, one for each attempt, and the header that its server reads.

They are below the request to the model that asks for them; requests of no run have none.
"""

import asyncio
from types import SimpleNamespace

import aiohttp
from opentelemetry import trace as otel
from opentelemetry.context import get_value
from opentelemetry.propagate import inject
from opentelemetry.trace import SpanKind, StatusCode, Tracer
from yarl import URL

from diptych.telemetry.attributes import ERROR, Attributes
from diptych.telemetry.run_trace import TRACER

_FIRST_ERROR = 400


def http_spans() -> aiohttp.TraceConfig:
    """Give what watches the requests of a session of aiohttp."""
    config = aiohttp.TraceConfig()
    config.on_request_start.append(_start)
    config.on_request_end.append(_end)
    config.on_request_exception.append(_fail)
    return config


async def _start(
    _: aiohttp.ClientSession, about: SimpleNamespace, params: aiohttp.TraceRequestStartParams
) -> None:
    about.span = None
    tracer = get_value(TRACER)
    if not isinstance(tracer, Tracer):
        return
    given = _attributes(params.method, params.url)
    about.span = tracer.start_span(params.method, kind=SpanKind.CLIENT, attributes=given)
    inject(params.headers, otel.set_span_in_context(about.span))


async def _end(
    _: aiohttp.ClientSession, about: SimpleNamespace, params: aiohttp.TraceRequestEndParams
) -> None:
    if about.span is None:
        return
    status = params.response.status
    about.span.set_attribute("http.response.status_code", status)
    if status >= _FIRST_ERROR:
        about.span.set_attribute(ERROR, str(status))
        about.span.set_status(StatusCode.ERROR)
    about.span.end()


async def _fail(
    _: aiohttp.ClientSession, about: SimpleNamespace, params: aiohttp.TraceRequestExceptionParams
) -> None:
    if about.span is None:
        return
    if isinstance(params.exception, asyncio.CancelledError):  # a time limit, or the run's end
        about.span.set_attribute(ERROR, "cancelled")
    else:
        about.span.set_attribute(ERROR, type(params.exception).__name__)
        about.span.set_status(StatusCode.ERROR)
    about.span.end()


def _attributes(method: str, url: URL) -> Attributes:
    """Say where a request goes; a path, a query or a user in the URL may be a key."""
    given: Attributes = {"http.request.method": method, "url.scheme": url.scheme}
    if url.host:
        given["server.address"] = url.host
    return {**given, "server.port": url.port} if url.port else given
