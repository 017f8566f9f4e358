"""A collector of traces, run inside a pod: a line for each span that came, with agent and trace.

It reads what OpenTelemetry's SDK sends: OTLP over HTTP, as protobuf.
"""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector(BaseHTTPRequestHandler):
    """`POST /v1/traces`."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        message = ExportTraceServiceRequest()
        message.ParseFromString(self.rfile.read(int(self.headers["content-length"])))
        for group in message.resource_spans:
            about = {each.key: each.value.string_value for each in group.resource.attributes}
            for scope in group.scope_spans:
                for span in scope.spans:
                    names = about["service.name"], about["host.name"], span.name
                    print(span.trace_id.hex(), *names, sep="|", flush=True)
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing else."""


ThreadingHTTPServer(("", 8000), Collector).serve_forever()
