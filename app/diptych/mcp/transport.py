"""The HTTP transport below the SDK's MCP client, which records the outcome of each request.

When a single HTTP request fails, the SDK's client ends with all its calls, and drops the HTTP
status, which decides whether a call may be retried. So `RecordingTransport` turns failures into
JSON-RPC errors of that one request, and records each outcome in a `RequestOutcome`. That travels in
a `ContextVar`: the SDK builds its HTTP requests itself, but in a copy of the caller's context.
"""

import functools
import json
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Self, TypeAlias

import aiohttp
import httpx2

from diptych.core.messages import JSONObject
from diptych.mcp.aiohttp_transport import AiohttpTransport
from diptych.net.name_server import unresolved
from diptych.net.outgoing import AddressRefused, OutgoingPolicy
from diptych.net.proxies import proxy_for, through
from diptych.net.received import Received, TooMuchReceived, is_compressed
from diptych.ports import ValueProvider

CONNECT_TIMEOUT = 5.0  # seconds, as all times here
UNAWAITED_TIMEOUT = 1.0  # for requests without a waiting caller: notifications, a session's end

CONNECT_REASONS: tuple[tuple[type[BaseException], str], ...] = (
    (httpx2.ConnectTimeout, f"did not answer within {CONNECT_TIMEOUT:g} s"),
    (httpx2.UnsupportedProtocol, "its URL must start with http:// or https://"),
    (AddressRefused, "agents may not connect to its address"),
    (ssl.SSLCertVerificationError, "its certificate is not trusted"),
    (ssl.SSLError, "no secure connection"),
    (ConnectionRefusedError, "connection refused"),
    (aiohttp.ClientHttpProxyError, "it rejects the request"),
)
AUTH_STATUSES = frozenset({401, 403, 407, 421})
"""Statuses that reject us before MCP starts (421: the server does not serve this host name)."""

REJECTED_STATUSES = AUTH_STATUSES | {404, 410}
"""Statuses that mean that no tool was reached, and that a retry would not reach one either."""

NO_MCP = "no MCP over streamable HTTP or HTTP+SSE at this URL (it often ends with /mcp or /sse)"
HINTS = {
    400: NO_MCP,
    401: "it requires credentials",
    403: "it refuses the credentials, or this host name",
    404: NO_MCP,
    405: NO_MCP,
    421: "it does not serve this host name",
}
"""The most likely meaning of a status during the handshake, as advice for a manifest's author."""

ANSWERED_BY_STREAM = "diptych.answered_by_stream"
"""An extension of requests whose answers come over another event stream (HTTP+SSE)."""


class Stage(Enum):
    """The progress of the newest request."""

    PENDING = auto()
    """No HTTP request has ended yet; for servers without HTTP, the permanent stage."""
    NOT_SENT = auto()
    """No tool was reached; a new connection may reach it."""
    REJECTED = auto()
    """An HTTP status says that no tool was reached; a new connection would not help."""
    STREAMING = auto()
    """The server responds with an event stream, which is still intact."""
    ANSWERED = auto()
    """The server answered with a valid MCP message."""
    REFUSED = auto()
    """An HTTP status refuses this request; the connection stays usable."""
    UNUSABLE = auto()
    """The server's answer cannot be read: a tool may have run."""
    SERVER_ERROR = auto()
    """An HTTP status reports a failure, perhaps after a tool ran; the connection stays usable."""
    LOST = auto()
    """The request was sent, but the connection ended before the answer: a tool may have run."""


@dataclass(slots=True)
class RequestOutcome:
    """The outcome of the successive requests of one call, listing or handshake.

    `reason` says in a few words why there is no answer. A handshake stops at its first failure;
    `may_be_older` if its statuses are those of servers of the older transport HTTP+SSE.
    `on_stream_end` is called when an event stream ends without having been closed here. `received`
    counts all received bytes until the `recording` block ends; None for messages outside of calls.
    """

    stage: Stage = Stage.PENDING
    reason: str | None = None
    is_handshake: bool = False
    may_be_older: bool = False
    on_stream_end: Callable[[], None] | None = None
    received: Received | None = field(default_factory=Received)

    def record(self, stage: Stage, reason: str | None = None) -> None:
        """Advance the stage.

        Once the server was reached, NOT_SENT becomes LOST. After LOST, only STREAMING (a resumed
        stream) can restore the call.
        """
        match self.stage, stage:
            case ((Stage.PENDING | Stage.NOT_SENT), _):
                pass
            case Stage.LOST, Stage.ANSWERED:
                return
            case Stage.LOST, Stage.UNUSABLE:
                stage = Stage.SERVER_ERROR
            case _, Stage.NOT_SENT:
                stage = Stage.LOST
            case (_, Stage.REJECTED) | (Stage.STREAMING | Stage.LOST, Stage.REFUSED):
                stage = Stage.SERVER_ERROR
        self.stage, self.reason = stage, reason

    @contextmanager
    def recording(self) -> Iterator[Self]:
        """Record the requests made within the block."""
        token = _CURRENT.set(self)
        try:
            yield self
        finally:
            _CURRENT.reset(token)
            self.stop_counting()

    def stop_counting(self) -> None:
        """Release the counted bytes, which have been parsed by now."""
        if self.received is not None:
            self.received.release()
            self.received = None


_CURRENT: ContextVar[RequestOutcome] = ContextVar("mcp_request_outcome")


class AuthorizationFailed(Exception):
    """There is no token for a server; `reason` says why in a few words, without secrets."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


SendRequest: TypeAlias = Callable[[httpx2.Request], Awaitable[httpx2.Response]]
Authorize: TypeAlias = Callable[[httpx2.Request, SendRequest], Awaitable[httpx2.Response]]
"""Sends a request with a token, again after it was refused. Raises `AuthorizationFailed`."""


class CommandNotStarted(OSError):
    """The command of a stdio server cannot be started; the message names the program."""


class HandshakeAborted(httpx2.TransportError):
    """Ends a handshake; the reason is in its outcome."""


def http_client(
    url: str, headers: Mapping[str, ValueProvider], authorize: Authorize | None = None
) -> httpx2.AsyncClient:
    """Return the HTTP client for a server; it limits only the time to connect.

    It follows no redirects. `headers` and tokens are sent to the origin of `url` only.
    """
    inner = AiohttpTransport(OutgoingPolicy([url]), tls_context())
    return httpx2.AsyncClient(
        transport=RecordingTransport(inner, url, headers, authorize),
        follow_redirects=False,
        timeout=httpx2.Timeout(None, connect=CONNECT_TIMEOUT),
        headers={"accept-encoding": "identity"},
    )


@functools.cache
def tls_context() -> ssl.SSLContext:
    """Load the system's certificates, only once since that is slow."""
    return httpx2.create_ssl_context()


def connect_reason(error: BaseException | None) -> str:
    """Return in a few words why connecting failed. Uses no error texts, which may have secrets."""
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


class RecordingTransport(httpx2.AsyncBaseTransport):
    """Sends requests with the current header values; raises only `HandshakeAborted`."""

    def __init__(
        self,
        inner: httpx2.AsyncBaseTransport,
        url: str,
        headers: Mapping[str, ValueProvider],
        authorize: Authorize | None = None,
    ) -> None:
        self._inner = inner
        self._origin = origin(httpx2.URL(url))
        self._headers = headers
        self._authorize = authorize

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        outcome = _outcome_of(request)
        if request.method == "DELETE" or b'"method":"notifications/' in request.content[:80]:
            operations = ("connect", "read", "write", "pool")
            request.extensions["timeout"] = dict.fromkeys(operations, UNAWAITED_TIMEOUT)
        if (missing := self._set_headers(request)) is not None:
            outcome.record(Stage.NOT_SENT, f"header {missing} has no value yet")
            return _error_response(request, outcome)
        try:
            response = await self._send(request, outcome)
            if is_event_stream(response):
                outcome.record(Stage.STREAMING)
                stream = _RecordedStream(response, outcome)
                headers = response.headers
                return httpx2.Response(response.status_code, headers=headers, stream=stream)
            body = await _read_body(response, outcome, request)
            answer = record_response(request, response, body, outcome)
            _end_handshake(response.status_code, outcome)
        except HandshakeAborted:
            raise
        except AuthorizationFailed as error:
            outcome.record(Stage.REJECTED, error.reason)
            return _error_response(request, outcome)
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
        """Send a request; return its uncompressed response. Raises `TooMuchReceived`.

        A compressed response is refused: its real size would only show after inflating it.
        """
        if outcome.received and outcome.received.exceeded:  # the SDK resumes a stream that was cut
            raise TooMuchReceived(outcome.received.exceeded)
        send = self._inner.handle_async_request
        if self._authorize and origin(request.url) == self._origin:
            response = await self._authorize(request, send)
        else:
            response = await send(request)
        if is_compressed(response.headers):
            await response.aclose()
            raise TooMuchReceived("its answer is compressed, although that was not requested")
        return response

    def _set_headers(self, request: httpx2.Request) -> str | None:
        """Set the configured headers; return the name of the first one without a value.

        They are credentials for the configured origin, and sent to no other.
        """
        if origin(request.url) != self._origin:
            return None
        for name, read in self._headers.items():
            value = read()
            if not value:
                return name
            request.headers[name] = value.strip()
        return None


class _RecordedStream(httpx2.AsyncByteStream):
    """An event stream that records its end, unless it was closed on this side."""

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
            self._record_end("the connection broke")
            raise
        self._record_end("the connection was closed")

    async def aclose(self) -> None:
        await self._response.aclose()

    def _record_end(self, reason: str) -> None:
        self._outcome.record(Stage.LOST, reason)
        if self._outcome.on_stream_end is not None:
            self._outcome.on_stream_end()


def origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    """Return the scheme, host and port; None for the scheme's own port."""
    return url.scheme, url.host, url.port


def _outcome_of(request: httpx2.Request) -> RequestOutcome:
    """Return the outcome to record in; a session's end and its own stream belong to no call."""
    outcome = _CURRENT.get(None) or RequestOutcome(received=None)
    is_session_stream = request.method == "GET" and "last-event-id" not in request.headers
    if request.method == "DELETE" or is_session_stream:
        return RequestOutcome(on_stream_end=outcome.on_stream_end, received=None)
    return outcome


def _end_handshake(status: int, outcome: RequestOutcome) -> None:
    """Raise `HandshakeAborted` if it cannot succeed any more.

    404 and most other 4xx do not abort: servers of the older protocol send them first.
    """
    is_lost = outcome.stage in (Stage.SERVER_ERROR, Stage.LOST)
    if outcome.is_handshake and (is_lost or status in AUTH_STATUSES):
        raise HandshakeAborted(outcome.reason or "")


def _error_response(request: httpx2.Request, outcome: RequestOutcome) -> httpx2.Response:
    """Return a JSON-RPC error in place of the server's response; the SDK fills in the id.

    Raises `HandshakeAborted` instead during a handshake.
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
            outcome.record(Stage.NOT_SENT, str(error))
        case _:
            outcome.record(Stage.LOST, through(proxy, "the connection broke"))


def is_event_stream(response: httpx2.Response) -> bool:
    """Whether a response succeeds with an event stream."""
    media_type = response.headers.get("content-type", "")
    return response.is_success and media_type.startswith("text/event-stream")


async def _read_body(
    response: httpx2.Response, outcome: RequestOutcome, request: httpx2.Request
) -> bytes:
    """Read a whole body, here rather than in the SDK, to see failures. Raises `TooMuchReceived`.

    If its call ends meanwhile, this body's share of memory is released here.
    """
    is_answer = ANSWERED_BY_STREAM not in request.extensions
    counted = (outcome.received if is_answer else None) or Received()
    try:
        return await counted.read(_chunks(response))
    finally:
        if counted is not outcome.received:
            counted.release()
        await response.aclose()


def _chunks(response: httpx2.Response) -> AsyncIterator[bytes]:
    if not isinstance(response.stream, httpx2.AsyncByteStream):
        raise TypeError("an asynchronous transport returned a synchronous stream")
    return aiter(response.stream)


def record_response(
    request: httpx2.Request, response: httpx2.Response, body: bytes, outcome: RequestOutcome
) -> httpx2.Response:
    """Record the outcome of a response; return the response to pass to the SDK.

    The body of a POST's response is the answer to its request, whatever its content type and even
    without an id. Any other body is an error at once, since no other answer will follow.
    """
    status, headers, message = response.status_code, response.headers.copy(), _json_rpc(body)
    if message is not None:
        headers["content-type"] = "application/json"
    if not response.is_success:
        _record_status(request, response, message, outcome)
    elif ANSWERED_BY_STREAM in request.extensions:
        outcome.record(Stage.STREAMING)
    elif (own_id := _id_of(request)) is None:
        outcome.record(Stage.ANSWERED)
    else:
        problem = _problem(own_id, response, body, message)
        outcome.record(Stage.UNUSABLE if problem else Stage.ANSWERED, problem)
        if problem:
            message = {"error": {"code": -32000, "message": problem}}
        if message is not None and message.get("id") is None:
            body = json.dumps({**message, "jsonrpc": "2.0", "id": own_id}).encode()
        status, headers["content-type"] = httpx2.codes.OK, "application/json"
    return httpx2.Response(status, headers=headers, content=body)


def _problem(
    own_id: object, response: httpx2.Response, body: bytes, message: JSONObject | None
) -> str | None:
    """Return why a successful response does not answer the request; None if it does."""
    if not body.strip():
        return f"HTTP {response.status_code} without an answer"
    if message is None:
        return "its answer is not JSON-RPC"
    if message.get("id") is not None and str(message["id"]) != str(own_id):
        return "it answered another request"
    return None


def _record_status(
    request: httpx2.Request,
    response: httpx2.Response,
    message: JSONObject | None,
    outcome: RequestOutcome,
) -> None:
    """Record the outcome of an unsuccessful status."""
    status = response.status_code
    error = message if message is not None and isinstance(message.get("error"), dict) else None
    if "mcp-session-id" in request.headers and _knows_no_session(request, status, error):
        outcome.record(Stage.NOT_SENT, "its session ended")
        return
    if status not in AUTH_STATUSES and error is not None:
        outcome.record(Stage.ANSWERED)
        return
    hint = HINTS.get(status) if outcome.is_handshake else None
    outcome.may_be_older = hint is NO_MCP
    reason = f"HTTP {status}: {hint}" if hint else f"HTTP {status}"
    if status < httpx2.codes.BAD_REQUEST:
        reason = _redirect_reason(request, response)
    stage = Stage.REFUSED
    if status in REJECTED_STATUSES:
        stage = Stage.REJECTED
    elif status >= httpx2.codes.INTERNAL_SERVER_ERROR or status == httpx2.codes.REQUEST_TIMEOUT:
        stage = Stage.SERVER_ERROR
    outcome.record(stage, reason)


def _redirect_reason(request: httpx2.Request, response: httpx2.Response) -> str:
    """Describe a redirect, with advice if it only adds or removes a slash at the end.

    Quotes no URL: the target is the server's text, and some paths contain a secret.
    """
    to = response.headers.get("location", "")
    path = request.url.path
    for other, what in ((path + "/", "with"), (path.removesuffix("/"), "without")):
        if other != path and to in (other, str(request.url.copy_with(path=other))):
            return f"redirects to the same URL {what} a slash at the end: change its URL"
    return "redirects to another URL"


def _json_rpc(body: bytes) -> JSONObject | None:
    """Parse a JSON-RPC result or error; None for anything else."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):  # uncaught, it would end all calls of the connection
        return None
    if not isinstance(value, dict) or "jsonrpc" not in value or "method" in value:
        return None
    match value:
        case {"error": {"code": int(), "message": str()}} | {"result": dict()}:
            return value
    return None


def _knows_no_session(request: httpx2.Request, status: int, error: JSONObject | None) -> bool:
    """Whether the server does not know the session (any more), so that no tool was called.

    MCP's status for that is 404. Some servers send 400 with an error about the session
    (server-everything 2026.8.31), which lacks the request's id, unlike an error of a tool.
    """
    if status != httpx2.codes.BAD_REQUEST or error is None:
        return status == httpx2.codes.NOT_FOUND
    details = error["error"]
    message = details.get("message") if isinstance(details, dict) else None
    is_of_session = isinstance(message, str) and "session" in message.lower()
    return is_of_session and (error.get("id") is None or error["id"] != _id_of(request))


def _id_of(request: httpx2.Request) -> object:
    """Return the id of a JSON-RPC request; None for notifications and for our own answers."""
    message = json.loads(request.content or b"null")
    is_request = isinstance(message, dict) and "method" in message
    return message.get("id") if is_request else None
