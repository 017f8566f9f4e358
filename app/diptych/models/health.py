"""Health of a model's endpoints: the circuit breaker, and the problems that `/ready` shows."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from diptych.core.catalog import Unavailable
from diptych.core.errors import ModelCode
from diptych.models.error_report import read_error_body
from diptych.models.failures import AttemptFailure, SecretMissing, status_failure

if TYPE_CHECKING:
    from diptych.models.endpoint import ModelEndpoint

MAX_FAILURES = 5
FAILURE_WINDOW = 30.0  # seconds, as all times here
OPEN_TIME = 10.0
CHECK_PERIOD = 5.0  # between health checks of a failing endpoint
CHECK_TIMEOUT = 5.0
EXPIRY = 300.0  # after this, a failure that health checks cannot observe is forgotten
_UNAUTHORIZED, _NOT_FOUND = 401, 404
_UNHEALTHY_CODES: frozenset[ModelCode] = frozenset(
    {
        "model_unreachable",
        "model_timeout",
        "model_unauthorized",
        "model_overloaded",
        "model_failed",
        "model_garbage",
        "model_cut",
    }
)
_logger = logging.getLogger(__name__)


class CircuitBreaker:
    """Opens after `MAX_FAILURES` failures within `FAILURE_WINDOW`, for `OPEN_TIME` (faults.md M2).

    Then one request is let through as a probe: success closes the circuit, failure opens it again.
    https://martinfowler.com/bliki/CircuitBreaker.html
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._failures: deque[float] = deque(maxlen=MAX_FAILURES)
        self._retry_at: float | None = None  # None while closed

    @property
    def is_open(self) -> bool:
        """Whether the endpoint failed too often, and has not responded since."""
        return self._retry_at is not None

    def allow(self) -> bool:
        """Whether to call the endpoint now; an open circuit allows one probe at a time.

        A probe whose outcome is never reported blocks further ones for `OPEN_TIME`.
        """
        if self._retry_at is None:
            return True
        if self._now() < self._retry_at:
            return False
        self._retry_at = self._now() + OPEN_TIME
        return True

    def report_success(self) -> None:
        """Record that the endpoint responded, even if it refused the request."""
        self._retry_at = None
        self._failures.clear()

    def report_failure(self) -> None:
        """Record that the endpoint failed or was unreachable."""
        now = self._now()
        self._failures.append(now)
        is_full = len(self._failures) == MAX_FAILURES
        if self.is_open or (is_full and now - self._failures[0] <= FAILURE_WINDOW):
            self._retry_at = now + OPEN_TIME


@dataclass(frozen=True, slots=True)
class _Trouble:
    """The reason why an endpoint is unavailable. `since` is Unix time, `seen_at` monotonic.

    `by_check`: a health check has observed the failure, so a later one can observe its end.
    """

    code: ModelCode
    message: str
    since: float
    seen_at: float
    by_check: bool


class ModelWatch:
    """Tracks which endpoints of a model are unavailable, and since when.

    It learns the outcome of each attempt. At the start, and while an endpoint fails, it also runs
    health checks: fetching the list of models shows whether the endpoint is up and accepts the
    key, and costs no tokens.
    """

    def __init__(
        self, endpoints: Sequence["ModelEndpoint"], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._endpoints = endpoints
        self._clock = clock
        self._troubles: dict[ModelEndpoint, _Trouble] = {}
        self._proven: set[ModelEndpoint] = set()
        """Endpoints that have replied; their refusing the list of models means nothing."""
        self._has_news = asyncio.Event()

    def unavailable(self) -> tuple[Unavailable, ...]:
        """Return the unavailable endpoints."""
        return tuple(
            Unavailable("model", endpoint.settings.name, _reason(endpoint, trouble))
            for endpoint in self._endpoints
            if (trouble := self._troubles.get(endpoint))
        )

    def note_success(self, endpoint: "ModelEndpoint") -> None:
        """Record a reply of the endpoint."""
        self._proven.add(endpoint)
        self._end_trouble(endpoint)

    def note_failure(self, endpoint: "ModelEndpoint", failure: AttemptFailure) -> None:
        """Record a failed attempt; a refused request says nothing about the endpoint's health."""
        is_no_such_model = failure.code == "model_refused" and failure.status == _NOT_FOUND
        if failure.code in _UNHEALTHY_CODES or is_no_such_model:
            self._begin_trouble(endpoint, failure, by_check=False)

    async def run(self) -> None:
        """Check each endpoint once, and then the failing ones, until cancelled."""
        await asyncio.gather(*map(self.check, self._endpoints))
        while True:
            if not self._troubles:
                self._has_news.clear()
                await self._has_news.wait()
            await asyncio.sleep(CHECK_PERIOD)
            await asyncio.gather(*map(self.check, [*self._troubles]))

    async def check(self, endpoint: "ModelEndpoint") -> None:
        """Check whether an endpoint is up and accepts the key, without spending tokens."""
        connection = endpoint.connection
        try:
            headers = connection.headers()
            status, body = await connection.fetch("models", headers, CHECK_TIMEOUT)
            if status == _UNAUTHORIZED and endpoint not in self._proven:
                report, secrets = read_error_body(body, status), connection.secrets(headers)
                raise status_failure(report, {}, secrets, connection.url)
        except AttemptFailure as failure:
            failure.name_proxy(endpoint.settings.proxy)
            self._begin_trouble(endpoint, failure, by_check=True)
            return
        trouble = self._troubles.get(endpoint)
        if trouble is None:
            return
        is_visible = trouble.by_check or trouble.code == "model_unreachable"
        if is_visible or self._clock() - trouble.seen_at > EXPIRY:
            self._end_trouble(endpoint)

    def _begin_trouble(
        self, endpoint: "ModelEndpoint", failure: AttemptFailure, *, by_check: bool
    ) -> None:
        if isinstance(failure, SecretMissing):
            return  # `/ready` lists missing secrets by name
        former = self._troubles.get(endpoint)
        since = time.time()
        if former is not None and former.code == failure.code:
            since, by_check = former.since, by_check or former.by_check
        else:
            said = f" It said: {failure.said}" if failure.said else ""
            name, message = endpoint.settings.name, failure.message
            origin = endpoint.origin
            _logger.warning("model %s at %s is unavailable: %s%s", name, origin, message, said)
        now = self._clock()
        self._troubles[endpoint] = _Trouble(failure.code, failure.message, since, now, by_check)
        self._has_news.set()

    def _end_trouble(self, endpoint: "ModelEndpoint") -> None:
        if self._troubles.pop(endpoint, None) is not None:
            _logger.info("model %s at %s is back", endpoint.settings.name, endpoint.origin)


def _reason(endpoint: "ModelEndpoint", trouble: _Trouble) -> str:
    since = datetime.fromtimestamp(trouble.since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    code = trouble.code.removeprefix("model_")
    return f"{code} since {since} at {endpoint.origin}: {trouble.message}"
