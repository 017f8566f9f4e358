"""The HTTP transport below the SDK's MCP client.

The SDK's client ends, with every call on it, when a single HTTP request cannot connect or breaks
off (`mcp.client.streamable_http._handle_post_request` catches no transport error). So
`RecordingTransport` turns such failures into JSON-RPC errors of that one request, and records what
really happened in the request's `RequestOutcome`.
"""

import functools
import socket
import ssl
from collections.abc import AsyncIterator, Mapping

import aiohttp
import httpx2

from diptych.mcp.aiohttp_transport import AiohttpTransport
from diptych.mcp.http_status import AUTH_STATUSES, record_response
from diptych.mcp.request_outcome import RequestOutcome, Stage, current_outcome
from diptych.net.name_server import unresolved
from diptych.net.outgoing import AddressRefused, OutgoingPolicy
from diptych.net.proxies import proxy_for, through
from diptych.net.received import Received, TooMuchReceived, is_compressed
from diptych.ports import ValueProvider

CONNECT_TIMEOUT = 5.0  # seconds, as all times here
UNAWAITED_TIMEOUT = 1.0
"""For requests that nobody waits for: notifications, and the end of a session."""

CONNECT_REASONS: tuple[tuple[type[BaseException], str], ...] = (
    (httpx2.ConnectTimeout, f"did not answer within {CONNECT_TIMEOUT:g} s"),
    (httpx2.UnsupportedProtocol, "its URL must begin with http:// or https://"),
    (AddressRefused, "its address is one that agents may not connect to"),
    (ssl.SSLError, "no secure connection"),
    (ConnectionRefusedError, "connection refused"),
    (aiohttp.ClientHttpProxyError, "it does not let the request through"),
)


class CommandNotStarted(OSError):
    """The command of a stdio server cannot be started; the message names its program."""


class HandshakeAborted(httpx2.TransportError):
    """Ends a handshake; its outcome says why."""


class RecordingTransport(httpx2.AsyncBaseTransport):
    """Sends requests with the headers' current values; raises nothing but `HandshakeAborted`."""

    def __init__(
        self, inner: httpx2.AsyncBaseTransport, url: str, headers: Mapping[str, ValueProvider]
    ) -> None:
        self._inner = inner
        self._origin = _origin(httpx2.URL(url))
        self._headers = headers

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        outcome = _outcome_of(request)
        _limit_unawaited(request)
        if (missing := self._set_headers(request)) is not None:
            outcome.record(Stage.NOT_SENT, f"header {missing} has no value yet")
            return _error_response(request, outcome)
        try:
            response = await self._send(request, outcome)
            if _is_event_stream(response):
                outcome.record(Stage.STREAMING)
                return _with_stream(response, _RecordedStream(response, outcome))
            body = await _read_body(response, outcome.received)
            answer = record_response(request, response, body, outcome)
            _end_handshake(response.status_code, outcome)
        except HandshakeAborted:
            raise
        except TooMuchReceived as error:
            outcome.record(Stage.UNUSABLE, error.reason)
            return _error_response(request, outcome)
        except (httpx2.TransportError, httpx2.DecodingError) as error:
            _record_failure(error, outcome, proxy_for(str(request.url)))
            return _error_response(request, outcome)
        else:
            return answer

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _send(self, request: httpx2.Request, outcome: RequestOutcome) -> httpx2.Response:
        """Send a request; its response is as long as it is on the wire. Raises `TooMuchReceived`.

        A compressed answer is refused: how long it is shows only when it is inflated.
        """
        if outcome.received and outcome.received.exceeded:  # the SDK resumes what was cut off
            raise TooMuchReceived(outcome.received.exceeded)
        response = await self._inner.handle_async_request(request)
        if is_compressed(response.headers):
            await response.aclose()
            raise TooMuchReceived("its answer is compressed, which it was not asked to be")
        return response

    def _set_headers(self, request: httpx2.Request) -> str | None:
        """Set the configured headers; name the first one whose value is missing.

        They are credentials of the configured origin: no other gets them.
        """
        if _origin(request.url) != self._origin:
            return None
        for name, read in self._headers.items():
            value = read()
            if not value:
                return name
            request.headers[name] = value.strip()
        return None


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _outcome_of(request: httpx2.Request) -> RequestOutcome:
    """Give where a request is recorded: one of its own for what nobody who made it asked for.

    Those are the end of a session, and its stream beside the calls.
    """
    outcome = current_outcome()
    is_session_stream = request.method == "GET" and "last-event-id" not in request.headers
    if request.method == "DELETE" or is_session_stream:
        return RequestOutcome(on_stream_end=outcome.on_stream_end, received=None)
    return outcome


def _end_handshake(status: int, outcome: RequestOutcome) -> None:
    """Raise `HandshakeAborted` if there is no use in going on with it.

    404 and most 4xx are how servers of the older protocol answer the first request.
    """
    is_lost = outcome.stage in (Stage.SERVER_ERROR, Stage.LOST)
    if outcome.is_handshake and (is_lost or status in AUTH_STATUSES):
        raise HandshakeAborted(outcome.reason or "")


def _limit_unawaited(request: httpx2.Request) -> None:
    if request.method == "DELETE" or b'"method":"notifications/' in request.content[:80]:
        operations = ("connect", "read", "write", "pool")
        request.extensions["timeout"] = dict.fromkeys(operations, UNAWAITED_TIMEOUT)


def _error_response(request: httpx2.Request, outcome: RequestOutcome) -> httpx2.Response:
    """Answer in the server's place with a JSON-RPC error; the SDK sets the id of its request.

    Raises `HandshakeAborted` instead if the request belongs to a handshake.
    """
    if outcome.is_handshake:
        raise HandshakeAborted(outcome.reason or "")
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": outcome.reason}}
    return httpx2.Response(405 if request.method == "DELETE" else 503, json=error)


def _record_failure(error: httpx2.RequestError, outcome: RequestOutcome, proxy: str | None) -> None:
    match error:
        case httpx2.ConnectError() | httpx2.ConnectTimeout() | httpx2.UnsupportedProtocol():
            outcome.record(Stage.NOT_SENT, through(proxy, connect_reason(error)))
        case httpx2.LocalProtocolError():
            outcome.record(Stage.NOT_SENT, "a header has a value that cannot be sent")
        case _:
            outcome.record(Stage.LOST, through(proxy, "the connection broke off"))


def _is_event_stream(response: httpx2.Response) -> bool:
    media_type = response.headers.get("content-type", "")
    return response.is_success and media_type.startswith("text/event-stream")


async def _read_body(response: httpx2.Response, received: Received | None) -> bytes:
    """Read a body that is no stream here, where its failures are seen. Raises `TooMuchReceived`.

    What nobody has `received` is counted while it is read.
    """
    counted = received or Received()
    chunks = []
    try:
        async for chunk in _chunks(response):
            counted.add(chunk)
            chunks.append(chunk)
    finally:
        if received is None:
            counted.release()
        await response.aclose()
    return b"".join(chunks)


def _chunks(response: httpx2.Response) -> AsyncIterator[bytes]:
    if not isinstance(response.stream, httpx2.AsyncByteStream):
        raise TypeError("an asynchronous transport gave a synchronous stream")
    return aiter(response.stream)


def _with_stream(response: httpx2.Response, stream: httpx2.AsyncByteStream) -> httpx2.Response:
    return httpx2.Response(response.status_code, headers=response.headers, stream=stream)


class _RecordedStream(httpx2.AsyncByteStream):
    """An event stream that records it when it ends before anyone closed it."""

    def __init__(self, response: httpx2.Response, outcome: RequestOutcome) -> None:
        self._response = response
        self._outcome = outcome

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in _chunks(self._response):
                if self._outcome.received is not None:
                    self._outcome.received.add(chunk)
                yield chunk
        except TooMuchReceived as error:
            self._outcome.record(Stage.UNUSABLE, error.reason)
            raise httpx2.ReadError(error.reason) from error
        except httpx2.TransportError:
            self._record_end("the connection broke off")
            raise
        self._record_end("the connection was closed")

    async def aclose(self) -> None:
        await self._response.aclose()

    def _record_end(self, reason: str) -> None:
        self._outcome.record(Stage.LOST, reason)
        if self._outcome.on_stream_end is not None:
            self._outcome.on_stream_end()


def connect_reason(error: BaseException | None) -> str:
    """Say in a few words why there is no connection, from types alone: texts may hold secrets."""
    while error is not None:
        if isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
            continue
        if isinstance(error, socket.gaierror):
            return unresolved(error)
        if isinstance(error, CommandNotStarted):
            return str(error)
        for kind, reason in CONNECT_REASONS:
            if isinstance(error, kind):
                return reason
        error = error.__cause__ or error.__context__
    return "no connection"


def http_client(url: str, headers: Mapping[str, ValueProvider]) -> httpx2.AsyncClient:
    """Make the one HTTP client of a server: it limits the time to connect, calls limit the rest.

    It follows no redirects. `headers` go to the origin of `url` only.
    """
    inner = AiohttpTransport(OutgoingPolicy([url]), _tls_context())
    return httpx2.AsyncClient(
        transport=RecordingTransport(inner, url, headers),
        follow_redirects=False,
        timeout=httpx2.Timeout(None, connect=CONNECT_TIMEOUT),
        headers={"accept-encoding": "identity"},
    )


@functools.cache
def _tls_context() -> ssl.SSLContext:
    """Read the system's certificates once: that takes longer than all else here."""
    return httpx2.create_ssl_context()
