"""HTTP requests to one OpenAI-compatible endpoint: its address, its headers, and their secrets.

It follows no redirects and keeps no cookies, so a key goes only to the endpoint that it is for.
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

MAX_FETCHED_BYTES = 8 * MEBIBYTE  # OpenRouter's list of models has 1 MB
MAX_ERROR_BYTES = MEBIBYTE // 16
ERROR_BODY_TIMEOUT = 1.0  # seconds
_PATH = "/chat/completions"
_WRONG_PATH_STATUSES = frozenset({404, 405})


@dataclass(frozen=True, slots=True)
class Limits:
    """How long one attempt may take: seconds to its first byte, and when the whole call must end.

    `deadline` is a time of the loop's clock, `total` the seconds of the call up to it.
    `on_first_byte` is called when the reply begins.
    """

    first_byte: float
    deadline: float
    total: float
    on_first_byte: Callable[[], None] = lambda: None


def open_http_session(traces: Sequence[aiohttp.TraceConfig] = ()) -> aiohttp.ClientSession:
    """Open the one HTTP client of the process; needs a running loop, and must be closed.

    It connects to public addresses, and to others only where a host is named (`allow_url`).
    It has no limit on connections, no cookies, and no timeouts of its own.
    `trust_env` is off: it would cost a thread switch for each request, and send what is in
    `.netrc`. `traces` watch its requests.
    """
    return aiohttp.ClientSession(
        connector=GuardedConnector(OutgoingPolicy(())),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),
        # Compression would delay tokens. A response that is compressed all the same is refused.
        headers={"User-Agent": "diptych", "Accept-Encoding": "identity"},
        auto_decompress=False,  # aiohttp inflates all that a socket gives before it lets others run
        read_bufsize=MEBIBYTE // 16,
        trust_env=False,
        trace_configs=list(traces),
    )


def allow_url(session: aiohttp.ClientSession, url: str | None) -> None:
    """Let a session of `open_http_session` reach the host of a URL at private addresses, too."""
    if url and isinstance(session.connector, GuardedConnector):
        session.connector.policy.allow(url)


def with_proxies(settings: ModelConfig) -> ModelConfig:
    """Return the same model with the environment's proxies, for itself and for its fallbacks."""
    return replace(
        settings,
        proxy=proxy_for(settings.endpoint),
        fallbacks=tuple(map(with_proxies, settings.fallbacks)),
    )


class Connection:
    """Posts to `/chat/completions` of one endpoint.

    The endpoint's URL may end in that path. A bare host gets `/v1` before it, and is asked without
    if that path does not exist; the one that exists is remembered. `request_count` counts the
    requests that were sent.
    """

    def __init__(self, session: aiohttp.ClientSession, settings: ModelConfig) -> None:
        """Take a session of `open_http_session`.

        Raises `ConfigError` if the endpoint is no URL.
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
        """Read the headers of a request, with the secrets as they are now.

        Raises `AttemptFailure` `model_unauthorized` if one is missing or broken.
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
        """Return the secrets in headers, which no message may quote."""
        sent = (value for name, value in headers.items() if name != "Content-Type")
        return [value.removeprefix("Bearer ") for value in sent]

    async def post(
        self, body: bytes, headers: dict[str, str], first_byte_deadline: float, limits: Limits
    ) -> aiohttp.ClientResponse:
        """Send a request; return the response with its body unread.

        The deadline is a time of the loop's clock. Raises `AttemptFailure`.
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
                return response  # it is the model that does not exist, not the path
            response.close()
            self.url, response = self._other_url, other
        self._other_url = None
        return response

    async def fetch(self, path: str, headers: dict[str, str], seconds: float) -> tuple[int, bytes]:
        """Get a path beside `/chat/completions`; return status and body.

        A path that begins with `/` is taken from the server's root, which is before `/v1`. Of the
        body at most `MAX_FETCHED_BYTES` are read. Raises `AttemptFailure`.
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
            # Other causes name the URL with its query, or hold the headers of the request.
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
        """Send a request, and again at once if a kept connection turns out to be closed.

        A server may close it just when it is used again: that says nothing about the server, nor
        about the request (RFC 9112, section 9.3.1).
        """
        while True:  # on a new connection at the latest
            self.request_count += 1
            with suppress(StaleConnection):
                response = await self._session.request(
                    method,
                    url,
                    # aiohttp writes bytes at once, and warns if they are many.
                    data=io.BytesIO(body) if body and len(body) >= MEBIBYTE else body,
                    headers=headers,
                    allow_redirects=False,
                    timeout=self._connect,
                    proxy=self._settings.proxy,
                )
                break
        if is_compressed(response.headers):
            response.close()
            raise malformed_reply("a compressed answer, which nobody asked for")
        return response


async def read_refusal(response: aiohttp.ClientResponse) -> bytes:
    """Read the body of a refusal, as much of it as arrives in time."""
    body = bytearray()
    with suppress(TimeoutError, aiohttp.ClientError):  # the status alone says most
        async with asyncio.timeout(ERROR_BODY_TIMEOUT):
            await _read(response, MAX_ERROR_BYTES, body)
    return bytes(body)


async def _read(response: aiohttp.ClientResponse, most: int, into: bytearray) -> None:
    """Read about so many bytes of a body; hang up unless that is all of it."""
    try:
        while len(into) < most and (chunk := await response.content.readany()):
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
            f"The model's {what} holds characters that no key has. Check its secret.",
        )
    return secret


def _completions_urls(settings: ModelConfig) -> tuple[URL, URL | None]:
    """Return the URL to post to, and the one to try if that path does not exist."""
    url = _url(settings.endpoint)
    if url is None:
        raise ConfigError(
            f"model {settings.name}: its endpoint is not a URL that starts with http:// or "
            "https://; give one like https://models.example.com/v1"
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
