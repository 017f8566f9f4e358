"""The HTTP client for other agents, and rules about their URLs."""

import ssl
from collections.abc import AsyncIterator
from functools import cache
from urllib.parse import SplitResult, urlsplit

import httpx
from a2a.utils.constants import AGENT_CARD_WELL_KNOWN_PATH
from google.protobuf.json_format import ParseError

from diptych.net.guarded_backend import PoolLimits, use_guarded_pool
from diptych.net.outgoing import OutgoingPolicy
from diptych.net.received import Received, TooMuchReceived, is_compressed

CONNECT_TIMEOUT = 5.0  # seconds
READ_TIMEOUT = 60.0  # streams of A2A servers carry a ping every 15 s
MAX_CONNECTIONS = 1_000
MAX_STREAM_BYTES = 64 * 1024 * 1024  # of one stream; each event has the bounds of an answer

MALFORMED_ANSWER_ERRORS = (
    ParseError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    OverflowError,
    RecursionError,
)
"""Raised by the SDK, besides its own errors, for answers that are not valid."""

_DEFAULT_PORTS = {"http": 80, "https": 443}
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_ANY = "0.0.0.0"  # noqa: S104 - servers that listen everywhere write it into their cards


def http_client(policy: OutgoingPolicy | None = None) -> httpx.AsyncClient:
    """Return a client for other agents that connects only where `policy` allows.

    It follows no redirects. A compressed response raises `httpx.DecodingError`, one over the limits
    of `net.received` raises `httpx.ReadError`.
    """
    transport = _BoundedTransport(verify=_tls_context())
    limits = PoolLimits(MAX_CONNECTIONS, kept_alive=20)
    use_guarded_pool(transport, policy, _tls_context(), limits)
    return httpx.AsyncClient(
        transport=transport,
        timeout=httpx.Timeout(CONNECT_TIMEOUT, read=READ_TIMEOUT),
        headers={"Accept-Encoding": "identity"},
        follow_redirects=False,
        trust_env=False,
    )


@cache
def _tls_context() -> ssl.SSLContext:
    """Load the system's certificates once: loading takes longer than a delegation."""
    return httpx.create_ssl_context()


def card_url(url: str) -> str:
    """Return the URL of an agent's card; `url` is that one or the agent's base URL."""
    path = _split(url).path
    is_card = path.endswith(".json") or "/.well-known/" in path
    return url if is_card else url.rstrip("/") + AGENT_CARD_WELL_KNOWN_PATH


def identity(url: str) -> str:
    """Normalize any URL of an agent (card, base, JSON-RPC endpoint) to one spelling."""
    parts = _split(url)
    path = parts.path.rstrip("/").removesuffix(AGENT_CARD_WELL_KNOWN_PATH).removesuffix("/a2a")
    scheme, host, port = origin(url)
    return f"{scheme}://{host}:{port}{path.rstrip('/')}"


def origin(url: str) -> tuple[str, str, int]:
    """Return scheme, host and port in lower case, the default port filled in."""
    parts = _split(url)
    try:
        port = parts.port
    except ValueError:
        port = None
    return parts.scheme, parts.hostname or "", port or _DEFAULT_PORTS.get(parts.scheme, 0)


def may_lead_to(card: str, interface: str, *, is_trusted: bool) -> bool:
    """Whether an agent's card may point to this endpoint.

    Another host is allowed only over https, where a certificate proves the host. Otherwise a
    hostile card could send our requests into the cluster or to a cloud's metadata service.
    """
    scheme, host, _ = origin(interface)
    if scheme not in _DEFAULT_PORTS or not host:
        return False
    card_host = origin(card)[1]
    return is_trusted or scheme == "https" or host == card_host or {host, card_host} <= _LOOPBACK


def reachable(card: str, interface: str) -> str:
    """Return a card's endpoint, with 0.0.0.0 replaced by the card's host."""
    parts, host = _split(interface), _split(card).hostname
    if parts.hostname != _ANY or not host:
        return interface
    name = f"[{host}]" if ":" in host else host
    return parts._replace(netloc=parts.netloc.replace(_ANY, name)).geturl()


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:  # for a host like [::1
        return SplitResult("", "", url, "", "")


class _BoundedTransport(httpx.AsyncHTTPTransport):
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        if is_compressed(response.headers):
            await response.aclose()
            raise httpx.DecodingError("a compressed response was not asked for", request=request)
        assert isinstance(response.stream, httpx.AsyncByteStream)
        media_type = response.headers.get("content-type", "")
        response.stream = _BoundedStream(
            response.stream, in_events=media_type.startswith("text/event-stream")
        )
        return response


class _BoundedStream(httpx.AsyncByteStream):
    """Counts a whole body, or the lines of an event stream: an event of A2A is one line."""

    def __init__(self, stream: httpx.AsyncByteStream, *, in_events: bool) -> None:
        self._stream = stream
        self._in_events = in_events
        self._received = Received()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        total = 0
        async for chunk in self._stream:
            total += len(chunk)
            try:
                self._count(chunk)
            except TooMuchReceived as error:
                raise httpx.ReadError(error.reason) from error
            if total > MAX_STREAM_BYTES:
                raise httpx.ReadError(f"the stream has more than {MAX_STREAM_BYTES} bytes")
            yield chunk

    async def aclose(self) -> None:
        self._received.release()
        await self._stream.aclose()

    def _count(self, chunk: bytes) -> None:
        """Count a chunk; a single one is far below the limit."""
        last_break = chunk.rfind(b"\n") if self._in_events else -1
        if last_break >= 0:
            self._received.add(chunk[:last_break])
            self._received.release()
        self._received.add(chunk[last_break + 1 :])
