"""Sends requests to a ModelAPI's endpoint: the Agent's own, with the ModelAPI's key."""

import io
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final

import aiohttp
import orjson
from multidict import CIMultiDict
from yarl import URL

from diptych.model_proxy.config import ProxyConfig
from diptych.models.connection import Connection
from diptych.models.failures import connection_failure, malformed_reply
from diptych.net.guarded_connector import StaleConnection
from diptych.net.redaction import SECRETS
from diptych.net.sse import MEBIBYTE

MAX_ERROR_BYTES = MEBIBYTE // 16
_UNAUTHORIZED = 401
_FIRST_ERROR = 400
_PATH = "/chat/completions"
_HOP_BY_HOP: Final = frozenset(  # RFC 9110, 7.6.1
    {
        *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization"),
        *(b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade"),
    }
)
_OF_THE_CALLER: Final = frozenset(
    {
        *(b"authorization", b"api-key", b"x-api-key", b"x-goog-api-key", b"cookie"),
        *(b"x-diptych-agent", b"host", b"content-length", b"expect"),
    }
)
_OF_THE_REPLY: Final = frozenset(
    {b"date", b"set-cookie"}
)  # the server in front writes its own date


class Upstream:
    """The endpoint of one configuration."""

    def __init__(self, session: aiohttp.ClientSession, config: ProxyConfig) -> None:
        """Use a session from `open_http_session`. Raises `ConfigError` for an invalid URL."""
        self.config = config
        self.connection = Connection(session, config.upstream)
        self._session = session
        self._base = self.connection.url.raw_path.removesuffix(_PATH)
        self._timeout = aiohttp.ClientTimeout(connect=config.upstream.timeouts.connect)

    async def send(
        self, path: str, headers: Iterable[tuple[bytes, bytes]], body: bytes, *, is_counted: bool
    ) -> aiohttp.ClientResponse:
        """Post to a path below the endpoint; return the response with its body unread.

        If the endpoint refuses a key that has changed meanwhile, the request is sent again. A
        counted reply is not compressed, as its usage is read. Raises `AttemptFailure`.
        """
        passed = passed_headers(headers, _OF_THE_CALLER)
        if is_counted:
            passed["accept-encoding"] = "identity"
        secrets = self._secret_headers()
        response = await self._send(path, passed, secrets, body)
        if response.status == _UNAUTHORIZED and (newer := self._secret_headers()) != secrets:
            response.close()
            response = await self._send(path, passed, newer, body)
        return response

    async def list_models(self, seconds: float) -> tuple[int, bytes]:
        """Return the status and body of the endpoint's list, with the models that Agents may use.

        Raises `AttemptFailure`.
        """
        status, body = await self.connection.fetch("models", self.connection.headers(), seconds)
        if not self.config.models or status >= _FIRST_ERROR:
            return status, redacted(body)
        try:
            found = orjson.loads(body)
            found["data"] = [each for each in found["data"] if self.config.allows(each["id"])]
        except (orjson.JSONDecodeError, TypeError, KeyError):
            raise malformed_reply("no list of models") from None
        return status, orjson.dumps(found)

    def _secret_headers(self) -> Mapping[str, str]:
        headers = self.connection.headers()
        del headers["Content-Type"]  # the caller's
        return headers

    async def _send(
        self, path: str, passed: CIMultiDict[str], secrets: Mapping[str, str], body: bytes
    ) -> aiohttp.ClientResponse:
        headers = passed.copy()
        for name, value in secrets.items():
            headers[name] = value
        url = self._url(path)
        proxy = self.config.upstream.proxy
        try:
            while True:  # ends on a new connection at the latest
                with suppress(StaleConnection):
                    return await self._session.post(
                        url,
                        data=io.BytesIO(body) if len(body) >= MEBIBYTE else body,
                        headers=headers,
                        allow_redirects=False,
                        timeout=self._timeout,
                        proxy=proxy,
                    )
        except aiohttp.ClientError as error:  # others contain the URL with its query
            raise connection_failure(error, self.connection.origin, proxy) from None

    def _url(self, path: str) -> URL:
        return self.connection.url.with_path(self._base + path, encoded=True, keep_query=True)


def passed_headers(
    headers: Iterable[tuple[bytes, bytes]], dropped: frozenset[bytes]
) -> CIMultiDict[str]:
    """Return the headers that are passed on: not hop-by-hop ones, nor the `dropped`."""
    listed = list(headers)
    named = {
        name.strip().lower()
        for header, value in listed
        if header.lower() == b"connection"
        for name in value.split(b",")
    }
    kept = CIMultiDict[str]()
    for name, value in listed:
        if name.lower() not in _HOP_BY_HOP | dropped | named:
            kept.add(name.decode("latin-1"), value.decode("latin-1"))
    return kept


async def error_bytes(response: aiohttp.ClientResponse) -> bytes:
    """Read the body of an error, 64 KiB at most, without the key that it may quote."""
    found = bytearray()
    while len(found) < MAX_ERROR_BYTES and (piece := await response.content.readany()):
        found += piece
    return redacted(bytes(found[:MAX_ERROR_BYTES]))


def redacted(body: bytes) -> bytes:
    """Return the same bytes, but for secrets."""
    text = body.decode("latin-1")
    safe = SECRETS.redact(text)
    return body if safe is text else safe.encode("latin-1")


def reply_headers(response: aiohttp.ClientResponse) -> list[tuple[bytes, bytes]]:
    """Return the headers of a reply as ASGI wants them."""
    kept = passed_headers(response.raw_headers, _OF_THE_REPLY)
    return [(n.lower().encode("latin-1"), v.encode("latin-1")) for n, v in kept.items()]
