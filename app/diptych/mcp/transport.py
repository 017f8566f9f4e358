"""The HTTP transport below the SDK's MCP client, which records what became of each request.

The SDK's client ends, with every call on it, when a single HTTP request cannot connect or breaks
off, and it forgets the status of a failure; but whether a call may be sent again depends on it. So
`RecordingTransport` turns failures into JSON-RPC errors of that one request, and records what
happened in a `RequestOutcome`. That travels in a `ContextVar`: the SDK builds its HTTP requests
itself, but sends each one in a copy of its caller's context.
"""

import functools
import json
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Self

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
UNAWAITED_TIMEOUT = 1.0  # for requests that nobody waits for: notifications, a session's end

CONNECT_REASONS: tuple[tuple[type[BaseException], str], ...] = (
    (httpx2.ConnectTimeout, f"did not answer within {CONNECT_TIMEOUT:g} s"),
    (httpx2.UnsupportedProtocol, "its URL must begin with http:// or https://"),
    (AddressRefused, "its address is one that agents may not connect to"),
    (ssl.SSLError, "no secure connection"),
    (ConnectionRefusedError, "connection refused"),
    (aiohttp.ClientHttpProxyError, "it does not let the request through"),
)
_UNSENDABLE_HEADER = "a header has a value that cannot be sent"

AUTH_STATUSES = frozenset({401, 403, 407, 421})
"""Statuses that refuse us before MCP begins (421: the server does not serve this host name)."""

REJECTED_STATUSES = AUTH_STATUSES | {404, 410}
"""Statuses that say that no tool was reached, and that a further request would reach none."""

NO_STREAMABLE_HTTP = (
    "no MCP over streamable HTTP at this address; HTTP+SSE, the transport before it, is not "
    "supported: start the server with streamable HTTP, and give its URL (often …/mcp)"
)
HINTS = {
    400: NO_STREAMABLE_HTTP,
    401: "it wants credentials",
    403: "it refuses the credentials, or this host name",
    404: NO_STREAMABLE_HTTP,
    405: NO_STREAMABLE_HTTP,
    421: "it does not serve this host name",
}
"""The most likely meaning of a status during the handshake, for the author of a manifest."""


class Stage(Enum):
    """How far the newest request came."""

    PENDING = auto()
    """No HTTP request has ended; of a server that is not reached over HTTP, none ever does."""
    NOT_SENT = auto()
    """No tool was reached, and there is no connection: a new one may reach it."""
    REJECTED = auto()
    """No tool was reached, says an HTTP status, and a new connection would reach none either."""
    STREAMING = auto()
    """The server answers with an event stream, which has not broken off."""
    ANSWERED = auto()
    """The server answered in MCP's own terms."""
    REFUSED = auto()
    """An HTTP status says that the request was not taken; the connection holds."""
    UNUSABLE = auto()
    """The server's answer cannot be read: a tool may have run."""
    SERVER_ERROR = auto()
    """An HTTP status says that it failed, perhaps after a tool ran; the connection holds."""
    LOST = auto()
    """The request was sent, and the connection ended before the answer: a tool may have run."""


@dataclass(slots=True)
class RequestOutcome:
    """The stage of the requests that one call, one listing or one handshake makes, one by one.

    `reason` says in a few words why there is no answer. A handshake stops at the first failure of
    its connection; `on_stream_end` is called when an event stream ends that nobody closed.
    `received` counts all that comes back, until the block of `recording` ends; it is None for
    messages that belong to no call.
    """

    stage: Stage = Stage.PENDING
    reason: str | None = None
    is_handshake: bool = False
    on_stream_end: Callable[[], None] | None = None
    received: Received | None = field(default_factory=Received)

    def record(self, stage: Stage, reason: str | None = None) -> None:
        """Change the stage.

        Once the server was reached, NOT_SENT counts as LOST. After LOST, only STREAMING (a resumed
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
        """Record the requests that are made within the block."""
        token = _CURRENT.set(self)
        try:
            yield self
        finally:
            _CURRENT.reset(token)
            self.stop_counting()

    def stop_counting(self) -> None:
        """Release the counted bytes: they are parsed by now."""
        if self.received is not None:
            self.received.release()
            self.received = None


_CURRENT: ContextVar[RequestOutcome] = ContextVar("mcp_request_outcome")


def current_outcome() -> RequestOutcome:
    """Return the outcome that the running request is recorded in; a new one if nobody asked."""
    return _CURRENT.get(None) or RequestOutcome(received=None)


class CommandNotStarted(OSError):
    """The command of a stdio server cannot be started; the message names its program."""


class HandshakeAborted(httpx2.TransportError):
    """Ends a handshake; its outcome says why."""


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
        if request.method == "DELETE" or b'"method":"notifications/' in request.content[:80]:
            operations = ("connect", "read", "write", "pool")
            request.extensions["timeout"] = dict.fromkeys(operations, UNAWAITED_TIMEOUT)
        if (missing := self._set_headers(request)) is not None:
            outcome.record(Stage.NOT_SENT, f"header {missing} has no value yet")
            return _error_response(request, outcome)
        try:
            response = await self._send(request, outcome)
            if _is_event_stream(response):
                outcome.record(Stage.STREAMING)
                stream = _RecordedStream(response, outcome)
                headers = response.headers
                return httpx2.Response(response.status_code, headers=headers, stream=stream)
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

        A compressed answer is refused: its length shows only when it is inflated.
        """
        if outcome.received and outcome.received.exceeded:  # the SDK resumes what was cut off
            raise TooMuchReceived(outcome.received.exceeded)
        response = await self._inner.handle_async_request(request)
        if is_compressed(response.headers):
            await response.aclose()
            raise TooMuchReceived("its answer is compressed, which it was not asked to be")
        return response

    def _set_headers(self, request: httpx2.Request) -> str | None:
        """Set the configured headers; return the first one whose value is missing.

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


class _RecordedStream(httpx2.AsyncByteStream):
    """An event stream that records its end, unless somebody closed it."""

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


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _outcome_of(request: httpx2.Request) -> RequestOutcome:
    """Return where to record a request; a session's end and its own stream belong to no call."""
    outcome = current_outcome()
    is_session_stream = request.method == "GET" and "last-event-id" not in request.headers
    if request.method == "DELETE" or is_session_stream:
        return RequestOutcome(on_stream_end=outcome.on_stream_end, received=None)
    return outcome


def _end_handshake(status: int, outcome: RequestOutcome) -> None:
    """Raise `HandshakeAborted` if going on with it is of no use.

    404 and most 4xx are how servers of the older protocol answer the first request.
    """
    is_lost = outcome.stage in (Stage.SERVER_ERROR, Stage.LOST)
    if outcome.is_handshake and (is_lost or status in AUTH_STATUSES):
        raise HandshakeAborted(outcome.reason or "")


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
            outcome.record(Stage.NOT_SENT, _UNSENDABLE_HEADER)
        case _:
            outcome.record(Stage.LOST, through(proxy, "the connection broke off"))


def _is_event_stream(response: httpx2.Response) -> bool:
    media_type = response.headers.get("content-type", "")
    return response.is_success and media_type.startswith("text/event-stream")


async def _read_body(response: httpx2.Response, received: Received | None) -> bytes:
    """Read a whole body here, where its failures are seen. Raises `TooMuchReceived`."""
    counted = received or Received()
    try:
        return await counted.read(_chunks(response))
    finally:
        if received is None:
            counted.release()
        await response.aclose()


def _chunks(response: httpx2.Response) -> AsyncIterator[bytes]:
    if not isinstance(response.stream, httpx2.AsyncByteStream):
        raise TypeError("an asynchronous transport gave a synchronous stream")
    return aiter(response.stream)


def record_response(
    request: httpx2.Request, response: httpx2.Response, body: bytes, outcome: RequestOutcome
) -> httpx2.Response:
    """Record what a response with its whole body means; return it as the SDK reads it.

    The body of a POST's response is the answer to its request, whatever the content type says, and
    also if it has no id. Anything else is an error at once: no other answer will come.
    """
    status, headers, message = response.status_code, response.headers.copy(), _json_rpc(body)
    if message is not None:
        headers["content-type"] = "application/json"
    if not response.is_success:
        _record_status(request, response, message, outcome)
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
    """Return why a response with a good status is no answer to a request; None if it is one."""
    if not body.strip():
        return f"HTTP {response.status_code} without an answer"
    if message is None:
        return "its answer is not JSON-RPC"
    if message.get("id") is not None and str(message["id"]) != str(own_id):
        return "its answer is to another request"
    return None


def _record_status(
    request: httpx2.Request,
    response: httpx2.Response,
    message: JSONObject | None,
    outcome: RequestOutcome,
) -> None:
    """Record what a status other than success means."""
    status = response.status_code
    error = message if message is not None and isinstance(message.get("error"), dict) else None
    if "mcp-session-id" in request.headers and _knows_no_session(request, status, error):
        outcome.record(Stage.NOT_SENT, "its session ended")
        return
    if status not in AUTH_STATUSES and error is not None:
        outcome.record(Stage.ANSWERED)
        return
    hint = HINTS.get(status) if outcome.is_handshake else None
    reason = f"HTTP {status}: {hint}" if hint else f"HTTP {status}"
    if status < httpx2.codes.BAD_REQUEST:
        reason = _redirect(request, response)
    stage = Stage.REFUSED
    if status in REJECTED_STATUSES:
        stage = Stage.REJECTED
    elif status >= httpx2.codes.INTERNAL_SERVER_ERROR or status == httpx2.codes.REQUEST_TIMEOUT:
        stage = Stage.SERVER_ERROR
    outcome.record(stage, reason)


def _redirect(request: httpx2.Request, response: httpx2.Response) -> str:
    """Return whether a redirect is about a slash alone.

    No address is quoted: another one is in the server's words, and some paths hold a secret.
    """
    to = response.headers.get("location", "")
    path = request.url.path
    for other, what in ((path + "/", "with"), (path.removesuffix("/"), "without")):
        if other != path and to in (other, str(request.url.copy_with(path=other))):
            return f"redirects to its address {what} a slash at the end: write its URL so"
    return "redirects to another address"


def _json_rpc(body: bytes) -> JSONObject | None:
    """Read a result or an error of JSON-RPC."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):  # which would end all calls of the connection
        return None
    if not isinstance(value, dict) or "jsonrpc" not in value or "method" in value:
        return None
    match value:
        case {"error": {"code": int(), "message": str()}} | {"result": dict()}:
            return value
    return None


def _knows_no_session(request: httpx2.Request, status: int, error: JSONObject | None) -> bool:
    """Whether the server does not know the session (any more), so that nothing was called.

    MCP's status for it is 404. Some say 400 and an error about the session (server-everything
    2026.8.31); it answers no request by its id, as an answer of a tool would.
    """
    if status != httpx2.codes.BAD_REQUEST or error is None:
        return status == httpx2.codes.NOT_FOUND
    details = error["error"]
    message = details.get("message") if isinstance(details, dict) else None
    is_of_session = isinstance(message, str) and "session" in message.lower()
    return is_of_session and (error.get("id") is None or error["id"] != _id_of(request))


def _id_of(request: httpx2.Request) -> object:
    """Return the id of a request that wants an answer; None for notifications and our answers."""
    message = json.loads(request.content or b"null")
    is_request = isinstance(message, dict) and "method" in message
    return message.get("id") if is_request else None
