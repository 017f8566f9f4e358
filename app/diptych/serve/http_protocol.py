"""Limits each connection below the HTTP server: heads, bodies, pipelines, silent peers. uvicorn's
httptools protocol has none of these limits. Timers run only while a head or body is incomplete or
the peer reads nothing, so a usual request starts none.
"""

import asyncio
import logging
import re
from http import HTTPStatus
from typing import Any, cast

import httptools
import orjson
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from diptych.net.memory_budget import Share
from diptych.serve.connections import Connections
from diptych.serve.joined_writes import JoinedWrites

MAX_HEAD = 2**16  # bytes of a request's head
MAX_HEADERS = 128
HEAD_SECONDS = 10.0  # from a head's first byte to its last
BODY_SECONDS = 60.0  # from a head's last byte to its body's: 1 MiB at 17 KiB/s
STALL_SECONDS = 300.0  # for which a peer may take nothing of an answer
LINGER_SECONDS = 1.0  # for which a refused peer may go on sending, so that it reads the refusal
MAX_PIPELINED = 16  # requests that wait for the answers before them
_ALWAYS = frozenset({b"/health", b"/ready"})
_HOST = re.compile(rb"([\w.~%!$&'()*+,;=-]*|\[[\w.:%~-]+\])(:\d*)?", re.ASCII)  # RFC 3986, 3.2
_ERRORS = {
    "invalid_host": (400, "send one Host header, with a host and perhaps a port"),
    "invalid_request": (400, "this is no request of HTTP/1.1 that can be read in one way only"),
    "request_timeout": (408, "the request did not arrive in time"),
    "head_too_large": (431, "send up to 128 headers in 64 KiB"),
    "not_implemented": (501, "this agent is no proxy: it knows no CONNECT"),
    "invalid_version": (505, "this agent speaks HTTP/1.1 and HTTP/1.0"),
    "overloaded": (503, "this agent has too many connections now, or leaves"),
}
"""Status and text, by what problem+json has as `code`."""
_logger = logging.getLogger(__name__)


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with limits; `serve.http_server` passes its `Connections`."""

    def __init__(
        self,
        connections: Connections,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._bounded = connections
        self._answered: RequestResponseCycle | None = None  # `cycle` is the last of a pipeline
        self._head: Share | None = None  # of the budget, while a head is incomplete
        self._is_in_head = False
        self._is_in_body = False
        self._is_framing = False  # chunks' sizes or trailers: what is read has none of the body
        self._head_size = 0  # or of the framing since the last of the body
        self._header_count = 0
        self._is_refused = False  # what still comes is not read
        self._is_upgrade = False  # the head that is read asks for another protocol
        self._receiving: asyncio.TimerHandle | None = None  # a head or a body
        self._sending: asyncio.TimerHandle | None = None

    # The connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast("asyncio.Transport", JoinedWrites(transport, self.loop)))
        self._await_request()
        self._bounded.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._bounded.remove(self)
        self._end_receiving()
        self._end_sending()
        if self.pipeline and self._answered:  # of the others, none has begun, and none will
            self._answered.disconnected = True
            self._answered.message_event.set()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def abort(self) -> None:
        """Close at once; bytes already in the kernel still reach the peer."""
        self.transport.abort()

    timeout_keep_alive_handler = abort

    def shutdown(self) -> None:
        if self._is_in_body and not (self.pipeline or self.cycle.response_started):
            self._refuse("overloaded")  # nobody waits for the rest of its body
            return
        super().shutdown()
        if self.transport.is_closing():
            self._abort_later(LINGER_SECONDS)

    def _await_request(self) -> None:
        """Close an idle connection after a while, even one that never sent anything."""
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    # What is received

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        self._unset_keepalive_if_required()
        self._is_framing = self._is_in_body
        try:
            self._feed(data)
        except httptools.HttpParserError:
            _logger.warning("an invalid request was refused")
            (self._refuse if self._is_in_body else self._refuse_next)("invalid_request")
        if self._is_refused or self.parser is None:
            return
        if self._is_in_body and self._receiving is None:
            self._receiving = self.loop.call_later(BODY_SECONDS, self._on_late)
        if self._is_in_head or self._is_framing:
            self._count_head(len(data))
        elif not self._is_in_body and self in self._bounded.idle:
            self._await_request()

    def _feed(self, data: bytes) -> None:
        """Parse, ignoring requests to upgrade (RFC 9110, 7.8).

        The parser ends a message after an upgrade's head and drops the body, which would then be
        taken for the next request. So a new parser reads that head again without its `Upgrade`.
        Raises `HttpParserError`.
        """
        while not self._is_refused:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                if self._is_refused:
                    return
                data = self._head_without_upgrade() + data[upgrade.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            else:
                return

    def _head_without_upgrade(self) -> bytes:
        version = self.parser.get_http_version().encode()
        lines = [b" ".join((self.parser.get_method(), self.url, b"HTTP/" + version))]
        lines += [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join((*lines, b"", b""))

    def _count_head(self, size: int) -> None:
        """Limit the bytes of a head or of framing; a slow peer has 10 s for a head."""
        self._head_size += size
        if self._receiving is None:
            self._receiving = self.loop.call_later(HEAD_SECONDS, self._on_late)
        if self._head is None:
            self._head = self._bounded.memory_budget.share()
        self._head.grow(2 * size)
        if self._head_size > MAX_HEAD or self._header_count > MAX_HEADERS:
            self._refuse("head_too_large")

    def on_message_begin(self) -> None:
        self._is_in_head = True
        self._is_upgrade = False
        self._head_size = self._header_count = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if len(self.url) <= MAX_HEAD:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_count += self._is_in_head
        if self._is_in_head and self._header_count <= MAX_HEADERS:  # else a trailer (RFC 9110, 6.5)
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._is_in_head, self._head_size = False, 0
        self._end_receiving()
        if self._is_refused:
            return
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > MAX_HEAD or self._header_count > MAX_HEADERS:
            self._refuse("head_too_large")
        elif len(self.pipeline) >= MAX_PIPELINED:
            self._take_no_more()
        elif problem := head_problem(self.parser, self.headers):
            self._refuse_next(problem)
        elif self.parser.should_upgrade():
            self._is_upgrade = True
        else:
            has_room = self._bounded.begin(self)
            if not (has_room or self.url.partition(b"?")[0] in _ALWAYS):
                self._refuse("overloaded")
                return
            self._is_in_body = True
            super().on_headers_complete()
            if not self.pipeline:
                self._answered = self.cycle
            if not has_room:
                self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._is_framing, self._head_size = False, 0
        if self._head:
            self._head.release()
        if not self._is_refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_in_body = self._is_framing = False
        self._end_receiving()
        if not self._is_refused and not self._is_upgrade:
            super().on_message_complete()

    def _on_late(self) -> None:
        self._receiving = None
        self._refuse("request_timeout")

    def _end_receiving(self) -> None:
        if self._receiving:
            self._receiving.cancel()
            self._receiving = None
        if self._head:
            self._head.release()
            self._head = None

    # What is sent

    def on_response_complete(self) -> None:
        if self.pipeline:
            self._answered = self.pipeline[-1][0]
        super().on_response_complete()
        if self.transport.is_closing():
            self._abort_later(STALL_SECONDS)
        elif not self.pipeline:
            self._bounded.end(self)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._bounded.stall(self)
        if self._sending is None:
            self._watch_writing(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        self._bounded.resume(self)
        self._end_sending()

    def _watch_writing(self, left: int) -> None:
        self._sending = self.loop.call_later(STALL_SECONDS, self._on_stalled, left)

    def _on_stalled(self, left: int) -> None:
        """Close if the peer has read nothing, so that the response ends."""
        still_left = self.transport.get_write_buffer_size()
        if still_left < left:
            self._watch_writing(still_left)
            return
        path = self.scope["path"] if self.scope and "path" in self.scope else "an answer"
        _logger.warning("lagged: %s was not read for %g s", path[:200], STALL_SECONDS)
        self.abort()

    def _end_sending(self) -> None:
        if self._sending:
            self._sending.cancel()
            self._sending = None

    def _abort_later(self, seconds: float) -> None:
        """Abort a closing connection whose peer does not read the rest in time."""
        self._end_sending()
        self._sending = self.loop.call_later(seconds, self.abort)

    def _refuse(self, code: str) -> None:
        """Reply with an error, unless a response has started, and close; discard further input."""
        self._is_refused = True
        self._end_receiving()
        self._bounded.idle.pop(self, None)
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            if cycle.response_started or self.pipeline:
                self.abort()
                return
            cycle.disconnected = True  # the application hears that the peer has gone
            cycle.message_event.set()
        self.transport.write(error_response(code))
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(LINGER_SECONDS, self.abort)

    def _refuse_next(self, code: str) -> None:
        """Refuse a request; if earlier ones are still being answered, drop it instead."""
        if self.cycle is None or self.cycle.response_complete:
            self._refuse(code)
        else:
            self._take_no_more()

    def _take_no_more(self) -> None:
        """Answer the accepted requests, then close: the pipeline is invalid from here on."""
        self._is_refused = True
        self.cycle.keep_alive = False

    def eof_received(self) -> None:
        if self._is_refused:
            self.abort()


def head_problem(parser: httptools.HttpRequestParser, headers: list[tuple[bytes, bytes]]) -> str:
    """Return the error code for a head.

    "" if it is accepted. HTTP/1.0 has no transfer codings: a proxy may see another body (RFC 9112,
    6.1). The parser also accepts versions 0.9 and 2.0, whose messages differ.
    """
    version = parser.get_http_version()
    if version not in {"1.0", "1.1"}:
        return "invalid_version"
    if not has_one_host(headers, version):
        return "invalid_host"
    if version == "1.0" and any(name == b"transfer-encoding" for name, _ in headers):
        return "invalid_request"
    return "not_implemented" if parser.get_method() == b"CONNECT" else ""


def has_one_host(headers: list[tuple[bytes, bytes]], version: str) -> bool:
    """Whether there is exactly one valid Host header (RFC 9112, 3.2)."""
    hosts = [value for name, value in headers if name == b"host"]
    if not hosts:
        return version == "1.0"
    return len(hosts) == 1 and _HOST.fullmatch(hosts[0]) is not None


def error_response(code: str) -> bytes:
    """Return the error response for a code, as problem+json (RFC 9457)."""
    status, detail = _ERRORS[code]
    phrase = HTTPStatus(status).phrase
    body = orjson.dumps(
        {"type": "about:blank", "title": phrase, "status": status, "detail": detail, "code": code}
    )
    retry = "Retry-After: 1\r\n" if code == "overloaded" else ""
    head = (
        f"HTTP/1.1 {status} {phrase}\r\nContent-Type: application/problem+json\r\n{retry}"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
