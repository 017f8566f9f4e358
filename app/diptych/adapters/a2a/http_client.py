"""The HTTP client for other agents, and what their URLs mean.

Not here: A2A itself.
"""

import ssl
from collections.abc import AsyncIterator
from functools import cache
from urllib.parse import SplitResult, urlsplit

import httpx
from a2a.utils.constants import AGENT_CARD_WELL_KNOWN_PATH
from google.protobuf.json_format import ParseError

CONNECT_TIMEOUT = 5.0  # seconds
READ_TIMEOUT = 60.0  # streams of A2A servers carry a ping every 15 s
KEEPALIVE = 3.0  # less than the 5 s after which uvicorn closes: never meet a closing connection
MAX_CONNECTIONS = 1_000
MAX_BODY = 64 * 1024 * 1024  # bytes of one response, however it is streamed
MAX_LINE = 4 * 1024 * 1024  # bytes of one response without a line break: one event, one JSON body

GARBAGE = (ParseError, ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""What the SDK lets through when what a peer sends has not the protocol's form."""

_DEFAULT_PORTS = {"http": 80, "https": 443}
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def http_client() -> httpx.AsyncClient:
    """Make the process's client for other agents.

    It follows no redirect, and no proxy of the environment: peers are mostly inside the cluster.
    A response that grows beyond all reason ends with an `httpx.ReadError`.
    """
    limits = httpx.Limits(max_connections=MAX_CONNECTIONS, keepalive_expiry=KEEPALIVE)
    return httpx.AsyncClient(
        transport=_BoundedTransport(verify=_tls(), limits=limits),
        timeout=httpx.Timeout(CONNECT_TIMEOUT, read=READ_TIMEOUT),
        headers={"Accept-Encoding": "identity"},
        follow_redirects=False,
        trust_env=False,
    )


@cache
def _tls() -> ssl.SSLContext:
    """Load the certificates once: it takes longer than a delegation."""
    return httpx.create_ssl_context()


def card_url(url: str) -> str:
    """Give the URL of an agent's card, of the card's URL or the agent's base URL."""
    path = _split(url).path
    is_card = path.endswith(".json") or "/.well-known/" in path
    return url if is_card else url.rstrip("/") + AGENT_CARD_WELL_KNOWN_PATH


def identity(url: str) -> str:
    """Give one spelling to all URLs of an agent: its card's, its base, its JSON-RPC endpoint."""
    parts = _split(url)
    path = parts.path.rstrip("/").removesuffix(AGENT_CARD_WELL_KNOWN_PATH).removesuffix("/a2a")
    scheme, host, port = origin(url)
    return f"{scheme}://{host}:{port}{path.rstrip('/')}"


def origin(url: str) -> tuple[str, str, int]:
    """Give scheme, host and port in lower case, the default port filled in."""
    parts = _split(url)
    try:
        port = parts.port
    except ValueError:
        port = None
    return parts.scheme, parts.hostname or "", port or _DEFAULT_PORTS.get(parts.scheme, 0)


def may_lead_to(card: str, interface: str, *, is_trusted: bool) -> bool:
    """Say whether a card may send us to this endpoint.

    A stranger's card may name another host only over https, where a certificate proves that the
    host is meant: else it could make us post into the cluster, or at a cloud's metadata.
    """
    scheme, host, _ = origin(interface)
    if scheme not in _DEFAULT_PORTS or not host:
        return False
    home = origin(card)[1]
    return is_trusted or scheme == "https" or host == home or {host, home} <= _LOOPBACK


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:  # of a host like [::1
        return SplitResult("", "", url, "", "")


class _BoundedTransport(httpx.AsyncHTTPTransport):
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise httpx.DecodingError("a compressed response was not asked for", request=request)
        assert isinstance(response.stream, httpx.AsyncByteStream)  # noqa: S101 - for the type
        response.stream = _BoundedStream(response.stream)
        return response


class _BoundedStream(httpx.AsyncByteStream):
    def __init__(self, stream: httpx.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        total = line = 0
        async for chunk in self._stream:
            total += len(chunk)
            last_break = chunk.rfind(b"\n")
            line = line + len(chunk) if last_break < 0 else len(chunk) - last_break
            if total > MAX_BODY or line > MAX_LINE:
                raise httpx.ReadError("the response is too large")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()
