"""Watches a ModelAPI's endpoint for `/ready`: whether it answers, accepts the key, lists models."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import orjson

from diptych.model_proxy.upstream import Upstream
from diptych.models.failures import AttemptFailure, SecretMissing

MAX_MODELS = 100
_PERIOD, _FAILING_PERIOD = 60.0, 5.0  # seconds between checks
_CHECK_SECONDS = 5.0
_SERVER_ERROR = 500
_KEY_REFUSED = "key_refused: the endpoint does not accept the key"
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EndpointState:
    """What the last check found; `reason` begins with a code, and is "" if all is well."""

    reason: str = "unchecked: the endpoint has not been asked yet"
    models: tuple[str, ...] = ()

    @property
    def is_ok(self) -> bool:
        return not self.reason


class EndpointWatch:
    """Checks the endpoint from time to time, and at once after `check_soon`."""

    def __init__(self, upstream: Callable[[], Upstream]) -> None:
        self._upstream = upstream
        self._due = asyncio.Event()
        self._is_key_refused = False
        self.state = EndpointState()

    def note_reply(self) -> None:
        """Note that the endpoint has accepted the key."""
        self._is_key_refused = False
        if not self.state.is_ok:
            self._due.set()

    def note_refused_key(self) -> None:
        """Note that the endpoint has refused the key; some list their models to everybody."""
        self._is_key_refused = True
        self._due.set()

    def check_soon(self) -> None:
        """Check as soon as possible: a request has failed, or the configuration has changed."""
        self._due.set()

    async def run(self) -> None:
        while True:
            former, self.state = self.state, await check(self._upstream())
            if self.state.is_ok and self._is_key_refused:
                self.state = replace(self.state, reason=_KEY_REFUSED)
            if former.reason != self.state.reason:
                level = logging.INFO if self.state.is_ok else logging.WARNING
                _logger.log(level, "the endpoint: %s", self.state.reason or "is well")
            period = _PERIOD if self.state.is_ok else _FAILING_PERIOD
            if not self.state.is_ok:  # failing requests must not multiply the checks
                await asyncio.sleep(_FAILING_PERIOD / 5)
            self._due.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(period):
                    await self._due.wait()


async def check(upstream: Upstream) -> EndpointState:
    """List the endpoint's models, which costs no tokens; an endpoint without a list is well."""
    connection = upstream.connection
    try:
        headers = connection.headers()
        status, body = await connection.fetch("models", headers, _CHECK_SECONDS)
    except SecretMissing as failure:
        return EndpointState(f"key_missing: {failure.message}")
    except AttemptFailure as failure:
        return EndpointState(f"unreachable: {failure.message}")
    if status in {401, 403}:
        return EndpointState(_KEY_REFUSED)
    if status >= _SERVER_ERROR:
        return EndpointState(f"failed: the endpoint fails (HTTP {status})")
    names = [name for name in listed_models(body) if upstream.config.allows(name)]
    return EndpointState("", tuple(names[:MAX_MODELS]))


def listed_models(body: bytes) -> list[str]:
    """Return the names in a list of models; none if it is none."""
    try:
        found = orjson.loads(body)["data"]
        return [str(each["id"]) for each in found]
    except (orjson.JSONDecodeError, TypeError, KeyError):
        return []
