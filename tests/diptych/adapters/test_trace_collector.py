"""Collectors that answer what none should: each export ends, is told in short, and counted."""

import logging
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.oidc_issuer import Authority

from diptych.adapters.telemetry.collector import CountedBatches, WatchedExporter

LIMIT = 0.3  # seconds of an export
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n"
AGAIN = b"HTTP/1.1 429 Too Many\r\nContent-Length: 0\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
Answer = Callable[[socket.socket], None]


def spans(count: int = 3) -> tuple[ReadableSpan, ...]:
    made, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(made))
    for _ in range(count):
        provider.get_tracer("t").start_span("a span").end()
    return made.get_finished_spans()


class Server:
    """Takes connections one after another; `heads` are those of the requests."""

    def __init__(self, answer: Answer, tls: ssl.SSLContext | None = None) -> None:
        self._answer = answer
        self._tls = tls
        self.is_http = True  # else it answers to whatever comes
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.heads: list[bytes] = []
        self.open: list[socket.socket] = []

    def serve(self) -> None:
        with suppress(OSError):
            while True:
                connection = self._listener.accept()[0]
                if self._tls:
                    connection = self._tls.wrap_socket(connection, server_side=True)
                self.open.append(connection)
                threading.Thread(target=self._take, args=(connection,), daemon=True).start()

    def _take(self, connection: socket.socket) -> None:
        with suppress(OSError, ValueError), connection:
            while request := self._request(connection):
                self.heads.append(request)
                self._answer(connection)

    def _request(self, connection: socket.socket) -> bytes:
        read = b"" if self.is_http else connection.recv(65_536) + b"\r\n\r\n"
        while b"\r\n\r\n" not in read:
            if not (piece := connection.recv(65_536)):
                return b""
            read += piece
        head, _, body = read.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
        while len(body) < length:
            body += connection.recv(65_536)
        return head

    def close(self) -> None:
        for one in (self._listener, *self.open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


@contextmanager
def asked(
    monkeypatch: pytest.MonkeyPatch,
    answer: Answer,
    scheme: str = "http",
    *,
    limit: float = LIMIT,
    tls: ssl.SSLContext | None = None,
) -> Iterator[tuple[WatchedExporter, Server]]:
    server = Server(answer, tls)
    threading.Thread(target=server.serve, daemon=True).start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"{scheme}://{server.address}")
    exporter = WatchedExporter("the place", limit)
    try:
        yield exporter, server
    finally:
        server.close()
        exporter.shutdown()


def replies(*pieces: bytes) -> Answer:
    return lambda connection: connection.sendall(b"".join(pieces) + b"\r\n")


def ends_with(*pieces: bytes) -> Answer:
    def answer(connection: socket.socket) -> None:
        connection.sendall(b"".join(pieces))
        connection.shutdown(socket.SHUT_RDWR)

    return answer


def floods(first: bytes, again: bytes) -> Answer:
    def answer(connection: socket.socket) -> None:
        connection.sendall(first)
        while True:
            connection.sendall(again * 100)

    return answer


def exports() -> list[str]:
    """Name what still sends spans."""
    return [each.name for each in threading.enumerate() if each.name == "diptych-export"]


REFUSALS = [
    pytest.param(replies(b"HTTP/1.1 413 Large\r\nContent-Length: 0\r\n"), "answers 413", id="413"),
    *(
        pytest.param(replies(AGAIN, b"Retry-After: ", after, b"\r\n"), "answers 429", id=str(after))
        for after in (b"0", b"-5", b"99999", b"1e400", b"nan", b"\xff", b"Fri, 99 Oct 99999")
    ),
    *(
        pytest.param(
            replies(b"HTTP/1.1 302 X\r\nContent-Length: 0\r\nLocation: ", where, b"\r\n"),
            "answers 302",
            id=str(where),
        )
        for where in (b"http://127.0.0.1:9/", b"/v1/traces", b"http://[::\xff/", b"")
    ),
    pytest.param(ends_with(), "cannot be asked: ConnectionError", id="no answer"),
    pytest.param(replies(b"\x15\x03\x03\x00\x02\x02\x46"), "cannot be asked", id="speaks TLS"),
    pytest.param(floods(b"", CONTINUE), "answers too much", id="continues"),
    pytest.param(floods(OK, b"A: " + b"x" * 9000 + b"\r\n"), "answers too much", id="head"),
]


@pytest.mark.parametrize(("answer", "said"), REFUSALS)
def test_whatever_is_no_success_is_told_and_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, answer: Answer, said: str
) -> None:
    with asked(monkeypatch, answer) as (exporter, _):
        for _ in range(2):
            assert exporter.export(spans()) is SpanExportResult.FAILURE
        assert exports() == [], "it still works for a collector that was given up"
        assert exporter.lost == 6
    lines = [each.getMessage() for each in caplog.records if each.name.startswith("diptych")]
    assert len(lines) == 1
    assert f"takes no traces (it {said}" in lines[0]


def test_https_that_is_none_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def garbage(connection: socket.socket) -> None:
        connection.sendall(b"garbage" * 100)

    with asked(monkeypatch, garbage, "https") as (exporter, server):
        server.is_http = False
        assert exporter.export(spans()) is SpanExportResult.FAILURE
        assert "SSLError" in exporter._session.said
        assert exports() == []


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(ends_with(b"HTTP/1.1 200 OK\r\nConte"), id="in its head"),
        pytest.param(ends_with(OK[:-3], b"9\r\n\r\nabc"), id="in its body"),
        pytest.param(ends_with(CHUNKED, b"ff\r\nabc"), id="in a chunk"),
        pytest.param(floods(OK[:-3] + b"99999999\r\n\r\n", b"x" * 9000), id="endless body"),
        pytest.param(floods(CHUNKED, b"1;" + b"x" * 9000), id="endless extension of a chunk"),
        pytest.param(floods(CHUNKED + b"0\r\n", b"A: " + b"x" * 900 + b"\r\n"), id="trailers"),
    ],
)
def test_after_its_status_an_answer_may_break_off_or_never_end(
    monkeypatch: pytest.MonkeyPatch, answer: Answer
) -> None:
    with asked(monkeypatch, answer) as (exporter, _):
        for _ in range(2):
            assert exporter.export(spans()) is SpanExportResult.SUCCESS
        assert exports() == []
        assert (exporter.handled, exporter.lost) == (6, 0)


def test_a_slow_answer_ends_after_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """No read of it takes that long."""
    paused = threading.Event()

    def drip(connection: socket.socket) -> None:
        while True:
            connection.sendall(CONTINUE)
            paused.wait(LIMIT / 10)

    with asked(monkeypatch, drip) as (exporter, server):
        assert exporter.export(spans()) is SpanExportResult.FAILURE
        assert exporter._session.said == "does not end its answer"
        assert exports() == []
        assert len(server.heads) == 1


def test_no_cookie_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would come back with every export, and be more each time."""
    with asked(monkeypatch, replies(OK, b"Set-Cookie: a=sesame\r\n")) as (exporter, server):
        for _ in range(3):
            assert exporter.export(spans()) is SpanExportResult.SUCCESS
    assert len(server.heads) == 3
    assert len(server.open) == 1, "an answer that is read can be followed by another"
    assert b"sesame" not in b"".join(server.heads)


def test_the_bounds_hold_over_tls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    authority = Authority()
    certificate = tmp_path / "authority.pem"
    certificate.write_text(authority.pem)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(certificate))
    for name, value in (("REQUESTS_CA_BUNDLE", "/none"), ("HTTPS_PROXY", "http://127.0.0.1:9")):
        monkeypatch.setenv(name, value)  # which are for others
    tls = authority.server()
    with asked(monkeypatch, replies(OK), "https", limit=5.0, tls=tls) as (exporter, server):
        for _ in range(3):
            assert exporter.export(spans()) is SpanExportResult.SUCCESS
        assert (len(server.heads), len(server.open)) == (3, 1)
    flood = floods(b"", CONTINUE)
    with asked(monkeypatch, flood, "https", limit=5.0, tls=tls) as (exporter, _):
        assert exporter.export(spans()) is SpanExportResult.FAILURE
        assert exporter._session.said == "answers too much"
        assert exports() == []


def test_a_span_that_finds_no_room_is_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, logger="opentelemetry")
    answered = threading.Event()

    def wait(connection: socket.socket) -> None:
        answered.wait(10)
        connection.sendall(OK + b"\r\n")

    with asked(monkeypatch, wait, limit=20.0) as (exporter, _):
        batches = CountedBatches(exporter, 4, 60_000, 4)
        for span in spans(10):
            batches.on_end(span)
        assert 2 <= batches.lost <= 6, "four wait, and four may be on their way"
        lost = batches.lost
        answered.set()
        batches.shutdown()  # type: ignore[no-untyped-call]
        assert exporter.handled == 10 - lost
        assert batches.lost == lost
