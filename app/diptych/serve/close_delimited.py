"""Answers of unknown length to requests of HTTP/1.0: their end is that of the connection.

HTTP/1.0 knows no chunks (RFC 9112, section 6.1), which uvicorn sends all the same: a client would
take their sizes for content. uvicorn closes the connection after each answer to HTTP/1.0.
"""

from typing import TYPE_CHECKING

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application, ASGISendEvent


class CloseDelimitedCycle(RequestResponseCycle):
    """A request and its response, of HTTP/1.0."""

    has_length = False

    async def send(self, message: "ASGISendEvent") -> None:
        if message["type"] == "http.response.start":
            names = {name.lower() for name, _ in message.get("headers", ())}
            self.has_length = b"content-length" in names
            if not self.has_length:
                self.chunked_encoding = False
        elif message["type"] == "http.response.body" and not self.has_length:
            self.expected_content_length = len(message.get("body", b""))  # it counts down to 0
        await super().send(message)


class CloseDelimiting(HttpToolsProtocol):
    """uvicorn's protocol on httptools, without chunks to HTTP/1.0, and without interim answers.

    HTTP/1.0 knows no `100 Continue` either: a client would take it for the answer (RFC 9110,
    section 10.1.1).
    """

    def on_headers_complete(self) -> None:
        if self.parser.get_http_version() == "1.0":
            self.expect_100_continue = False
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: "ASGI3Application") -> None:
        if cycle.scope["http_version"] == "1.0":
            cycle.__class__ = CloseDelimitedCycle  # uvicorn lets nobody choose it
        super()._start_asgi_task(cycle, app)
