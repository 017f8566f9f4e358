"""A ModelAPI's endpoint: takes requests with the ModelAPI's key, and is watched for `/ready`."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import aiohttp
import orjson
from starlette.datastructures import Headers

from diptych.model_proxy.config import ProxyConfig
from diptych.models.connection import Connection, Limits
from diptych.models.failures import AttemptFailure, SecretMissing

MAX_MODELS = 100
PERIOD_SECONDS = 5.0  # between two checks
_CHECK_SECONDS = 5.0  # that a check may take
_KEY_REFUSED = "key_refused: the endpoint does not accept the key"
_UNAUTHORIZED, _FORBIDDEN, _SERVER_ERROR = 401, 403, 500
_PASSED_HEADERS = ("traceparent", "tracestate", "user-agent")
_logger = logging.getLogger(__name__)


class Upstream:
    """The endpoint of one configuration."""

    def __init__(self, session: aiohttp.ClientSession, config: ProxyConfig) -> None:
        """Use a session from `open_http_session`. Raises `ConfigError` for an invalid URL."""
        self.config = config
        self._connection = Connection(session, config.upstream)

    async def post(self, headers: Headers, body: bytes, end: float) -> aiohttp.ClientResponse:
        """Pass a chat on, with the caller's `headers`; return the response with its body unread.

        `end` is that of the whole reply, on the event loop's clock. Raises `AttemptFailure`.
        """
        timeouts = self.config.upstream.timeouts
        passed = {name: headers[name] for name in _PASSED_HEADERS if name in headers}
        deadline = asyncio.get_running_loop().time() + timeouts.first_byte
        limits = Limits(timeouts.first_byte, end, timeouts.total)
        secret = self._connection.headers()
        return await self._connection.post(body, {**passed, **secret}, deadline, limits)

    async def models(self, seconds: float) -> tuple[int, list[Any]]:
        """Return the status of the endpoint's list, and its models that Agents may use.

        Raises `AttemptFailure`.
        """
        headers = self._connection.headers()
        status, body = await self._connection.fetch("models", headers, seconds)
        try:
            listed = orjson.loads(body)["data"]
            return status, [each for each in listed if self.config.allows(each["id"])]
        except (orjson.JSONDecodeError, TypeError, KeyError):
            return status, []


class EndpointWatch:
    """Checks the endpoint again and again by listing its models, which costs no tokens.

    `reason` begins with a code, and is "" if all is well: also if the endpoint has no list.
    `is_key_refused` is what the last request found, as some list their models to everybody.
    """

    def __init__(self, upstream: Callable[[], Upstream]) -> None:
        self._upstream = upstream
        self._found = "unchecked: the endpoint has not been asked yet"
        self.is_key_refused = False
        self.models: list[str] = []

    @property
    def reason(self) -> str:
        return self._found or (_KEY_REFUSED if self.is_key_refused else "")

    async def run(self) -> None:
        while True:
            former = self._found
            self._found, self.models = await check(self._upstream())
            if self._found != former:
                level = logging.WARNING if self._found else logging.INFO
                _logger.log(level, "the endpoint: %s", self._found or "is well")
            await asyncio.sleep(PERIOD_SECONDS)


async def check(upstream: Upstream) -> tuple[str, list[str]]:
    """Return why the endpoint cannot be used, or "", and the first models that it lists."""
    try:
        status, models = await upstream.models(_CHECK_SECONDS)
    except SecretMissing as failure:
        return f"key_missing: {failure.message}", []
    except AttemptFailure as failure:
        return f"unreachable: {failure.message}", []
    if status in (_UNAUTHORIZED, _FORBIDDEN):
        return _KEY_REFUSED, []
    if status >= _SERVER_ERROR:
        return f"failed: the endpoint fails (HTTP {status})", []
    return "", [str(each["id"]) for each in models[:MAX_MODELS]]
