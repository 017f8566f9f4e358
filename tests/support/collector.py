"""A collector of OpenTelemetry on loopback: takes OTLP over HTTP, and reads it as it is defined."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1 import trace_pb2

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class Span:
    """A span as the collector got it. Times are in nanoseconds, ids in hexadecimal digits."""

    name: str
    service: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: str
    start: int
    end: int
    error: bool
    attributes: Mapping[str, Any]


@dataclass
class Collector:
    """What came; `answer` takes the place of 200 where a test gives one."""

    url: str = ""
    spans: list[Span] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    resources: list[Mapping[str, Any]] = field(default_factory=list)
    answer: Answer | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def until(self, is_enough: Callable[[Sequence[Span]], Any]) -> list[Span]:
        """Wait until enough has come."""
        async with asyncio.timeout(20):
            while not is_enough(self.spans):
                self._changed.clear()
                await self._changed.wait()
        return self.spans

    async def run(self, name: str, count: int = 1) -> Span:
        """Wait for the end of the runs of an agent; gives the last one's span."""
        wanted = f"invoke_agent {name}"

        def runs(spans: Sequence[Span]) -> list[Span]:
            return [span for span in spans if span.name == wanted and span.kind == "INTERNAL"]

        await self.until(lambda spans: len(runs(spans)) >= count)
        return runs(self.spans)[-1]

    def below(self, parent: Span) -> list[Span]:
        """Give the spans below one, by their start.

        Without those of waiting in a queue: on a busy machine, any run may have one.
        """
        spans = [s for s in self.spans if s.name != "queued"]
        found = [s for s in spans if s.parent_id == parent.span_id]
        return sorted(found, key=lambda span: span.start)

    def tree(self, top: Span) -> Any:
        """Give names as they stand below each other."""
        return {top.name: [self.tree(span) for span in self.below(top)]}

    async def take(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.headers.append(dict(request.headers))
        if self.answer:
            return await self.answer(request)
        message = ExportTraceServiceRequest()
        message.ParseFromString(body)
        for group in message.resource_spans:
            resource = _values(group.resource.attributes)
            self.resources.append(resource)
            for scope in group.scope_spans:
                self.spans += [_span(span, str(resource["service.name"])) for span in scope.spans]
        self._changed.set()
        return web.Response(body=b"", content_type="application/x-protobuf")


@asynccontextmanager
async def collector(port: int = 0) -> AsyncIterator[Collector]:
    """Serve one."""
    found = Collector()
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post("/v1/traces", found.take)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    found.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield found
    finally:
        await runner.cleanup()


def _span(span: trace_pb2.Span, service: str) -> Span:
    return Span(
        span.name,
        service,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        trace_pb2.Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        span.status.code == trace_pb2.Status.STATUS_CODE_ERROR,
        _values(span.attributes),
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {item.key: _value(item.value) for item in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind) if kind else None
