"""HTTP requests to one OpenAI-compatible endpoint: its URL, its headers, and their secrets.

Redirects and cookies are off, so a key is sent only to its own endpoint.
"""

import asyncio
import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import aiohttp
from yarl import URL

from diptych.core.errors import ConfigError
from diptych.manifest.settings import ModelConfig
from diptych.models.failures import (
    AttemptFailure,
    SecretMissing,
    connection_failure,
    first_byte_timeout,
    malformed_reply,
    total_timeout,
)
from diptych.net.guarded_connector import GuardedConnector, StaleConnection
from diptych.net.outgoing import OutgoingPolicy
from diptych.net.proxies import proxy_for
from diptych.net.received import is_compressed
from diptych.net.redaction import SECRETS
from diptych.net.sse import MEBIBYTE

MAX_FETCHED_BYTES = 8 * MEBIBYTE  # OpenRouter's list of models takes 1 MB
MAX_ERROR_BYTES = MEBIBYTE // 16
ERROR_BODY_TIMEOUT = 1.0  # seconds
_PATH = "/chat/completions"
_WRONG_PATH_STATUSES = frozenset({404, 405})


@dataclass(frozen=True, slots=True)
class Limits:
    """The time limits of one attempt.

    `first_byte` is in seconds. `deadline` is the end of the whole call on the event loop's clock,
    `total` the call's limit in seconds, for messages. `on_first_byte` is called when the reply
    starts.
    """

    first_byte: float
    deadline: float
    total: float
    on_first_byte: Callable[[], None] = lambda: None


def open_http_session(traces: Sequence[aiohttp.TraceConfig] = ()) -> aiohttp.ClientSession:
    """Open the HTTP client of the process; needs a running loop, and must be closed.

    It connects to public addresses, and to private ones only for hosts passed to `allow_url`.
    It has no connection limit, cookies or timeouts of its own. `trust_env` is off: it would cost a
    thread switch per request, and send credentials from `.netrc`.
    """
    return aiohttp.ClientSession(
        connector=GuardedConnector(OutgoingPolicy(())),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),
        # Compression would delay tokens. A compressed response is refused.
        headers={"User-Agent": "diptych", "Accept-Encoding": "identity"},
        auto_decompress=False,  # aiohttp inflates a whole socket read without yielding to the loop
        read_bufsize=MEBIBYTE // 16,
        trust_env=False,
        trace_configs=list(traces),
    )


def allow_url(session: aiohttp.ClientSession, url: str | None) -> None:
    """Let a session from `open_http_session` also reach the URL's host at private addresses."""
    if url and isinstance(session.connector, GuardedConnector):
        session.connector.policy.allow(url)


def with_proxies(settings: ModelConfig) -> ModelConfig:
    """Return the settings with the environment's proxies, also for the fallbacks."""
    return replace(
        settings,
        proxy=proxy_for(settings.endpoint),
        fallbacks=tuple(map(with_proxies, settings.fallbacks)),
    )


class Connection:
    """Posts to `/chat/completions` of one endpoint.

    The endpoint's URL may already end in that path. A bare host is tried with `/v1` before it, then
    without; the path that exists is remembered. `request_count` counts the requests sent.
    """

    def __init__(self, session: aiohttp.ClientSession, settings: ModelConfig) -> None:
        """Use a session from `open_http_session`.

        Raises `ConfigError` if the endpoint is not an HTTP URL.
        """
        self._session = session
        self.request_count = 0
        self._settings = settings
        self._connect = aiohttp.ClientTimeout(connect=settings.timeouts.connect)
        self.url, self._other_url = _completions_urls(settings)
        for named in (settings.endpoint, settings.proxy):
            allow_url(session, named)

    @property
    def origin(self) -> str:
        """The endpoint's scheme, host and port."""
        return str(self.url.origin())

    def headers(self) -> dict[str, str]:
        """Return the headers of a request, reading the secrets anew.

        Raises `AttemptFailure` `model_unauthorized` if one is missing or malformed.
        """
        headers = {"Content-Type": "application/json"}
        if self._settings.api_key is not None:
            key = _secret(self._settings.api_key(), "API key")
            SECRETS.remember(key)
            headers["Authorization"] = f"Bearer {key}"
        for name, read in self._settings.headers.items():
            headers[name] = _secret(read(), f"header {name}")
        return headers

    @staticmethod
    def secrets(headers: Mapping[str, str]) -> list[str]:
        """Return the secrets in the headers, for redaction."""
        sent = (value for name, value in headers.items() if name != "Content-Type")
        return [value.removeprefix("Bearer ") for value in sent]

    async def post(
        self, body: bytes, headers: dict[str, str], first_byte_deadline: float, limits: Limits
    ) -> aiohttp.ClientResponse:
        """Send a request; return the response with its body unread.

        `first_byte_deadline` is on the event loop's clock. Raises `AttemptFailure`.
        """
        deadlines = first_byte_deadline, limits
        response = await self._post(self.url, body, headers, *deadlines)
        if self._other_url is None:
            return response
        if response.status in _WRONG_PATH_STATUSES:
            try:
                other = await self._post(self._other_url, body, headers, *deadlines)
            except BaseException:
                response.close()
                raise
            if other.status in _WRONG_PATH_STATUSES:
                other.close()
                return response  # the model does not exist, rather than the path
            response.close()
            self.url, response = self._other_url, other
        self._other_url = None
        return response

    async def fetch(self, path: str, headers: dict[str, str], seconds: float) -> tuple[int, bytes]:
        """Get a sibling path of `/chat/completions`; return status and body.

        A path with a leading `/` is relative to the server's root, the part before `/v1`. Reads
        about `MAX_FETCHED_BYTES` of the body at most. Raises `AttemptFailure`.
        """
        base = self.url.raw_path.removesuffix(_PATH)
        if path.startswith("/"):
            base = base.removesuffix("/v1")
        url = _with_path(self.url, f"{base.rstrip('/')}/{path.lstrip('/')}")
        found = bytearray()
        try:
            async with asyncio.timeout(seconds):
                response = await self._send("GET", url, headers, None)
                await _read(response, MAX_FETCHED_BYTES, found)
                return response.status, bytes(found)
        except aiohttp.ClientError as error:
            raise connection_failure(error, self.origin, self._settings.proxy) from None
        except TimeoutError:
            raise first_byte_timeout(seconds) from None

    async def _post(
        self,
        url: URL,
        body: bytes,
        headers: dict[str, str],
        first_byte_deadline: float,
        limits: Limits,
    ) -> aiohttp.ClientResponse:
        try:
            async with asyncio.timeout_at(min(first_byte_deadline, limits.deadline)):
                return await self._send("POST", url, headers, body)
        except aiohttp.ClientError as error:
            # Other errors contain the URL with its query, or the request's headers.
            is_plain = isinstance(error, aiohttp.ClientConnectorError)
            failure = connection_failure(error, self.origin, self._settings.proxy)
            raise failure from error if is_plain else None
        except TimeoutError:
            if limits.deadline <= first_byte_deadline:
                raise total_timeout(limits.total) from None
            raise first_byte_timeout(limits.first_byte) from None

    async def _send(
        self, method: str, url: URL, headers: dict[str, str], body: bytes | None
    ) -> aiohttp.ClientResponse:
        """Send a request; resend it at once if a kept-alive connection turns out to be closed.

        A server may close an idle connection just as it is reused, which is no fault of server or
        request (RFC 9112, section 9.3.1).
        """
        while True:  # ends on a new connection at the latest
            self.request_count += 1
            with suppress(StaleConnection):
                response = await self._session.request(
                    method,
                    url,
                    # aiohttp writes bytes in one go, and warns about large ones.
                    data=io.BytesIO(body) if body and len(body) >= MEBIBYTE else body,
                    headers=headers,
                    allow_redirects=False,
                    timeout=self._connect,
                    proxy=self._settings.proxy,
                )
                break
        if is_compressed(response.headers):
            response.close()
            raise malformed_reply("a compressed response, although none was requested")
        return response


async def read_refusal(response: aiohttp.ClientResponse) -> bytes:
    """Read the body of an error response, as far as it arrives in time."""
    body = bytearray()
    with suppress(TimeoutError, aiohttp.ClientError):  # the status alone tells most
        async with asyncio.timeout(ERROR_BODY_TIMEOUT):
            await _read(response, MAX_ERROR_BYTES, body)
    return bytes(body)


async def _read(response: aiohttp.ClientResponse, max_bytes: int, into: bytearray) -> None:
    """Read a body up to about `max_bytes`; if more is left, close the connection."""
    try:
        while len(into) < max_bytes and (chunk := await response.content.readany()):
            into += chunk
    finally:
        if not response.closed:
            response.close()


def _secret(value: str | None, what: str) -> str:
    secret = (value or "").strip()  # mounted files end with a newline
    if not secret:
        raise SecretMissing(what)
    if not (secret.isascii() and secret.isprintable()):
        raise AttemptFailure(
            "model_unauthorized",
            f"The model's {what} contains characters that are not allowed in a header. "
            "Check its secret.",
        )
    return secret


def _completions_urls(settings: ModelConfig) -> tuple[URL, URL | None]:
    """Return the URL to post to, and the one to try next if that path does not exist."""
    url = _url(settings.endpoint)
    if url is None:
        raise ConfigError(
            f"model {settings.name}: its endpoint is not an http:// or https:// URL; "
            "use one like https://models.example.com/v1"
        )
    if settings.api_key is not None or "authorization" in map(str.lower, settings.headers):
        url = url.with_user(None)  # aiohttp refuses to choose between a key and a password
    path = url.raw_path.rstrip("/")
    if path.endswith(_PATH):
        return _with_path(url, path), None
    if path:
        return _with_path(url, path + _PATH), None
    return _with_path(url, f"/v1{_PATH}"), _with_path(url, _PATH)


def _with_path(url: URL, path: str) -> URL:
    return url.with_path(path, encoded=True, keep_query=True)


def _url(endpoint: str) -> URL | None:
    with suppress(ValueError):
        url = URL(endpoint)
        if url.scheme in ("http", "https") and url.host:
            return url
    return None
