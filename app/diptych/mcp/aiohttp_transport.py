"""An httpx2 transport that sends requests with aiohttp, at a third of the CPU cost.

The MCP SDK only supports httpx2. Errors of aiohttp are mapped to their counterparts, which tell
whether the request may have reached the server.
"""

import io
import re
import ssl
from collections.abc import AsyncIterator
from functools import cache

import aiohttp
import httpx2
from yarl import URL

from diptych.net.guarded_connector import GuardedConnector
from diptych.net.outgoing import OutgoingPolicy
from diptych.net.proxies import proxy_for
from diptych.net.sse import MEBIBYTE

MAX_HEADER_BYTES = 100 * 1024  # of one header of a response
_WRITTEN_BY_AIOHTTP = frozenset({b"content-length", b"connection"})
_UNSENDABLE = re.compile(r"[^\t\x20-\x7e\x80-\xff]")


class AiohttpTransport(httpx2.AsyncBaseTransport):
    """Sends requests without redirects, cookies or decompression.

    Uses the environment's proxies. Has no limit on connections, since each run needs its own.
    """

    def __init__(self, policy: OutgoingPolicy, tls: ssl.SSLContext) -> None:
        self._policy = policy
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request; return the response with its body unread. Raises `TransportError`."""
        if self._session is None:  # not earlier: it needs a running loop
            self._session = aiohttp.ClientSession(
                connector=GuardedConnector(self._policy, ssl=self._tls),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                max_line_size=MAX_HEADER_BYTES,
                max_field_size=MAX_HEADER_BYTES,
                trust_env=False,
            )
        timeout = request.extensions["timeout"]
        url, headers = _target(str(request.url)), _sendable_headers(request)
        body = request.content
        proxy = proxy_for(str(url))
        if proxy:
            self._policy.allow(proxy)
        try:
            response = await self._session.request(
                request.method,
                url,
                # aiohttp writes bytes in one go, and warns about large ones.
                data=body if len(body) < MEBIBYTE else io.BytesIO(body),
                headers=headers,
                allow_redirects=False,
                timeout=_timeout(timeout["connect"], timeout["read"]),
                proxy=proxy,
            )
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _transport_error(error) from error
        return httpx2.Response(
            response.status, headers=response.raw_headers, stream=_Body(response), request=request
        )

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()


class _Body(httpx2.AsyncByteStream):
    """A streamed response body; closing it early closes the connection."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while chunk := await self._response.content.readany():
                yield chunk
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _transport_error(error) from error

    async def aclose(self) -> None:
        self._response.close()


def _target(url: str) -> URL:
    """Return a URL without its user and password, which httpx2 has moved to a header.

    Raises `httpx2.UnsupportedProtocol`.
    """
    target = URL(url, encoded=True)
    if target.scheme not in ("http", "https") or not target.host:
        raise httpx2.UnsupportedProtocol(target.scheme)
    return target.with_user(None)


def _sendable_headers(request: httpx2.Request) -> list[tuple[str, str]]:
    """Return the headers. Raises `httpx2.LocalProtocolError` if a value has illegal characters."""
    headers = [
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in request.headers.raw
        if name.lower() not in _WRITTEN_BY_AIOHTTP
    ]
    if _UNSENDABLE.search("".join([value for _, value in headers])):
        raise httpx2.LocalProtocolError("a header has a value that cannot be sent")
    return headers


@cache
def _timeout(connect: float | None, read: float | None) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=None, connect=connect, sock_read=read)


def _transport_error(error: aiohttp.ClientError | TimeoutError) -> httpx2.TransportError:
    """Return httpx2's counterpart, without aiohttp's text, which may contain a URL's query."""
    kind = type(error).__name__
    match error:
        case aiohttp.ConnectionTimeoutError():
            return httpx2.ConnectTimeout(kind)
        case aiohttp.ClientConnectorError() | aiohttp.ClientHttpProxyError():
            return httpx2.ConnectError(kind)
        case TimeoutError():
            return httpx2.ReadTimeout(kind)
    return httpx2.ReadError(kind)
