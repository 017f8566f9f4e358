"""Which of an agent's models cannot be asked now, and since when: what `/ready` says of them.

It is told how each attempt at an endpoint ended. While one fails, and once at the start, it looks
itself whether the endpoint is there and takes the key: by a list of models, which costs no tokens.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from diptych.core.catalog import Unavailable
from diptych.core.errors import ModelCode
from diptych.models.endpoint import ModelEndpoint
from diptych.models.error_report import read_error_body
from diptych.models.failures import AttemptFailure, SecretMissing, status_failure

LOOK_PERIOD = 5.0  # seconds between two looks at an endpoint that fails, as all times here
LOOK_TIMEOUT = 5.0
EXPIRY = 300.0  # after which a failure that no look can see the end of is forgotten
_UNAUTHORIZED, _NOT_FOUND = 401, 404
_ILLNESSES: frozenset[ModelCode] = frozenset(
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


@dataclass(frozen=True, slots=True)
class _Trouble:
    """Why an endpoint gives no replies. `since` is a Unix time, `seen_at` a monotonic one.

    `by_look` says that a look has seen it, so that a look can see its end.
    """

    code: ModelCode
    message: str
    since: float
    seen_at: float
    by_look: bool


class ModelWatch:
    """Watches the endpoints of one model and its fallbacks; `clock` gives monotonic seconds."""

    def __init__(
        self, endpoints: Sequence[ModelEndpoint], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._endpoints = endpoints
        self._clock = clock
        self._troubles: dict[ModelEndpoint, _Trouble] = {}
        self._proven: set[ModelEndpoint] = set()
        """Endpoints that have given a reply: their refusal of a list of models means nothing."""
        self._has_news = asyncio.Event()

    def unavailable(self) -> tuple[Unavailable, ...]:
        """Give the models that cannot be asked now."""
        return tuple(
            Unavailable("model", endpoint.settings.name, _reason(endpoint, trouble))
            for endpoint in self._endpoints
            if (trouble := self._troubles.get(endpoint))
        )

    def note_success(self, endpoint: ModelEndpoint) -> None:
        """The endpoint gave a reply."""
        self._proven.add(endpoint)
        self._end_trouble(endpoint)

    def note_failure(self, endpoint: ModelEndpoint, failure: AttemptFailure) -> None:
        """An attempt failed; only what says something of the endpoint counts."""
        status = failure.report.status if failure.report is not None else 0
        if failure.code in _ILLNESSES or (
            failure.code == "model_refused" and status == _NOT_FOUND  # there is no such model
        ):
            self._begin_trouble(endpoint, failure, by_look=False)

    async def run(self) -> None:
        """Look at each endpoint once, and then at those that fail, until cancelled."""
        await asyncio.gather(*map(self.look, self._endpoints))
        while True:
            if not self._troubles:
                self._has_news.clear()
                await self._has_news.wait()
            await asyncio.sleep(LOOK_PERIOD)
            await asyncio.gather(*map(self.look, [*self._troubles]))

    async def look(self, endpoint: ModelEndpoint) -> None:
        """Look whether an endpoint is there and takes the key, without spending tokens."""
        deadline = asyncio.get_running_loop().time() + LOOK_TIMEOUT
        try:
            headers = endpoint.connection.headers()
            status, body = await endpoint.connection.fetch("models", headers, deadline)
            if status == _UNAUTHORIZED and endpoint not in self._proven:
                sent = (value for name, value in headers.items() if name != "Content-Type")
                secrets = [value.removeprefix("Bearer ") for value in sent]
                report, url = read_error_body(body, status), endpoint.connection.url
                raise status_failure(report, {}, secrets, url)
        except AttemptFailure as failure:
            failure.name_proxy(endpoint.settings.proxy)
            self._begin_trouble(endpoint, failure, by_look=True)
            return
        trouble = self._troubles.get(endpoint)
        if trouble is None:
            return
        is_visible = trouble.by_look or trouble.code == "model_unreachable"
        if is_visible or self._clock() - trouble.seen_at > EXPIRY:
            self._end_trouble(endpoint)

    def _begin_trouble(
        self, endpoint: ModelEndpoint, failure: AttemptFailure, *, by_look: bool
    ) -> None:
        if isinstance(failure, SecretMissing):
            return  # it says nothing of the endpoint, and `/ready` lists the secret by its name
        former = self._troubles.get(endpoint)
        is_same = former is not None and former.code == failure.code
        since = former.since if former and is_same else time.time()
        by_look = by_look or bool(former and is_same and former.by_look)
        trouble = _Trouble(failure.code, failure.message, since, self._clock(), by_look)
        self._troubles[endpoint] = trouble
        self._has_news.set()
        if not is_same:
            name, said = endpoint.settings.name, f" It said: {failure.said}" * bool(failure.said)
            _logger.warning(
                "model %s at %s cannot be asked: %s%s", name, endpoint.origin, trouble.message, said
            )

    def _end_trouble(self, endpoint: ModelEndpoint) -> None:
        if self._troubles.pop(endpoint, None) is not None:
            _logger.info("model %s at %s can be asked", endpoint.settings.name, endpoint.origin)


def _reason(endpoint: ModelEndpoint, trouble: _Trouble) -> str:
    since = datetime.fromtimestamp(trouble.since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    code = trouble.code.removeprefix("model_")
    return f"{code} since {since} at {endpoint.origin}: {trouble.message}"
