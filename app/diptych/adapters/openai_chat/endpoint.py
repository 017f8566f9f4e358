"""Requests to one OpenAI-compatible endpoint, up to a response that is a success.

It follows no redirects and keeps no cookies, so a key goes only to the endpoint that it is for.

Not here: the retries of a call, and reading replies (`completions`).
"""

import asyncio
import io
from collections.abc import Mapping, Sequence
from contextlib import suppress
from urllib.request import getproxies, proxy_bypass

import aiohttp
from yarl import URL

from diptych.adapters.openai_chat.encoding import encode_request
from diptych.adapters.openai_chat.failures import (
    AttemptFailure,
    connection_failure,
    first_byte_timeout,
    status_failure,
    total_timeout,
)
from diptych.adapters.openai_chat.timed_body import TimedBody
from diptych.config.settings import ModelConfig
from diptych.errors import ConfigError
from diptych.loop.messages import Message
from diptych.net.sse import MEBIBYTE

MAX_ERROR_BYTES = MEBIBYTE // 16
ERROR_BODY_TIMEOUT = 1.0  # seconds
_SUCCESS = range(200, 300)


def open_session() -> aiohttp.ClientSession:
    """Open the one HTTP client of the process; needs a running loop, and must be closed.

    It has no limit on connections (each run needs its own), no cookies, and no timeouts of its own.
    `trust_env` is off: it would cost a thread switch for each request, and send what is in
    `.netrc`.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),
        # Compression would delay tokens. A response that is compressed all the same can be read.
        headers={"User-Agent": "diptych", "Accept-Encoding": "identity"},
        read_bufsize=MEBIBYTE // 16,
        trust_env=False,
    )


def proxy_from_environment(endpoint: str) -> str | None:
    """Give the proxy that HTTP_PROXY, HTTPS_PROXY and NO_PROXY name for an endpoint, if any."""
    url = _url(endpoint)
    if url is None or proxy_bypass(str(url.host)):
        return None
    return getproxies().get(url.scheme)


class ChatEndpoint:
    """Sends requests with those parameters that its endpoint accepts."""

    def __init__(self, session: aiohttp.ClientSession, settings: ModelConfig) -> None:
        """Take a session from `open_session`. Raises `ConfigError` if the endpoint is no URL."""
        self._session = session
        self._settings = settings
        self._url = _completions_url(settings)
        self._connect = aiohttp.ClientTimeout(connect=settings.timeouts.connect)
        self._requests_usage = True
        self._max_tokens_name = "max_tokens"

    async def send(
        self, messages: Sequence[Message], deadline: float, *, streamed: bool
    ) -> TimedBody:
        """Send a request; give the response if it is a success, with its body unread.

        `deadline` is when the whole call must end, on the loop's clock. If the endpoint refuses a
        parameter that can be left out or renamed, the request is sent again without it, and so are
        all later ones. Raises `AttemptFailure`.
        """
        timeouts = self._settings.timeouts
        while True:
            fields = self._fields(streamed=streamed)
            key = self._key()
            first_byte_deadline = asyncio.get_running_loop().time() + timeouts.first_byte
            body = encode_request(fields, messages)
            response = await self._post(body, key, first_byte_deadline, deadline)
            if response.status in _SUCCESS:
                return TimedBody(response, first_byte_deadline, timeouts.idle, deadline)
            refusal = await _error_body(response)
            if response.status not in (400, 422) or not self._adapts_to(refusal, fields):
                raise status_failure(response.status, response.headers, refusal, key)

    def _fields(self, *, streamed: bool) -> dict[str, object]:
        settings = self._settings
        fields: dict[str, object] = {"model": settings.name, "stream": streamed}
        if streamed and self._requests_usage:
            fields["stream_options"] = {"include_usage": True}
        if settings.temperature is not None:
            fields["temperature"] = settings.temperature
        if settings.max_tokens is not None:
            fields[self._max_tokens_name] = settings.max_tokens
        if settings.reasoning_effort is not None:
            fields["reasoning_effort"] = settings.reasoning_effort
        return fields

    def _adapts_to(self, refusal: bytes, fields: Mapping[str, object]) -> bool:
        """Adapt to a refusal of these fields; say whether other fields may be accepted.

        The fields that were sent decide: another call may have adapted to the same meanwhile.
        """
        if "stream_options" in fields and b"stream_options" in refusal:
            self._requests_usage = False
            return True
        if "max_tokens" in fields and b"max_completion_tokens" in refusal:
            self._max_tokens_name = "max_completion_tokens"  # OpenAI's reasoning models
            return True
        return False

    def _key(self) -> str | None:
        if self._settings.api_key is None:
            return None
        key = (self._settings.api_key() or "").strip()  # mounted files end with a newline
        if not key:
            raise AttemptFailure(
                "model_unauthorized", "The model's API key is missing. Provide its secret."
            )
        if not (key.isascii() and key.isprintable()):
            raise AttemptFailure(
                "model_unauthorized",
                "The model's API key holds characters that no key has. Check its secret.",
            )
        return key

    async def _post(
        self, body: bytes, key: str | None, first_byte_deadline: float, deadline: float
    ) -> aiohttp.ClientResponse:
        headers = {"Content-Type": "application/json"}
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        try:
            async with asyncio.timeout_at(min(first_byte_deadline, deadline)):
                return await self._session.post(
                    self._url,
                    # aiohttp writes bytes at once, and warns if they are many.
                    data=body if len(body) < MEBIBYTE else io.BytesIO(body),
                    headers=headers,
                    allow_redirects=False,
                    timeout=self._connect,
                    proxy=self._settings.proxy,
                )
        except aiohttp.ClientError as error:
            # Other causes name the URL with its query, or hold the headers of the request.
            cause = error if isinstance(error, aiohttp.ClientConnectorError) else None
            raise connection_failure(error, str(self._url.origin())) from cause
        except TimeoutError:
            late = total_timeout() if deadline <= first_byte_deadline else first_byte_timeout()
            raise late from None


def _completions_url(settings: ModelConfig) -> URL:
    url = _url(settings.endpoint)
    if url is None:
        raise ConfigError(
            f"model {settings.name}: its endpoint is not a URL that starts with http:// or "
            "https://; give one like https://models.example.com/v1"
        )
    if settings.api_key is not None:
        url = url.with_user(None)  # aiohttp refuses to choose between a key and a password
    path = url.raw_path.rstrip("/") + "/chat/completions"
    return url.with_path(path, encoded=True, keep_query=True)


def _url(endpoint: str) -> URL | None:
    with suppress(ValueError):
        url = URL(endpoint)
        if url.scheme in ("http", "https") and url.host:
            return url
    return None


async def _error_body(response: aiohttp.ClientResponse) -> bytes:
    """Read the body of a refusal, as much of it as arrives in time."""
    body = b""
    try:
        async with asyncio.timeout(ERROR_BODY_TIMEOUT):
            while len(body) < MAX_ERROR_BYTES and (chunk := await response.content.readany()):
                body += chunk
    except (TimeoutError, aiohttp.ClientError):
        pass  # the status alone says most
    finally:
        if not response.closed:
            response.close()
    return body
