"""How MCP servers are reached over HTTP.

The MCP client ends, and takes every call on it along, when a single HTTP request cannot connect or
breaks off; and it forgets HTTP statuses. So `Courier` stands below it: it turns such failures into
JSON-RPC errors of that one request, and writes down in the request's `Fate` what really happened.

Not here: who holds a connection, and what follows from a fate (`session`).
"""

import functools
import json
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass

import httpx2

from diptych.ports import Secret

MOST_BYTES_READ = 16 * 1024 * 1024
"""What one answer may have on the wire; it is cut to `answer.MOST_BYTES` later."""

CONNECT_SECONDS = 5.0
COURTESY_SECONDS = 1.0
"""For requests that nobody waits for: notifications, and the end of a session."""

AT_THE_DOOR = frozenset({401, 403, 407, 421})
TURNED_AWAY = AT_THE_DOOR | {404, 410}
"""Statuses that say the request never came to a tool, and the next one will not either."""

KEPT_SECONDS = 3.0
"""How long an idle connection is used again: less than the 5 s after which most servers close it,
since a call that is sent while its server closes the connection may have been done or not."""

REASONS: tuple[tuple[type[BaseException], str], ...] = (
    (httpx2.ConnectTimeout, f"did not answer within {CONNECT_SECONDS:g} s"),
    (httpx2.UnsupportedProtocol, "its URL must begin with http:// or https://"),
    (socket.gaierror, "its host name is not known"),
    (ssl.SSLError, "no secure connection"),
    (ConnectionRefusedError, "connection refused"),
    (FileNotFoundError, "command not found"),
    (PermissionError, "command not allowed"),
)


@dataclass(slots=True)
class Fate:
    """What became of the requests that are made on behalf of one call or one handshake.

    `unsent`: it never reached a tool, and why. `lost`: sent, and no answer came, and why.
    `refused`: there is an answer, and it is of no use. `by_status`: an HTTP status says so, so
    there is a connection. `connecting`: a handshake, which stops at the first failure of the wire.
    `ended` is told when a stream ends that nobody closed. `delivered`: some request got through, so
    what fails later (a stream that is taken up again) does not make the call unsent.
    """

    unsent: str | None = None
    lost: str | None = None
    refused: str | None = None
    by_status: bool = False
    connecting: bool = False
    ended: Callable[[], None] | None = None
    delivered: bool = False

    def turn_back(self, reason: str) -> None:
        """Note that a request did not get through."""
        if self.delivered:
            self.lost = reason
        else:
            self.unsent = reason


FATE: ContextVar[Fate] = ContextVar("FATE")
"""Set by whoever makes a request; the MCP client carries it into the task that sends it."""


class Stopped(httpx2.TransportError):
    """Ends a handshake whose fate is written down."""


class Courier(httpx2.AsyncBaseTransport):
    """Sends requests with the headers' values of the moment; connection failures never escape."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, headers: Mapping[str, Secret]) -> None:
        self._inner = inner
        self._headers = headers

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        fate = FATE.get(None) or Fate()
        if (missing := self._stamp(request)) is not None:
            reason = f"header {missing} has no value yet"
            fate.turn_back(reason)
            return _stand_in(request, fate, reason)
        try:
            response = await self._inner.handle_async_request(request)
            if response.headers.get("content-type", "").startswith("text/event-stream"):
                fate.delivered = True
                return _watched(response, fate)
            body = await _read(response)
            if body is None:
                fate.refused = f"its answer has more than {MOST_BYTES_READ} bytes"
                return _stand_in(request, fate, fate.refused)
            _judge(request, response.status_code, body, fate)
            fate.delivered = True
            return httpx2.Response(response.status_code, headers=response.headers, content=body)
        except Stopped:
            raise
        except (httpx2.TransportError, httpx2.DecodingError) as error:
            return _stand_in(request, fate, _noted(error, fate))

    async def aclose(self) -> None:
        await self._inner.aclose()

    def _stamp(self, request: httpx2.Request) -> str | None:
        """Set the headers and the time limit; name a header whose value is missing."""
        for name, secret in self._headers.items():
            value = secret()
            if not value:
                return name
            request.headers[name] = value.strip()
        if request.method == "DELETE" or b'"method":"notifications/' in request.content[:80]:
            seconds = dict.fromkeys(("connect", "read", "write", "pool"), COURTESY_SECONDS)
            request.extensions["timeout"] = seconds
        return None


def _stand_in(request: httpx2.Request, fate: Fate, reason: str) -> httpx2.Response:
    """Answer in the server's place, as MCP's client expects an error (any id: it sets its own)."""
    if fate.connecting:
        raise Stopped(reason)
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": reason}}
    return httpx2.Response(405 if request.method == "DELETE" else 503, json=error)


def _noted(error: httpx2.RequestError, fate: Fate) -> str:
    match error:
        case httpx2.ConnectError() | httpx2.ConnectTimeout() | httpx2.UnsupportedProtocol():
            fate.turn_back(reason := connect_reason(error))
        case httpx2.LocalProtocolError():
            fate.turn_back(reason := "a header has a value that cannot be sent")
        case _:
            fate.delivered = True
            fate.lost = reason = "the connection broke off"
    return reason


async def _read(response: httpx2.Response) -> bytes | None:
    """Read a body that is no stream, so that what breaks meanwhile is seen; None if too large."""
    parts, size = [], 0
    try:
        async for part in _parts(response):
            size += len(part)
            if size > MOST_BYTES_READ:
                return None
            parts.append(part)
    finally:
        await response.aclose()
    return b"".join(parts)


def _parts(response: httpx2.Response) -> AsyncIterator[bytes]:
    if not isinstance(response.stream, httpx2.AsyncByteStream):
        raise TypeError("an asynchronous transport gave a synchronous stream")
    return aiter(response.stream)


def _judge(request: httpx2.Request, status: int, body: bytes, fate: Fate) -> None:
    """Note in the fate what an HTTP status means, unless the server says it in MCP's own terms."""
    fate.refused = None
    if status < httpx2.codes.MULTIPLE_CHOICES:
        return
    if status == httpx2.codes.NOT_FOUND and "mcp-session-id" in request.headers:
        fate.turn_back("its session ended")
        return
    if status not in AT_THE_DOOR and _is_json_rpc_error(body):
        return
    fate.by_status = True
    if status < httpx2.codes.BAD_REQUEST:
        fate.refused = "redirects to another address"
    elif status in TURNED_AWAY:
        fate.turn_back(f"HTTP {status}")
    elif status >= httpx2.codes.INTERNAL_SERVER_ERROR:
        fate.lost = f"HTTP {status}"
    else:
        fate.refused = f"HTTP {status}"
    # 404 and most 4xx are how servers of the older protocol answer the first question.
    if fate.connecting and (fate.lost or status in AT_THE_DOOR):
        raise Stopped(f"HTTP {status}")


def _is_json_rpc_error(body: bytes) -> bool:
    try:
        said = json.loads(body)
    except ValueError:
        return False
    return isinstance(said, dict) and "jsonrpc" in said and isinstance(said.get("error"), dict)


def _watched(response: httpx2.Response, fate: Fate) -> httpx2.Response:
    stream = _Watched(response, fate)
    return httpx2.Response(response.status_code, headers=response.headers, stream=stream)


class _Watched(httpx2.AsyncByteStream):
    """An event stream that notes in its fate that it ended before anyone closed it."""

    def __init__(self, response: httpx2.Response, fate: Fate) -> None:
        self._response = response
        self._fate = fate

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for part in _parts(self._response):
                yield part
        except httpx2.TransportError:
            self._note("the connection broke off")
            raise
        self._note("the connection was closed")

    async def aclose(self) -> None:
        await self._response.aclose()

    def _note(self, lost: str) -> None:
        self._fate.lost = lost
        if self._fate.ended is not None:
            self._fate.ended()


def connect_reason(error: BaseException | None) -> str:
    """Say in a few words why there is no connection, from types alone: texts may hold secrets."""
    while error is not None:
        if isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
            continue
        for kind, reason in REASONS:
            if isinstance(error, kind):
                return reason
        error = error.__cause__ or error.__context__
    return "no connection"


def http_client(headers: Mapping[str, Secret]) -> httpx2.AsyncClient:
    """Make the one HTTP client of a server: only connecting is timed, calls have their own limit.

    Proxies of the environment are not used.
    """
    limits = httpx2.Limits(
        max_connections=None, max_keepalive_connections=32, keepalive_expiry=KEPT_SECONDS
    )
    inner = httpx2.AsyncHTTPTransport(verify=_tls(), limits=limits)
    return httpx2.AsyncClient(
        transport=Courier(inner, headers),
        timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS),
        headers={"accept-encoding": "identity"},
    )


@functools.cache
def _tls() -> ssl.SSLContext:
    """Read the system's certificates once: it takes longer than all else here."""
    return httpx2.create_ssl_context()
